"""Partitions a forward graph into pipeline stages: by repeated blocks if their number divides, else by estimated time.

This module does not change the graph. `units.py` says which ops stay together and in which order, `costs.py` estimates
times, `epl/utils/linear_partition.py` cuts a chain, and `annotate.py` marks the ops.
"""

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.auto_partition import units as partition_units
from epl.parallel.auto_partition.units import Ordered, Units
from epl.parallel.costs import repeated_blocks
from epl.parallel.costs.costs import Costs, node_costs
from epl.parallel.costs.shapes import num_bytes
from epl.utils import linear_partition
from epl.utils.errors import PlanError

REPEATED_BLOCKS = "repeated blocks"
BALANCED = "balanced"


# Given the nodes that the objective needs: the policy that has found their stages, and the stage of each.
PlannedStages = Callable[[Set[int]], Tuple[str, Dict[int, int]]]


class PartitionStage(NamedTuple):
    """The work of one stage for one micro batch.

    Attributes:
      ops: the number of forward ops.
      flops: floating point operations of the forward pass.
      seconds: estimated time of forward and backward pass.
      parameters: bytes of variables.
      cut: bytes that this stage and earlier ones send to later ones, in the forward pass.
    """

    ops: int
    flops: float
    seconds: float
    parameters: int
    cut: int


class Partition(NamedTuple):
    """A forward graph in stages.

    Attributes:
      policy: REPEATED_BLOCKS or BALANCED.
      of_node: the stage of every op that the objective needs.
      stages: the work of each stage.
      notes: the assumptions of the estimates.
      units: the groups of nodes that stay together.
    """

    policy: str
    of_node: Dict[int, int]
    stages: Tuple[PartitionStage, ...]
    notes: Tuple[str, ...]
    units: Units


def partition(
    tf_graph: tf.Graph,
    view: GraphView,
    roots: Sequence[str],
    num_stages: int,
    device_type: str = "cpu",
    planned: Optional[PlannedStages] = None,
) -> Partition:
    """Partitions the ops that `roots` need.

    Args:
      tf_graph: the graph.
      view: its view.
      roots: names of ops: those of the objective.
      num_stages: the number of stages.
      device_type: "cpu" or "gpu": whose speed the estimates are for.
      planned: the stages, given the needed nodes, if they are decided already; else they are searched for.

    Raises:
      PlanError: there are fewer units of work than stages.
    """
    return Partitioner(tf_graph, view, roots, device_type).partition(num_stages, planned)


class Partitioner:
    """Partitions one forward graph into any number of stages; its costs and units are found once."""

    def __init__(self, tf_graph: tf.Graph, view: GraphView, roots: Sequence[str], device_type: str = "cpu") -> None:
        """Takes a graph, as `partition` does."""
        self._view = view
        self._needed = view.ancestors([view.index[name] for name in roots])
        self._costs = node_costs(tf_graph, view, self._needed, device_type)
        self._units = partition_units.find_units(tf_graph, view, self._needed)

    def partition(self, num_stages: int, planned: Optional[PlannedStages] = None) -> Partition:
        """The graph in so many stages; arguments and errors are those of the function `partition`."""
        view, needed, costs, units = self._view, self._needed, self._costs, self._units
        policy, of_node = _search(view, units, needed, costs, num_stages) if planned is None else planned(needed)
        return Partition(policy, of_node, _stages(view, of_node, costs, num_stages), costs.notes, units)


def places_in_chain(tf_graph: tf.Graph, view: GraphView, roots: Sequence[str]) -> Dict[int, int]:
    """By node that `roots` need, its place in a chain that may be cut between any two places.

    Data flows from smaller places to larger ones; what stays together has one place, and so has the input pipeline.

    Args:
      tf_graph: the graph.
      view: its view.
      roots: names of ops: those of the objective.
    """
    needed = view.ancestors([view.index[name] for name in roots])
    units = partition_units.find_units(tf_graph, view, needed)
    ordered = partition_units.order_units(view, units, needed)
    first = max(0, len(ordered.pinned) - 1)
    place = {unit: max(0, at - first) for at, unit in enumerate(ordered.order)}
    return {node: place[units.of_node[node]] for node in needed}


def _search(
    view: GraphView, units: Units, needed: Set[int], costs: Costs, num_stages: int
) -> Tuple[str, Dict[int, int]]:
    """The policy that finds stages, and the stage of each needed node."""
    ordered = partition_units.order_units(view, units, needed)
    blocks = repeated_blocks.find_blocks(view, needed, costs)
    policy = REPEATED_BLOCKS
    stage_of_unit = None
    if blocks:
        stage_of_unit = repeated_blocks.stages_of_blocks(
            blocks, units.of_node, ordered.order, ordered.producers, ordered.fed, num_stages
        )
    if stage_of_unit is None:
        policy = BALANCED
        stage_of_unit = _balance(view, units, ordered, needed, costs, num_stages)
    return policy, {node: stage_of_unit[units.of_node[node]] for node in needed}


