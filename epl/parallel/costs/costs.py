"""The cost model: estimated FLOPs, bytes and time of every op of a forward graph.

    time = runs * (overhead + max(FLOPs / rate of its kind, bytes / bandwidth))

Only the weights relative to each other matter: they decide where a model is cut. `epl/parallel/costs/ops.py` says what
an op computes, `shapes.py` has the shapes, `loops.py` the loops.
"""

from typing import Collection, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.parallel.costs import loops as costs_loops
from epl.parallel.costs import shapes as costs_shapes
from epl.parallel.costs.folding import Folding
from epl.parallel.costs.ops import OpCost, op_cost
from epl.parallel.costs.shapes import TensorType, Types
from epl.planner.machine.op_kinds import Kind
from epl.planner.machine.presets import DEVICES


class OpSpeeds(NamedTuple):
    """How fast ops run.

    Attributes:
      overhead: seconds that starting an op takes.
      bandwidth: bytes per second, read and written.
      rates: kind -> FLOPs per second; the bandwidth limits all other kinds.
    """

    overhead: float
    bandwidth: float
    rates: Dict[str, float]


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


def _cpu_speeds() -> OpSpeeds:
    device = DEVICES["cpu"]
    rates = {rate.kind: rate.flops.reached for rate in device.rates}
    return OpSpeeds(device.launch_overhead, device.bandwidth.reached, rates)


# CPU: as measured for the preset (docs/auto_partition.md). GPU: nine tenths of what the data sheet of an NVIDIA V100
# gives for float32; not measured.
MACHINES = {
    "cpu": _cpu_speeds(),
    "gpu": OpSpeeds(
        5e-6, 800e9, {Kind.MATMUL: 14e12, Kind.BATCH_MATMUL: 14e12, Kind.CONVOLUTION: 14e12, Kind.DEPTHWISE: 14e12}
    ),
}
# With this narrowest dimension a contraction runs at half its rate; measured as the rates of the CPU.
_HALF_RATE_WIDTH = 40
# Kinds that move bytes slower than the bandwidth allows, and how many times slower.
_SLOWER = {Kind.REARRANGE: 3.0}

# Time of the backward pass of an op as a multiple of its forward pass; 1 for kinds that are not in it.
_BACKWARD = {
    Kind.FREE: 0.0, Kind.RANDOM: 0.0, Kind.SEARCH: 0.0, Kind.MATMUL: 2.0, Kind.BATCH_MATMUL: 2.0,
    Kind.CONVOLUTION: 2.0, Kind.DEPTHWISE: 2.0, Kind.SLOW: 0.2, Kind.CROSS_ENTROPY: 0.1, Kind.ELEMENTWISE: 1.5,
}  # fmt: skip


def node_costs(
    tf_graph: tf.Graph,
    view: GraphView,
    nodes: Collection[int],
    device_type: str = "cpu",
    known: Optional[Mapping[str, Sequence[Optional[int]]]] = None,
    types: Optional[Types] = None,
) -> Costs:
    """The costs of `nodes`.

    Args:
      tf_graph: the graph.
      view: its view.
      nodes: the nodes of a forward pass, with all their ancestors.
      device_type: a key of MACHINES.
      known: name of a tensor of a data source -> its shape, where the graph leaves it open.
      types: shapes and dtypes of the nodes and of their producers, where they have been found before.
    """
    machine = MACHINES[device_type]
    notes: List[str] = []
    if types is None:
        types, notes = costs_shapes.output_types(tf_graph, view, nodes, known)
    frames = costs_loops.loop_frames(view)
    folding = Folding(view, types)
    counts = costs_loops.trip_counts(view, folding, frames) if frames else {}
    runs = costs_loops.runs(frames, counts, nodes)
    trained = _differentiated(view, nodes, types)
    costs = Costs({}, {}, {}, {}, {}, types, ())
    kinds: Dict[str, List[int]] = {}
    for node in nodes:
        cost = op_cost(view.nodes[node], input_types(view, types, node), types[node])
        if keeps_order(view, folding, node):
            cost = OpCost(Kind.FREE, 0.0, 0.0, 0)
        kinds.setdefault(cost.kind, []).append(node)
        times = runs.get(node, 1)
        seconds = times * op_seconds(cost, machine)
        costs.flops[node] = times * cost.flops
        costs.bytes[node] = times * cost.bytes
        costs.seconds[node] = seconds
        costs.step_seconds[node] = seconds * (1 + (_BACKWARD.get(cost.kind, 1.0) if node in trained else 0))
        costs.parameters[node] = _parameter_bytes(view, types, node)
    unbounded = sorted({frames[n][-1] for n in nodes if n in frames and counts.get(frames[n][-1]) is None})
    return costs._replace(notes=tuple(notes + _notes(view, kinds, unbounded)))


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


def op_seconds(cost: OpCost, machine: OpSpeeds) -> float:
    """How long one run of an op takes."""
    if cost.kind == Kind.FREE:
        return 0.0
    moving = cost.bytes / machine.bandwidth * _SLOWER.get(cost.kind, 1.0)
    rate: Optional[float] = machine.rates.get(cost.kind)
    if rate is not None and cost.narrowest:
        rate *= cost.narrowest / (cost.narrowest + _HALF_RATE_WIDTH)
    return machine.overhead + (moving if rate is None else max(moving, cost.flops / rate))


def _differentiated(view: GraphView, nodes: Collection[int], types: Types) -> FrozenSet[int]:
    """The nodes through which a gradient flows: floating point, and computed from a variable."""
    variables = [node for node in nodes if view.types[node] in op_types.VARIABLES]
    members = frozenset(nodes)
    reached = view.descendants(variables, stop=lambda node: node not in members) & members
    return frozenset(n for n in reached if any(t.dtype.base_dtype.is_floating for t in types[n]))


def _parameter_bytes(view: GraphView, types: Types, node: int) -> int:
    if view.types[node] in op_types.RESOURCE_VARIABLES:
        attrs = view.nodes[node].attr
        shape = tf.TensorShape(attrs["shape"].shape)
        return costs_shapes.num_bytes(
            TensorType(None if shape.ndims is None else tuple(shape.as_list()), tf.as_dtype(attrs["dtype"].type))
        )
    return costs_shapes.num_bytes(types[node][0]) if view.types[node] in op_types.VARIABLES else 0


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
