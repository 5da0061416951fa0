"""Writes of micro batches happen in the order of the micro batches, on values read after the write before.

    read --> write                read --> write
                          =>                 '-----.
    read/1 --> write/1            read/1* --> write/1        * waits, too

They wait, besides, for all data of the step: a step for which there is not enough data changes nothing.

A write in a branch is waited for where the branch ends, as what waits for an op of a branch that is not taken never
runs; a write in a loop waits where the loop begins.
"""

from typing import Dict, FrozenSet, Iterable, List, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.control_flow import data_order, depths_of, ends_of, loops_of
from epl.ir.view import GraphView
from epl.parallel import micro_batches
from epl.parallel.micro_batches import MicroBatchOps
from epl.parallel.rewrite import Rewrite
from epl.utils import tf_compat
from epl.utils.errors import PlanError


def order_reads(rewrite: Rewrite, view: GraphView, ops: MicroBatchOps, copies: Iterable[int]) -> None:
    """The data sources of a micro batch wait for those of the one before."""
    sources = _waitable_sources(rewrite, view, ops)
    for copy in copies:
        before = _operations(rewrite, view, sources, copy - 1)
        for op in _operations(rewrite, view, sources, copy):
            op._add_control_inputs(before)


def order_writes(
    rewrite: Rewrite, view: GraphView, ops: MicroBatchOps, boundaries: Set[int], stages: Sequence[int]
) -> None:
    """Adds the control edges of the writes of `ops`.

    Args:
      rewrite: of which the micro batches are cloned.
      view: of the graph before that.
      ops: what is cloned.
      boundaries: where the gradients are accumulated.
      stages: of the nodes of `view`.

    Raises:
      PlanError: a write in a branch that nothing shows the end of.
    """
    if not ops.writes:
        return
    depths = depths_of(view)
    loops = loops_of(view)
    trained = view.ancestors(boundaries)
    data = [view.ancestors(micro_batches.boundary_nodes(view, [training])) for training in rewrite.trainings]
    sources = _waitable_sources(rewrite, view, ops)
    data = [needed.intersection(sources) for needed in data]
    readers_of = {write: micro_batches.readers_of(view, view.variable_inputs(write)) for write in ops.writes}
    consumers = view.consumers()
    readers_of_all: Set[int] = set().union(*readers_of.values())
    takers = {consumer for reader in readers_of_all for consumer in consumers[reader]}
    leading = _leading_to(view, ops, readers_of_all | takers | set(sources))
    copies = range(1, rewrite.plan.num_micro_batch)
    for write in sorted(ops.writes):
        path = leading[write]
        waiting = _beginnings(view, {write}, loops, ops)
        own = path.intersection(sources)
        together = next((sorted(needed) for needed in data if own and own <= needed), sorted(own))
        for op in _operations(rewrite, view, waiting, 0):
            rewrite.remember(op)._add_control_inputs(_operations(rewrite, view, together, copies.stop - 1))
        ends = ends_of(view, write, depths)
        if not ends:
            raise PlanError(
                "{!r} writes a variable in a branch of tf.cond, or a loop, that gives nothing back, so that the micro "
                "batches cannot be put in order. Let it return what the write gives.".format(view.nodes[write].name)
            )
        readers = readers_of[write] & path
        shared = readers & trained if write not in trained else set()
        waiting |= _beginnings(view, readers - shared, loops, ops)
        for copy in copies:
            before = _operations(rewrite, view, ends, copy - 1)
            for op in _operations(rewrite, view, waiting, copy):
                op._add_control_inputs(before)
            for reader in sorted(shared):
                _read_again(rewrite, view, reader, path - trained, copy, before, stages[reader])
    if copies:
        _wait_for_all_writes(rewrite, view, ops, copies, stages)


