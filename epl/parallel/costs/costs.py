"""The cost model: estimated FLOPs, bytes and time of every op of a forward graph.

    time = runs * time of one run, on the preset that stands for the type of device

`epl/parallel/costs/ops.py` says what an op computes, `op_times.py` how long it takes, `shapes.py` has the shapes,
`loops.py` the loops.
"""

from typing import Collection, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.costs import backward
from epl.parallel.costs import loops as costs_loops
from epl.parallel.costs import shapes as costs_shapes
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.folding import Folding
from epl.parallel.costs.op_times import times_on
from epl.parallel.costs.ops import OpCost, op_cost
from epl.parallel.costs.shapes import TensorType, Types
from epl.planner.machine.op_kinds import Kind


class Costs(NamedTuple):
    """What the nodes of a forward graph cost, by node.

    Attributes:
      flops: floating point operations of one forward pass.
      bytes: bytes read and written in one forward pass.
      seconds: estimated time of one forward pass.
      step_seconds: estimated time of the forward and the backward pass.
      parameters: bytes of the variables.
      types: shape and dtype of every output.
      notes: assumptions, for people.
    """

    flops: Dict[int, float]
    bytes: Dict[int, float]
    seconds: Dict[int, float]
    step_seconds: Dict[int, float]
    parameters: Dict[int, int]
    types: Types
    notes: Tuple[str, ...]


_INTO_LOOPS = frozenset(["Enter", "RefEnter"])
# No gradient passes them.
_ENDING = frozenset(["StopGradient", "PreventGradient", "Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"])


def node_costs(
    tf_graph: tf.Graph,
    view: GraphView,
    nodes: Collection[int],
    device_type: str = "cpu",
    known: Optional[Mapping[str, Sequence[Optional[int]]]] = None,
    types: Optional[Types] = None,
    with_backward: bool = True,
) -> Costs:
    """The costs of `nodes`.

    Args:
      tf_graph: the graph.
      view: its view.
      nodes: the nodes of a forward pass, with all their ancestors.
      device_type: "cpu" or "gpu": whose speed the times are for.
      known: name of a tensor of a data source -> its shape, where the graph leaves it open.
      types: shapes and dtypes of the nodes and of their producers, where they have been found before.
      with_backward: whether a backward pass is added to the nodes; if not, `step_seconds` are `seconds`.
    """
    times_of = times_on(device_type)
    notes: List[str] = []
    if types is None:
        types, notes = costs_shapes.output_types(tf_graph, view, nodes, known)
    frames = costs_loops.loop_frames(view)
    folding = Folding(view, types)
    counts = costs_loops.trip_counts(view, folding, frames) if frames else {}
    runs = costs_loops.runs(frames, counts, nodes)
    costs = Costs({}, {}, {}, {}, {}, types, ())
    kinds: Dict[str, List[int]] = {}
    once = {node: _cost_of(view, types, folding, node) for node in nodes}
    after, alone = _backward(view, types, folding, once) if with_backward else ({}, [])
    for node, cost in once.items():
        kinds.setdefault(cost.kind, []).append(node)
        times = runs.get(node, 1)
        seconds = times * times_of.seconds(cost)
        costs.flops[node] = times * cost.flops
        costs.bytes[node] = times * cost.bytes
        costs.seconds[node] = seconds
        costs.step_seconds[node] = seconds + times * sum(times_of.seconds(one) for one in after.get(node, ()))
        costs.parameters[node] = _parameter_bytes(view, types, node)
    unbounded = sorted({frames[n][-1] for n in nodes if n in frames and counts.get(frames[n][-1]) is None})
    return costs._replace(notes=tuple(notes + _notes(view, kinds, unbounded) + _backward_notes(view, alone)))


def _cost_of(view: GraphView, types: Types, folding: Folding, node: int) -> OpCost:
    """The cost of one run of a node."""
    if keeps_order(view, folding, node):
        return OpCost(Kind.FREE, 0.0, 0.0, 0)
    return op_cost(view.nodes[node], input_types(view, types, node), types[node])


def input_types(view: GraphView, types: Types, node: int) -> List[TensorType]:
    """Shapes and dtypes of the data inputs of a node, as far as they are known."""
    found = []
    for name in view.nodes[node].input:
        if name[0] != "^":
            producer, _, output = name.partition(":")
            found.append(types[view.index[producer]][int(output or 0)])
    return found


def keeps_order(view: GraphView, folding: Folding, node: int) -> bool:
    """Whether a transpose changes nothing, such as that in a matmul of a tensor of rank 3 with a matrix."""
    if view.types[node] != "Transpose":
        return False
    permutation = folding.vector(folding.data_inputs(node)[1][0])
    return len(permutation) > 0 and list(permutation) == list(range(len(permutation)))


