"""Writes of micro batches happen in the order of the micro batches, on values read after the write before.

    read --> write                read --> write
                          =>                 '-----.
    read/1 --> write/1            read/1* --> write/1        * waits, too

They wait, besides, for all data of the step: a step for which there is not enough data changes nothing.

A write whose new value another write takes (the count of an average without bias) waits for that one, too:

    count --> average             count --> average
                          =>                 '-----.
    count/1 --> average/1         count/1* --> average/1

A write in a branch is waited for where the branch ends, as what waits for an op of a branch that is not taken never
runs; a write in a loop waits where the loop begins.
"""

from typing import Dict, FrozenSet, Iterable, List, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.control_flow import data_order, depths_of, ends_of, loops_of
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView
from epl.parallel.pipeline import micro_batches
from epl.parallel.pipeline.micro_batches import MicroBatchOps
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.data_waits import ends_of_data
from epl.utils import tf_compat
from epl.utils.errors import PlanError


def order_reads(rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps, copies: Iterable[int]) -> None:
    """The data sources of a micro batch wait for those of the one before that are read whenever they are."""
    ends = _ends_of_sources(view, ops)
    for source, companions in _read_together(rewrite, view, ops, set(ends)).items():
        for copy in copies:
            before = _operations(rewrite, view, set().union(*[ends[other] for other in companions]), copy - 1)
            tf_compat.add_control_inputs(
                rewrite.operation(rewrite.micro_prefix(copy) + view.nodes[source].name), before
            )


def _read_together(
    rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps, sources: Set[int]
) -> Dict[int, Set[int]]:
    """For each data source, those that whatever needs it needs: waiting for another one would read more data."""
    if len(sources) < 2:
        return {source: {source} for source in sources}
    outputs = {view.index[output.tensor.partition(":")[0]] for output in rewrite.plan.outputs} & ops.cloned
    gradients = [
        {p for node in boundary_nodes(view, [training]) for p in view.producers[node]} & ops.cloned
        for training in rewrite.trainings
    ]
    leading = _leading_to(view, ops, sources, ops.writes | outputs | set().union(*gradients))
    needs = [set().union(*[leading[node] for node in nodes]) for nodes in gradients]
    needs += [leading[node] for node in sorted(ops.writes | outputs)]
    return {
        source: set(sources).intersection(*[needed for needed in needs if source in needed])
        for source in sorted(sources)
    }