def _leading_to(view: GraphView, ops: MicroBatchOps, nodes: Set[int]) -> Dict[int, Set[int]]:
    """For each write, which of `nodes` it needs; in one pass over the graph, with a bit for each of them."""
    of_interest = sorted(nodes & ops.cloned)
    bit = {node: 1 << place for place, node in enumerate(of_interest)}
    masks: Dict[int, int] = {}
    for node in data_order(view):
        if node in ops.cloned:
            mask = bit.get(node, 0)
            for producer in view.producers[node]:
                mask |= masks.get(producer, 0)
            masks[node] = mask
    return {write: {node for node in of_interest if masks[write] & bit[node]} for write in ops.writes}


def _read_again(
    rewrite: Rewrite,
    view: GraphView,
    reader: int,
    takers: Set[int],
    copy: int,
    before: List[tf.Operation],
    stage: int,
) -> None:
    """What leads to a write alone reads the variable by itself, after `before`.

    The gradients need the same reader, and not the write: were it to wait, it would pull the write into their runs.
    """
    op = rewrite.operation(rewrite.micro_prefix(copy) + view.nodes[reader].name)
    takers = {node for node in takers if view.takes_data(node, reader)}
    if not takers or op.type not in ("Identity", "ReadVariableOp"):
        return
    with rewrite.building("micro_batches/reads", stage), tf.control_dependencies(before):
        if op.type == "Identity":
            value = tf.identity(op.inputs[0])
        else:
            value = tf.raw_ops.ReadVariableOp(resource=op.inputs[0], dtype=op.outputs[0].dtype)
    for node in sorted(takers):
        taker = rewrite.operation(rewrite.micro_prefix(copy) + view.nodes[node].name)
        for position, tensor in enumerate(taker.inputs):
            if tensor.op is op:
                taker._update_input(position, value)


def _beginnings(view: GraphView, nodes: Set[int], loops: Dict[int, int], ops: MicroBatchOps) -> Set[int]:
    """The nodes; in place of those in a loop what leads into the loop."""
    entered = {loops[node] for node in nodes if node in loops}
    if not entered:
        return nodes
    enters = {node for node in view.of_types(op_types.ENTERS) if loops[node] in entered and node in ops.cloned}
    outermost = {node for node in enters if not any(p in loops for p in view.producers[node])}
    return {node for node in nodes if node not in loops} | outermost


def _waitable_sources(rewrite: Rewrite, view: GraphView, ops: MicroBatchOps) -> List[int]:
    """The data sources that are in no branch and no loop."""
    return [
        node
        for node in ops.sources
        if tf_compat.control_flow_context_of(rewrite.operation(view.nodes[node].name)) is None
    ]


def _operations(rewrite: Rewrite, view: GraphView, nodes: Iterable[int], copy: int) -> List[tf.Operation]:
    return [rewrite.operation(rewrite.micro_prefix(copy) + view.nodes[node].name) for node in sorted(nodes)]


def _wait_for_all_writes(
    rewrite: Rewrite, view: GraphView, ops: MicroBatchOps, copies: Iterable[int], stages: Sequence[int]
) -> None:
    """Ops of a step that wait for a write of micro batch 0 (tf.group of updates) wait for those of the others, too.

    They do so through one op for all that wait for the same: with updates among the control dependencies of `minimize`,
    thousands of ops wait for each of hundreds of writes.
    """
    leading = view.descendants(ops.writes) & ops.cloned
    groups: Dict[FrozenSet[int], tf.Operation] = {}
    for node, producers in enumerate(view.producers):
        if node in ops.cloned or view.types[node] in op_types.VARIABLES or leading.isdisjoint(producers):
            continue
        control = {name[1:] for name in view.nodes[node].input if name[0] == "^"}
        waited = frozenset(p for p in producers if p in leading and view.nodes[p].name in control)
        if waited and waited not in groups:
            others = [op for copy in copies for op in _operations(rewrite, view, waited, copy)]
            with rewrite.building("micro_batches/writes", stages[min(waited)]):
                groups[waited] = tf.group(*others)
        if waited:
            rewrite.remember(rewrite.operation(view.nodes[node].name))._add_control_input(groups[waited])
