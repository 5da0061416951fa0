"""Which writes of a step take values of all rows, so that every replica writes what one device would.

A write of the script takes values of rows: sums over the batch, features that are put into a bank, the rows of a
scatter. `epl/parallel/sharding/row_lowering.py` says whether the whole of what it takes can be had. Three kinds of
writes stay those of each replica:

    in control flow, or of values without a whole          see there
    rows put where the script counts its own batch          bank[p : p + 32].assign(rows): 64 rows do not fit
    statistics that the loss takes of each replica's rows   moving averages of batch norm

Of the last ones, those that write means get the mean of what the replicas would write: `average_writes.py`.
"""

from typing import AbstractSet, Dict, FrozenSet, Hashable, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_descendants, data_inputs
from epl.ir.view import GraphView
from epl.parallel.sharding.row_flow import PARTIAL_SUM, ROWS, STATISTIC, Flow, Output, RowFlow
from epl.parallel.sharding.row_lowering import RowLowering
from epl.utils import tf_compat

_SETS = op_types.PLAIN_ASSIGNS | {"AssignAdd", "AssignAddVariableOp", "AssignSub", "AssignSubVariableOp"}


class WholeWrite(NamedTuple):
    """A write: its node, and what it takes besides the variable, by the position of the input."""

    node: int
    values: Tuple[Tuple[int, Output], ...]


class WholeWrites(NamedTuple):
    """The writes of all rows, each after those that it needs, and the program that gives what they take."""

    view: GraphView
    lowering: RowLowering
    writes: Tuple[WholeWrite, ...]


class AveragedWrite(NamedTuple):
    """A write that takes the mean of the replicas' values: the name of its op, and the position of the value."""

    op: str
    position: int


class _Group(NamedTuple):
    """Writes that one collective serves: what they have in common, their nodes, and they."""

    key: Hashable
    nodes: Set[int]
    writes: List[AveragedWrite]


def choose_averaged(
    tf_graph: tf.Graph, view: GraphView, flow: RowFlow, writing: Sequence[int], before: Sequence[AbstractSet[int]]
) -> Tuple[Tuple[AveragedWrite, ...], ...]:
    """The writes of means of a replica's rows, in groups that one collective serves.

    Writes of a group need the same data and belong to the same losses, so that a run which makes one of them computes
    nothing of another model. None of them is made before what another one takes is computed: a layer may wait for the
    averages of the one before it.

    Args:
      tf_graph: the graph.
      view: of it.
      flow: of the rows through what the writes take, with the means of a replica as its own (`own_means`).
      writing: the writes of rows that are not to be whole.
      before: by loss, the nodes that it is computed from.
    """
    sources = set(view.of_types(op_types.DATA_SOURCES)).union(view.user_placeholders())
    groups: List[_Group] = []
    for node in _in_order(view, set(writing)):
        position = _position_of_mean(tf_graph, view, flow, node)
        if position < 0:
            continue
        operation = tf_graph.get_operation_by_name(view.nodes[node].name)
        value = data_inputs(view, node)[position][0]
        needed = view.ancestors([value])
        losses = _losses_of(view, value, before, data_descendants(view, needed & sources, set()) - sources)
        key = operation.inputs[position].dtype.base_dtype, frozenset(needed & sources), losses
        group = _group_of(groups, key, needed)
        group.nodes.add(node)
        group.writes.append(AveragedWrite(operation.name, position))
    return tuple(tuple(group.writes) for group in groups)


def _losses_of(
    view: GraphView, value: int, before: Sequence[AbstractSet[int]], of_data: AbstractSet[int]
) -> FrozenSet[int]:
    """The losses that take what a value is computed from last, on each way back from it."""
    found: Set[int] = set()
    seen: Set[int] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if node in seen or node not in of_data:
            continue
        seen.add(node)
        own = {loss for loss, nodes in enumerate(before) if node in nodes}
        found |= own
        stack += [] if own else [one for one, _ in data_inputs(view, node)]
    return frozenset(found)


def _group_of(groups: List[_Group], key: Hashable, needed: AbstractSet[int]) -> _Group:
    """The last group with a key, or a new one where the write waits for one of that group, or of a later one."""
    for group in reversed(groups):
        if not group.nodes.isdisjoint(needed):
            break
        if group.key == key:
            return group
    groups.append(_Group(key, set(), []))
    return groups[-1]


