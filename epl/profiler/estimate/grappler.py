"""What TensorFlow's optimizer (grappler) removes from a step, as far as memory or the order of ops depend on it.

This module changes nothing: its functions name nodes and edges, and `program.py` leaves them out of the program.
"""

from collections import Counter
from typing import Collection, Dict, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.costs.shapes import Types
from epl.utils import tf_compat

_FEW = 2  # ops that wait for the same one
_SHAPES = frozenset(["Shape", "ShapeN", "Size", "Rank"])
_KEPT = (
    op_types.VARIABLES
    | op_types.REF_WRITES
    | op_types.DATA_SOURCES
    | op_types.PLACEHOLDERS
    | op_types.ENTERS
    | op_types.EXITS
    | op_types.NEXT_ITERATIONS
    | op_types.SWITCHES
    | op_types.MERGES
    | {"LoopCond"}
)


def repeated_waits(view: GraphView, order: Sequence[int], unshown: Collection[Tuple[int, int]]) -> Set[Tuple[int, int]]:
    """(Node, producer) of control edges that a longer path makes redundant.

    Only for producers with several waiting nodes, such as updates of batch norm, for which all ops of an optimizer
    wait.

    Args:
      view: of the graph.
      order: the nodes that run, each after its producers.
      unshown: inputs that are no longer taken, as `idle_nodes` has them.
    """
    left_out: Dict[int, Set[int]] = {}
    for node, at in unshown:
        left_out.setdefault(node, set()).add(data_inputs(view, node)[at][0])
    waits = {node: view.producers[node][len(data_inputs(view, node)) :] for node in order}
    count = Counter(producer for producers in waits.values() for producer in producers)
    bits = {node: 1 << at for at, node in enumerate(n for n in order if count[n] > _FEW)}
    before: Dict[int, int] = {}  # node -> the bits of its ancestors
    found: Set[Tuple[int, int]] = set()
    for node in order:
        inputs = set(view.producers[node]) - left_out.get(node, set())
        producers = [producer for producer in inputs if producer in before]
        reached = 0
        for producer in producers:
            reached |= before[producer]
        found.update((node, producer) for producer in waits[node] if bits.get(producer, 0) & reached)
        for producer in producers:
            reached |= bits.get(producer, 0)
        before[node] = reached
    return found


def folded_nodes(tf_graph: tf.Graph, view: GraphView, types: Types, order: Sequence[int]) -> Set[int]:
    """The nodes that become constants: shapes that are known from the graph, and broadcasts of two equal shapes."""
    found = set()
    for node in order:
        op_type = view.types[node]
        if op_type in _SHAPES:
            inputs = tf_graph.get_operation_by_name(view.nodes[node].name).inputs
            if all(tensor.shape.is_fully_defined() for tensor in inputs):
                found.add(node)
        elif op_type == "BroadcastGradientArgs":
            shapes = [producer for producer, _ in data_inputs(view, node)]
            if all(view.types[shape] == "Shape" for shape in shapes):
                one, other = [types[p][output].shape for shape in shapes for p, output in data_inputs(view, shape)]
                if one is not None and one == other:
                    found.add(node)
    return found


def idle_nodes(
    tf_graph: tf.Graph,
    view: GraphView,
    types: Types,
    fetched: Collection[int],
    order: Sequence[int],
    folded: Collection[int],
) -> Tuple[Set[int], Set[Tuple[int, int]]]:
    """The nodes that become a NoOp: no op takes their tensors, ops only wait for them.

    Gradients of constants are such nodes: tf.gradients makes the other gradients of the same op wait for them. An
    IdentityN becomes an Identity for each output that is taken.

    Returns:
      The nodes, and (IdentityN, position) of inputs that are no longer taken.
    """
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
    kept = stateful | _KEPT
    used = set(fetched)
    taken: Set[Tuple[int, int]] = set()
    idle: Set[int] = set()
    unshown: Set[Tuple[int, int]] = set()
    for node in reversed(order):
        if node not in used and view.types[node] not in kept:
            idle.add(node)
        elif node not in folded:
            inputs = data_inputs(view, node)
            if view.types[node] == "Reshape" and types[inputs[0][0]][inputs[0][1]] == types[node][0]:
                inputs = inputs[:1]  # into the shape that it has
            elif view.types[node] == "IdentityN" and node not in fetched:
                unshown.update((node, at) for at in range(len(inputs)) if (node, at) not in taken)
                inputs = [one for at, one in enumerate(inputs) if (node, at) in taken]
            taken.update(inputs)
            used.update(producer for producer, _ in inputs)
    return idle, unshown