def describe(found: Partition) -> str:
    """The partition as a table, with its assumptions."""
    total = sum(stage.seconds for stage in found.stages) or 1.0
    rows = [f"{len(found.stages)} pipeline stages ({found.policy}):"]
    rows.append("  stage    ops      GFLOPs   time  parameters    cut to the next stage")
    for at, stage in enumerate(found.stages):
        cut = f"{stage.cut / 1e6:10.3f} MB" if at < len(found.stages) - 1 else ""
        row = "  {:5d} {:6d} {:11.3f} {:5.1f}% {:8.2f} MB    {}".format(
            at, stage.ops, stage.flops / 1e9, 100 * stage.seconds / total, stage.parameters / 1e6, cut
        )
        rows.append(row.rstrip())
    rows.append("  per micro batch; FLOPs and cuts of the forward pass, estimated time of forward and backward pass")
    rows.extend(f"  note: {note}" for note in found.notes)
    return "\n".join(rows)


def _balance(
    view: GraphView, units: Units, ordered: Ordered, needed: Set[int], costs: Costs, num_stages: int
) -> Dict[int, int]:
    """The stage of each unit, by estimated time."""
    order = ordered.order
    seconds = [sum(costs.step_seconds[n] for n in units.members[unit] if n in needed) for unit in order]
    cuts = _cut_in_front(view, units, order, needed, costs)
    starts, times, boundaries = _elements(seconds, cuts, len(ordered.pinned))
    found = linear_partition.cut_chain(times, boundaries, num_stages)
    if found is None:
        raise PlanError(
            "The model cannot be partitioned into {} stages (pipeline.num_stages): its {} forward ops form {} units of "
            "work that can be told apart; a loop, a conditional or colocated ops are one. Set pipeline.num_stages to "
            "{} or less.".format(num_stages, len(needed), len(times), max(1, len(times)))
        )
    first = [starts[element] for element in found.starts] + [len(order)]
    stages: Dict[int, int] = {}
    for stage in range(num_stages):
        stages.update((order[at], stage) for at in range(first[stage], first[stage + 1]))
    return stages


def _elements(
    seconds: Sequence[float], cuts: Sequence[int], num_pinned: int
) -> Tuple[List[int], List[float], List[int]]:
    """Joins units to elements that take time: (first unit, time, bytes of a cut before it), no cut for the first.

    A unit without time goes to the side that leaves less to cut. The first `num_pinned` units are one element.
    """
    starts = [0]
    times = [sum(seconds[:num_pinned])]
    boundaries: List[int] = []
    candidate = num_pinned
    for at in range(num_pinned, len(seconds)):
        if cuts[at] < cuts[candidate]:
            candidate = at
        if seconds[at] > 0:
            if times[-1] > 0:
                starts.append(candidate)
                boundaries.append(cuts[candidate])
                times.append(0.0)
            times[-1] += seconds[at]
            candidate = min(at + 1, len(seconds) - 1)
    return (starts, times, boundaries) if times[-1] > 0 else ([], [], [])


def _cut_in_front(view: GraphView, units: Units, order: Sequence[int], needed: Set[int], costs: Costs) -> List[int]:
    """For each place in the order, the bytes that are made before it and needed at it or after it."""
    place = {unit: at for at, unit in enumerate(order)}
    where = {node: place[units.of_node[node]] for node in needed}
    change = [0] * (len(order) + 1)
    for (node, output), last in _last_use(view, where).items():
        size = num_bytes(costs.types[node][output])
        change[where[node] + 1] += size
        change[last + 1] -= size
    cuts, now = [], 0
    for difference in change[:-1]:
        now += difference
        cuts.append(now)
    return cuts


def _last_use(view: GraphView, where: Dict[int, int]) -> Dict[Tuple[int, int], int]:
    """(node, output) -> the last place where it is used, for outputs that are used after the place of their node."""
    last: Dict[Tuple[int, int], int] = {}
    for consumer, at in where.items():
        for producer, output in data_inputs(view, consumer):
            if at > where[producer]:
                last[producer, output] = max(at, last.get((producer, output), 0))
    return last


def _stages(view: GraphView, of_node: Dict[int, int], costs: Costs, num_stages: int) -> Tuple[PartitionStage, ...]:
    stages = []
    members: List[List[int]] = [[] for _ in range(num_stages)]
    for node, stage in of_node.items():
        members[stage].append(node)
    cut = [0] * num_stages
    for (node, output), last in _last_use(view, of_node).items():
        for stage in range(of_node[node], last):
            cut[stage] += num_bytes(costs.types[node][output])
    for stage, nodes in enumerate(members):
        stages.append(
            PartitionStage(
                len(nodes),
                sum(costs.flops[node] for node in nodes),
                sum(costs.step_seconds[node] for node in nodes),
                sum(costs.parameters[node] for node in nodes),
                cut[stage],
            )
        )
    return tuple(stages)