def _position_of_mean(tf_graph: tf.Graph, view: GraphView, flow: RowFlow, node: int) -> int:
    """The position of the mean over rows that a write sets, adds or subtracts; -1 for another write."""
    operation = tf_graph.get_operation_by_name(view.nodes[node].name)
    if view.types[node] not in _SETS or tf_compat.control_flow_context_of(operation) is not None:
        return -1
    (position, value), *others = _values(view, node)
    tensor, its = operation.inputs[position], flow.of(value)
    is_mean = its == STATISTIC or (its.kind == PARTIAL_SUM and its.degree == 0)
    is_known = tensor.dtype.is_floating and tensor.shape.is_fully_defined()
    return position if is_mean and is_known and not others else -1


def choose(
    tf_graph: tf.Graph,
    view: GraphView,
    flow: RowFlow,
    nodes: AbstractSet[int],
    sources: Dict[Output, Flow],
    writing: Sequence[int],
    before_loss: AbstractSet[int],
    trained: AbstractSet[str],
) -> WholeWrites:
    """Chooses among the writes of rows.

    Args:
      tf_graph: the graph.
      view: of it.
      flow: of the rows through the nodes.
      nodes: what the writes and the loss are computed from.
      sources: where rows begin.
      writing: the writes.
      before_loss: those of `nodes` that the loss is computed from.
      trained: names of the trained variables.
    """
    candidates = {node: WholeWrite(node, _values(view, node)) for node in writing}
    own_statistics = _statistics_of_loss(view, flow, before_loss)
    same = {node for node in candidates if own_statistics.isdisjoint(_computed_from(view, node, nodes))}
    while True:
        differing = {one for node in candidates.keys() - same for one in view.variable_inputs(node)}
        lowering = RowLowering(tf_graph, view, flow, nodes, sources, same, differing, trained)
        kept = {node for node in same if not _is_whole(tf_graph, view, lowering, candidates[node])}
        if not kept:
            break
        same -= kept
    return WholeWrites(view, lowering, tuple(candidates[node] for node in _in_order(view, same)))


def _values(view: GraphView, node: int) -> Tuple[Tuple[int, Output], ...]:
    variables = set(view.variable_inputs(node))
    return tuple(
        (at, one)
        for at, one in enumerate(data_inputs(view, node))
        if one[0] not in variables and not view.passes_on(one[0])
    )


def _statistics_of_loss(view: GraphView, flow: RowFlow, before_loss: AbstractSet[int]) -> Set[int]:
    """The nodes on the way to the loss that mix rows, and the sums and means over rows that they take."""
    found = set(flow.mixing.keys() & before_loss)
    stack = list(found)
    while stack:
        for one in data_inputs(view, stack.pop()):
            its = flow.of(one)
            if one[0] not in found and not its.is_same and its.kind != ROWS:
                found.add(one[0])
                stack.append(one[0])
    return found


def _computed_from(view: GraphView, node: int, nodes: AbstractSet[int]) -> Set[int]:
    """The nodes that what a write takes is computed from."""
    found: Set[int] = set()
    stack = [one for _, (one, _) in _values(view, node)]
    while stack:
        node = stack.pop()
        if node in nodes and node not in found and view.types[node] not in op_types.VARIABLES | op_types.WRITES:
            found.add(node)
            stack += [one for one, _ in data_inputs(view, node)]
    return found


def _is_whole(tf_graph: tf.Graph, view: GraphView, lowering: RowLowering, write: WholeWrite) -> bool:
    """Whether a write can take the whole of its values, and has room for them."""
    op_type = view.types[write.node]
    operation = tf_graph.get_operation_by_name(view.nodes[write.node].name)
    if op_type not in op_types.WRITES or tf_compat.control_flow_context_of(operation) is not None:
        return False
    if any(lowering.no_whole(one) for _, one in write.values):
        return False
    are_rows = [lowering.of(one).kind == ROWS or one in lowering.mixed_sizes for _, one in write.values]
    if not any(are_rows):
        return True
    if op_type in op_types.ROW_WRITES:
        return all(is_rows or operation.inputs[at].shape.ndims == 0 for is_rows, (at, _) in zip(are_rows, write.values))
    if op_type in op_types.SLICE_WRITES:
        *bounds, _ = [one for _, one in write.values]
        return any(not lowering.of(one).is_same or one in lowering.mixed_sizes for one in bounds)
    return not any(lowering.of(one).kind == ROWS for _, one in write.values)


def _in_order(view: GraphView, writes: Set[int]) -> List[int]:
    """The writes, each after those that must run before it."""
    before = {node: len(writes & view.ancestors([node])) for node in writes}
    return sorted(writes, key=lambda node: (before[node], node))