def _backward(
    view: GraphView, types: Types, folding: Folding, costs: Mapping[int, OpCost]
) -> Tuple[Dict[int, List[OpCost]], List[int]]:
    """The backward ops of one run of each node through which a gradient flows; and the nodes with a guess for them.

    Args:
      view, types, folding: of the graph.
      costs: of one run of each node of the forward pass.
    """
    flows = _differentiated(view, frozenset(costs), types)
    takers = _takers(view, costs, flows)
    asked: Dict[int, Signature] = {}
    found: Dict[int, List[OpCost]] = {node: [] for node in flows}
    for node in flows:
        for output, consumers in takers[node].items():
            if len(consumers) > 1 and backward.has_gradient(types[node][output].dtype):
                # Counts where the gradients come from: a variable takes no time, so that no cut comes after it.
                found[min(consumers)].append(backward.addition(types[node][output], len(consumers)))
        if view.types[node] in _INTO_LOOPS and view.nodes[node].attr["is_constant"].b:
            found[node].append(backward.addition(types[node][0], 2))  # each turn adds its part to the gradient
        if costs[node].kind != Kind.FREE:
            used = tuple(not takers[node] or output in takers[node] for output in range(len(types[node])))
            asked[node] = _signature(view, node, types, folding, flows, used)
    differentiated = backward.differentiate(list(asked.values()))
    for node, op in asked.items():
        found[node] += differentiated[op].costs
    return found, [node for node, op in asked.items() if not differentiated[op].is_known]


def _takers(view: GraphView, members: Collection[int], flows: FrozenSet[int]) -> Dict[int, Dict[int, List[int]]]:
    """Node -> output -> those of `flows` that take it."""
    found: Dict[int, Dict[int, List[int]]] = {node: {} for node in members}
    for consumer in flows:
        for producer, output in data_inputs(view, consumer):
            found[producer].setdefault(output, []).append(consumer)
    return found


def _signature(
    view: GraphView, node: int, types: Types, folding: Folding, flows: FrozenSet[int], used: Tuple[bool, ...]
) -> Signature:
    """A node as it is differentiated by itself."""
    inputs, constants, wanted = [], [], []
    for producer, output in data_inputs(view, node):
        given = types[producer][output]
        inputs.append(given)
        known = _whole_numbers(folding, producer, given)
        constants.append(known)
        wanted.append(producer in flows or given.dtype.base_dtype == tf.resource)
    attrs = backward.attributes_of(view.nodes[node])
    return Signature(
        view.types[node], attrs, tuple(inputs), tuple(types[node]), tuple(constants), tuple(wanted), used
    )  # fmt: skip


def _whole_numbers(folding: Folding, producer: int, given: TensorType) -> Optional[Tuple[float, ...]]:
    """The elements of a constant such as axes or a shape; None if they are not known."""
    if given.dtype.base_dtype not in (tf.int32, tf.int64) or given.shape is None or len(given.shape) > 1:
        return None
    values = folding.vector(producer) or ([folding.scalar(producer)] if given.shape == () else [])
    if given.shape and len(values) != given.shape[0]:
        return None
    known = tuple(one for one in values if one is not None)
    return None if len(known) < len(values) or (not values and given.shape != (0,)) else known


def _differentiated(view: GraphView, members: FrozenSet[int], types: Types) -> FrozenSet[int]:
    """The nodes through which a gradient flows: computed from a variable, and on the way to the objective."""
    variables = [node for node in members if view.types[node] in op_types.VARIABLES]
    reached = view.descendants(variables, stop=lambda node: node not in members) & members
    floating = frozenset(
        node for node in reached
        if view.types[node] not in _ENDING and any(backward.has_gradient(one.dtype) for one in types[node])
    )  # fmt: skip
    taken = {producer for node in members for producer in view.producers[node]}
    objective = [node for node in floating if node not in taken]
    return frozenset(view.ancestors(objective, stop=lambda node: node not in floating) & floating)


def _parameter_bytes(view: GraphView, types: Types, node: int) -> int:
    if view.types[node] in op_types.RESOURCE_VARIABLES:
        attrs = view.nodes[node].attr
        shape = tf.TensorShape(attrs["shape"].shape)
        return costs_shapes.num_bytes(
            TensorType(None if shape.ndims is None else tuple(shape.as_list()), tf.as_dtype(attrs["dtype"].type))
        )
    return costs_shapes.num_bytes(types[node][0]) if view.types[node] in op_types.VARIABLES else 0


def _backward_notes(view: GraphView, alone: Sequence[int]) -> List[str]:
    if not alone:
        return []
    types = sorted({view.types[node] for node in alone})
    return [
        "the backward pass of {} counts as the forward pass: it cannot be told of the op alone".format(", ".join(types))
    ]


def _notes(view: GraphView, kinds: Dict[str, List[int]], unbounded: List[str]) -> List[str]:
    notes = []
    for name in unbounded:
        notes.append(f"loop {name}: the number of its iterations is not known and counts as 1")
    if Kind.CALL in kinds:
        called = view.nodes[min(kinds[Kind.CALL])].name
        notes.append(
            "{} ops call functions ({}, for example), whose bodies count by arguments and results alone".format(
                len(kinds[Kind.CALL]), called
            )
        )
    if Kind.UNKNOWN in kinds:
        op_names = sorted({view.types[n] for n in kinds[Kind.UNKNOWN]})
        notes.append("op types without a cost of their own count by their size: {}".format(", ".join(op_names)))
    return notes
