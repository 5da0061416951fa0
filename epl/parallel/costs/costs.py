"""The cost model: estimated FLOPs, bytes and time of every op of a forward graph.

    time = runs * time of one run, on the preset that stands for the type of device

`forward_nodes.py` reads the nodes, `op_work.py` says what each different op computes, `op_times.py` how long it takes,
`shapes.py` has the shapes, `loops.py` the loops.
"""

from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.parallel.costs import backward
from epl.parallel.costs import loops as costs_loops
from epl.parallel.costs import shapes as costs_shapes
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.forward_nodes import ForwardNode, read_nodes, variable_type
from epl.parallel.costs.functions import FunctionLibrary
from epl.parallel.costs.op_times import OpTimes, times_on
from epl.parallel.costs.op_work import find_works
from epl.parallel.costs.ops import OpRun, OpWork, kind_of
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


class RunSums(NamedTuple):
    """What some runs of ops cost together: FLOPs, bytes read and written, and seconds."""

    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0


def sum_of(runs: Iterable[OpRun], times: OpTimes) -> RunSums:
    """What runs cost on a device."""
    flops = size = seconds = 0.0
    for run in runs:
        cost = run.cost()
        flops += run.times * cost.flops
        size += run.times * cost.bytes
        seconds += run.times * times.seconds(cost)
    return RunSums(flops, size, seconds)


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
    notes: List[str] = []
    if types is None:
        types, notes = costs_shapes.output_types(tf_graph, view, nodes, known)
    read = read_nodes(view, types, nodes, None if with_backward else ())
    works = find_works(signatures_of(read.of_node), FunctionLibrary(view.graph_def.library))
    times = times_on(device_type)
    sums = {op: (sum_of(work.forward, times), sum_of(work.backward, times)) for op, work in works.items()}
    added: Dict[Tuple[TensorType, int], RunSums] = {}
    costs = Costs({}, {}, {}, {}, {}, types, ())
    nothing = (RunSums(), RunSums())
    for node, one in read.of_node.items():
        forward, after = nothing if one.signature is None else sums[one.signature]
        seconds = forward.seconds + after.seconds
        for addition in one.sums:
            if addition not in added:
                added[addition] = sum_of([backward.addition(*addition)], times)
            seconds += added[addition].seconds
        costs.flops[node] = one.runs * forward.flops
        costs.bytes[node] = one.runs * forward.bytes
        costs.seconds[node] = one.runs * forward.seconds
        costs.step_seconds[node] = one.runs * seconds
        costs.parameters[node] = parameter_bytes(view, node)
    return costs._replace(notes=tuple(notes + describe_assumptions(view, read.of_node, read.unbounded, works)))


def signatures_of(nodes: Mapping[int, ForwardNode]) -> List[Signature]:
    """The signatures of the nodes that take time."""
    return [one.signature for one in nodes.values() if one.signature is not None]


def parameter_bytes(view: GraphView, node: int) -> int:
    """Bytes of the variable that a node is; 0 for other nodes."""
    variable = variable_type(view, node) if view.types[node] in op_types.VARIABLES else None
    return 0 if variable is None else costs_shapes.num_bytes(variable)


def variable_shape(view: GraphView, node: int) -> Optional[Tuple[int, ...]]:
    """The shape of the variable that a node is; None for other nodes, and for a shape that is open."""
    variable = variable_type(view, node) if view.types[node] in op_types.VARIABLES else None
    sizes = None if variable is None else variable.shape
    return None if sizes is None or None in sizes else tuple(size for size in sizes if size is not None)


def describe_assumptions(
    view: GraphView, nodes: Mapping[int, ForwardNode], unbounded: Iterable[str], works: Mapping[Signature, OpWork]
) -> List[str]:
    """What is assumed of ops, loops and functions, for people.

    Args:
      view: the graph.
      nodes: its forward pass.
      unbounded: names of loops whose turns are not known.
      works: what its ops compute.
    """
    unread: List[int] = []
    unknown: Set[str] = set()
    guessed: Set[str] = set()
    loops = list(unbounded)
    for node, one in nodes.items():
        if one.signature is None:
            continue
        work = works[one.signature]
        loops += work.unbounded
        if not work.is_known:
            guessed.add(view.types[node])
        kinds = {kind_of(run.node.op): run.node.op for run in work.forward}
        if Kind.CALL in kinds:
            unread.append(node)
        if Kind.UNKNOWN in kinds:
            unknown.update(run.node.op for run in work.forward if kind_of(run.node.op) == Kind.UNKNOWN)
    notes = costs_loops.unbounded_notes(loops)
    if unread:
        notes.append(
            "{} ops call functions ({}, for example), whose bodies count by arguments and results alone".format(
                len(unread), view.nodes[min(unread)].name
            )
        )
    if unknown:
        notes.append("op types without a cost of their own count by their size: {}".format(", ".join(sorted(unknown))))
    if guessed:
        notes.append(
            "the backward pass of {} counts as the forward pass: it cannot be told of the op alone".format(
                ", ".join(sorted(guessed))
            )
        )
    return notes