def order_writes(
    rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps, boundaries: Set[int], stages: Sequence[int]
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
    data = [view.ancestors(boundary_nodes(view, [training])) for training in rewrite.trainings]
    sources = _ends_of_sources(view, ops)
    readers_of = {write: _readers_of(view, write) for write in ops.writes}
    consumers = view.consumers()
    readers_of_all: Set[int] = set().union(*readers_of.values())
    takers = {consumer for reader in readers_of_all for consumer in consumers[reader]}
    takers.update(taker for source in sources for taker in consumers[source])
    leading = _leading_to(view, ops, ops.writes | readers_of_all | takers | set(sources), ops.writes)
    taken_by = _taken_by(view, leading)
    copies = range(1, rewrite.plan.num_micro_batch)
    barriers: Dict[Tuple[int, FrozenSet[tf.Operation]], tf.Operation] = {}
    for write in sorted(ops.writes):
        path = leading[write]
        waiting = _beginnings(view, {write}, loops, ops)
        own = path.intersection(sources)
        together = next((needed for needed in data if own and own <= needed), own)
        read = set().union(*[sources[source] for source in together.intersection(sources)])
        last = ends_of_data(rewrite, view, sorted(read), path | together, copies.stop - 1)
        if copies and last:  # a run of micro batch 0 alone needs no other data
            key = stages[write], frozenset(last)
            if key not in barriers:
                barriers[key] = _barrier(rewrite, last, stages[write])
            last = [barriers[key]]
        for op in _operations(rewrite, view, waiting, 0):
            tf_compat.add_control_inputs(rewrite.remember(op), last)
        ends = ends_of(view, write, depths)
        if not ends:
            raise PlanError(
                "{!r} writes a variable in a branch of tf.cond, or a loop, that gives nothing back, so that the micro "
                "batches cannot be put in order. Let it return what the write gives.".format(view.nodes[write].name)
            )
        awaited = set(ends).union(*[ends_of(view, other, depths) for other in taken_by.get(write, ())])
        readers = readers_of[write] & path
        shared = readers & trained if write not in trained else set()
        waiting |= _beginnings(view, readers - shared, loops, ops)
        for copy in copies:
            before = _operations(rewrite, view, awaited, copy - 1)
            for op in _operations(rewrite, view, waiting, copy):
                tf_compat.add_control_inputs(op, before)
            for reader in sorted(shared):
                _read_again(rewrite, view, reader, path - trained, copy, before, stages[reader])
                _read_once(rewrite, view, reader, copy)
    if copies:
        _wait_for_all_writes(rewrite, view, ops, copies, stages)


def _readers_of(view: GraphView, write: int) -> Set[int]:
    """What reads the variables of a write, and what hands on such a value (`v.read_value()`)."""
    found = micro_batches.readers_of(view, view.variable_inputs(write))
    consumers = view.consumers()
    stack = [node for node in found if view.types[node] in op_types.READS]
    while stack:
        more = {node for node in consumers[stack.pop()] if view.types[node] == "Identity"} - found
        found |= more
        stack.extend(more)
    return found


def _taken_by(view: GraphView, leading: Dict[int, Set[int]]) -> Dict[int, Set[int]]:
    """Write -> the other writes that take its new value. `leading`: what leads to each write."""
    found: Dict[int, Set[int]] = {}
    for other, path in leading.items():
        for write in path.intersection(leading) - {other}:
            if not path.isdisjoint(micro_batches.takers_of_new_value(view, write)):
                found.setdefault(write, set()).add(other)
    return found


def _leading_to(view: GraphView, ops: MicroBatchOps, nodes: Set[int], roots: Set[int]) -> Dict[int, Set[int]]:
    """For each of the roots, which of `nodes` it needs; in one pass over the graph, with a bit for each of them."""
    of_interest = sorted(nodes & ops.cloned)
    bit = {node: 1 << place for place, node in enumerate(of_interest)}
    masks: Dict[int, int] = {}
    for node in data_order(view):
        if node in ops.cloned:
            mask = bit.get(node, 0)
            for producer in view.producers[node]:
                mask |= masks.get(producer, 0)
            masks[node] = mask
    return {root: {node for node in of_interest if masks[root] & bit[node]} for root in roots}


def _read_again(
    rewrite: RewriteContext,
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
    if not takers or op.type not in op_types.READS:
        return
    with rewrite.building("micro_batches/reads", stage), tf.control_dependencies(before):
        value = read_variable(op)
    for node in sorted(takers):
        taker = rewrite.operation(rewrite.micro_prefix(copy) + view.nodes[node].name)
        for position, tensor in enumerate(taker.inputs):
            if tensor.op is op:
                tf_compat.set_input(taker, position, value)


def _read_once(rewrite: RewriteContext, view: GraphView, reader: int, copy: int) -> None:
    """What else takes such a reader, the forward pass, sees the value of before the step, as micro batch 0 does.

    Nothing orders it and the writes of the micro batches before.
    """
    (first,), (own,) = (_operations(rewrite, view, [reader], number) for number in (0, copy))
    if own.type in op_types.READS:
        for taker in own.outputs[0].consumers():
            for position, tensor in enumerate(taker.inputs):
                if tensor is own.outputs[0]:
                    tf_compat.set_input(taker, position, first.outputs[0])


def _beginnings(view: GraphView, nodes: Set[int], loops: Dict[int, int], ops: MicroBatchOps) -> Set[int]:
    """The nodes; in place of those in a loop what leads into the loop."""
    entered = {loops[node] for node in nodes if node in loops}
    if not entered:
        return nodes
    enters = {node for node in view.of_types(op_types.ENTERS) if loops[node] in entered and node in ops.cloned}
    outermost = {node for node in enters if not any(p in loops for p in view.producers[node])}
    return {node for node in nodes if node not in loops} | outermost


def read_variable(read: tf.Operation) -> tf.Tensor:
    """Another read of the variable that `read` reads."""
    while read.inputs[0].op.type in op_types.READS:
        read = read.inputs[0].op
    if read.type == "Identity":
        return tf.identity(read.inputs[0])
    return tf.raw_ops.ReadVariableOp(resource=read.inputs[0], dtype=read.outputs[0].dtype)


def _ends_of_sources(view: GraphView, ops: MicroBatchOps) -> Dict[int, Set[int]]:
    """What shows that a data source was read, or that its branch was not taken; sources in loops show nothing."""
    if not ops.sources:
        return {}
    depths = depths_of(view)
    ends = {node: ops.cloned.intersection(ends_of(view, node, depths)) for node in ops.sources if not depths[node][0]}
    return {node: found for node, found in ends.items() if found}


def _operations(rewrite: RewriteContext, view: GraphView, nodes: Iterable[int], copy: int) -> List[tf.Operation]:
    names = [rewrite.in_micro_batch(view.nodes[node].name, copy) for node in sorted(nodes)]
    return [rewrite.operation(name) for name in names]


def _wait_for_all_writes(
    rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps, copies: Iterable[int], stages: Sequence[int]
) -> None:
    """Ops of a step that wait for a write of micro batch 0 (tf.group of updates) wait for those of the others, too.

    So do those that take a reference from it, as the new value of a metric does: they see all that was written before
    they run. They wait through one op for all that wait for the same: with updates among the control dependencies of
    `minimize`, thousands of ops wait for each of hundreds of writes. It waits behind a placeholder: feeding that one,
    in a run of micro batch 0 alone, leaves the others out.
    """
    leading = view.descendants(ops.writes) & ops.cloned
    references = ops.writes.intersection(view.of_types(op_types.REF_WRITES))
    groups: Dict[FrozenSet[int], tf.Operation] = {}
    for node, producers in enumerate(view.producers):
        if node in ops.cloned or view.types[node] in op_types.VARIABLES or leading.isdisjoint(producers):
            continue
        control = {name[1:] for name in view.nodes[node].input if name[0] == "^"}
        waited = frozenset(
            p for p in producers if p in references or (p in leading and view.nodes[p].name in control)
        )  # fmt: skip
        if waited and waited not in groups:
            others = [op for copy in copies for op in _operations(rewrite, view, waited, copy)]
            groups[waited] = _barrier(rewrite, others, stages[min(waited)])
        if waited:
            tf_compat.add_control_inputs(rewrite.remember(rewrite.operation(view.nodes[node].name)), [groups[waited]])


def _barrier(rewrite: RewriteContext, awaited: List[tf.Operation], stage: int) -> tf.Operation:
    """What waits for ops of other micro batches, in runs that do not feed it."""
    with rewrite.building("micro_batches/writes", stage):
        name, barrier = build_barrier(awaited)
    rewrite.later_writes.append(name)
    return barrier
