"""Orders the writes of micro batches: each write reads its variable after the write of the micro batch before.

    read --> write                read --> write
                          =>                 '-----.
    read/1 --> write/1            read/1* --> write/1        * waits, too

All writes also wait for all data of the step, so a step that runs out of data changes nothing.

Where another write reads the new value (the count of an average without bias), the next write waits for that one, too:

    count --> average             count --> average
                          =>                 '-----.
    count/1 --> average/1         count/1* --> average/1

Ops that wait for a write in a branch wait for the end of the branch: an op that waits for an op of a branch that is not
taken never runs. A write in a loop waits at the beginning of the loop.
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
    """A data source waits for those data sources of the micro batch before that every run of it reads, too."""
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
    """By data source, the sources that all its users need; a wait for another source would read more data."""
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
      rewrite: the rewriting, after micro batches were cloned.
      view: view of the graph before that.
      ops: the nodes of each micro batch.
      boundaries: the gradient boundaries, where gradients are accumulated.
      stages: the stage of each node.

    Raises:
      PlanError: a write in a branch or loop without outputs, whose end cannot be waited for.
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
    """The reads of the variables of a write, with identities of their values (`v.read_value()`)."""
    found = micro_batches.readers_of(view, view.variable_inputs(write))
    consumers = view.consumers()
    stack = [node for node in found if view.types[node] in op_types.READS]
    while stack:
        more = {node for node in consumers[stack.pop()] if view.types[node] == "Identity"} - found
        found |= more
        stack.extend(more)
    return found


def _taken_by(view: GraphView, leading: Dict[int, Set[int]]) -> Dict[int, Set[int]]:
    """Write -> the other writes that read its new value. `leading`: the nodes that each write needs."""
    found: Dict[int, Set[int]] = {}
    for other, path in leading.items():
        for write in path.intersection(leading) - {other}:
            if not path.isdisjoint(micro_batches.readers_of_new_value(view, write)):
                found.setdefault(write, set()).add(other)
    return found


def _leading_to(view: GraphView, ops: MicroBatchOps, nodes: Set[int], roots: Set[int]) -> Dict[int, Set[int]]:
    """By root, the `nodes` that it needs: one pass over the graph, with a bit for each node."""
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
    """Adds another read of a variable, after `before`, for the consumers of `reader` that only a write needs.

    The gradients need `reader` but not the write: if `reader` waited, their runs would run the write, too.
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
    """Connects the other consumers of `reader`, the forward pass, to the read of micro batch 0.

    They get the value of before the step: nothing orders their own read and the writes of earlier micro batches.
    """
    (first,), (own,) = (_operations(rewrite, view, [reader], number) for number in (0, copy))
    if own.type in op_types.READS:
        for taker in own.outputs[0].consumers():
            for position, tensor in enumerate(taker.inputs):
                if tensor is own.outputs[0]:
                    tf_compat.set_input(taker, position, first.outputs[0])


def _beginnings(view: GraphView, nodes: Set[int], loops: Dict[int, int], ops: MicroBatchOps) -> Set[int]:
    """The nodes; instead of a node in a loop, the inputs of the loop."""
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
    """By data source, the nodes that run after it, or after its branch if that is not taken; none for one in a loop."""
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

    So do ops that read the reference which the write returns, such as the new value of a metric. All ops that wait for
    the same writes share one barrier: with updates among the control dependencies of `minimize`, thousands of ops wait
    for each of hundreds of writes. A run of micro batch 0 alone feeds the barrier, which leaves the others out.
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
    """An op that waits for ops of other micro batches, in runs that do not feed the barrier."""
    with rewrite.building("micro_batches/writes", stage):
        name, barrier = build_barrier(awaited)
    rewrite.later_writes.append(name)
    return barrier
