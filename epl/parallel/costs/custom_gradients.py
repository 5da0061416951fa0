"""What the backward pass of `tf.custom_gradient` computes and keeps: its function is called once, in a scratch graph.

    y = f(x) --> IdentityN([y, x]) --> ...        gradients pass from IdentityN to x, not through the ops of f
                     '- the gradient function of the script: dy, and tensors of f that it reads --> dx

The scratch graph is the body of a function, which takes tensors of the graph of the script and changes nothing there.
"""

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.dataflow import SHAPE_OPS
from epl.ir.view import GraphView
from epl.parallel.costs.ops import OpRun, kind_of
from epl.parallel.costs.shapes import TensorType, Types, known_type
from epl.planner.machine.op_kinds import Kind
from epl.utils import tf_compat

Tensor = Tuple[int, int]  # node, output


class CustomGradient(NamedTuple):
    """The backward pass of an op with a gradient function of the script.

    Attributes:
      runs: the backward ops, those of each kind that takes time.
      kept: the tensors of the forward pass that they read.
      wanted: positions of the inputs that get a gradient.
    """

    runs: Tuple[OpRun, ...]
    kept: Tuple[Tensor, ...]
    wanted: FrozenSet[int]


class CustomGradients(NamedTuple):
    """Those of a forward pass.

    Attributes:
      of_node: by node.
      unknown: names of ops whose gradient function could not be called by itself.
    """

    of_node: Dict[int, CustomGradient]
    unknown: Tuple[str, ...]

    def runs(self, node: int) -> Tuple[OpRun, ...]:
        """The backward ops of a node; () for other nodes."""
        return self.of_node[node].runs if node in self.of_node else ()

    def kept(self) -> List[Tensor]:
        """All tensors of the forward pass that the backward ops read."""
        return [tensor for one in self.of_node.values() for tensor in one.kept]

    def notes(self) -> Tuple[str, ...]:
        """What is assumed, for people."""
        if not self.unknown:
            return ()
        note = "the gradient functions of {} op(s) ({}, for example) cannot be called by themselves: {}"
        return (note.format(len(self.unknown), self.unknown[0], "the gradient of what they wrap counts"),)


def find_custom_gradients(tf_graph: tf.Graph, view: GraphView, types: Types, nodes: Sequence[int]) -> CustomGradients:
    """The custom gradients of a forward pass.

    Args:
      tf_graph: the graph.
      view: of it, or of the graph as it was before it was rewritten.
      types: of its tensors.
      nodes: the forward pass.
    """
    found: Dict[int, CustomGradient] = {}
    unknown: List[str] = []
    for node in nodes:
        if view.types[node] == "IdentityN" and tf_compat.GRADIENT_OP_TYPE in view.nodes[node].attr:
            one = _differentiated(tf_graph, view, types, node)
            if one is None:
                unknown.append(view.nodes[node].name)
            else:
                found[node] = one
    return CustomGradients(found, tuple(unknown))


def _differentiated(tf_graph: tf.Graph, view: GraphView, types: Types, node: int) -> Optional[CustomGradient]:
    op = tf_graph.get_operation_by_name(view.nodes[node].name)

    def shape_of(tensor: tf.Tensor) -> Optional[Sequence[Optional[int]]]:
        at = view.index.get(tensor.op.name, -1)
        return types[at][tensor.value_index].shape if at in types else None

    try:
        gradients, captured = tf_compat.call_gradient_function(op, shape_of)
    except Exception:  # the function of the script needs more than its tensors
        return None
    wanted = frozenset(at for at, one in enumerate(gradients) if one is not None)
    roots = [tensor for one in gradients if one is not None for tensor in _parts(one)]
    inner: Set[tf.Operation] = set()
    read: Set[tf.Tensor] = set()
    waiting = [tensor.op for tensor in roots]
    while waiting:
        current = waiting.pop()
        if current in inner:
            continue
        inner.add(current)
        waiting += [tensor.op for tensor in current.inputs]
        if current.type not in SHAPE_OPS:
            read.update(current.inputs)
    runs = []
    for current in sorted(inner, key=tf_compat.op_id):
        inputs, outputs = (tuple(map(_type, some)) for some in (current.inputs, current.outputs))
        if kind_of(current.type) != Kind.FREE:
            runs.append(OpRun(current.node_def, inputs, outputs))
    kept = [
        (view.index[outer.op.name], outer.value_index)
        for outer, own in captured
        if own in read and outer.op.name in view.index
    ]
    return CustomGradient(tuple(runs), tuple(kept), wanted)


def _parts(gradient: Any) -> List[tf.Tensor]:
    return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def _type(tensor: tf.Tensor) -> TensorType:
    return known_type(*tf_compat.output_type(tensor))
