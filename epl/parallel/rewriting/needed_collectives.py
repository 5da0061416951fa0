"""Lets a collective of a split wait only for those earlier collectives of its stream that the run needs.

    a ──▶ b ──▶ c     =>     a ──▶ (barrier of a) ──▶ b
                              `──────────┐
                             (barrier of a, barrier of b) ──▶ c         b is not needed: its barrier is fed

As they are built, each collective of a stream waits for the one before: a run that needs the last one runs all, also
those of a branch that scores other data in the same scope. With this pass each collective waits for barriers
(barriers.py) of all earlier ones, and a run feeds the barriers of the collectives that it does not need. All ranks make
the same fetches, so they feed the same barriers.

In a pipeline, actions of the schedule run in every step, with all ops that they wait for. So there the collectives that
no training needs come last in their stream. The barriers are built when the micro batches are in the graph
(clone_micro_batches.py): the first collective of a micro batch comes after the last one of the micro batch before.
"""

from types import MappingProxyType
from typing import Container, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.graph import first_tensor
from epl.ir.taskgraph import DEFAULT_ATTR
from epl.ir.view import GraphView
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import Order, RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.parallel.sharding.resharding import CollectiveStream
from epl.utils import tf_compat


class OrderedCollective(NamedTuple):
    """A collective of one communicator.

    Attributes:
      op: the collective.
      ends: ops that run after it, whether or not the branch is taken that it is in; outside of branches, itself.
      stage: of its device.
    """

    op: tf.Operation
    ends: Tuple[tf.Operation, ...]
    stage: int


def run(rewrite: RewriteContext) -> None:
    """Orders the collectives of a split; in a pipeline only those of micro batch 0, as the others do not exist yet."""
    if len(rewrite.plan.stages) == 1:
        skip_unneeded(rewrite)
    else:
        _put_trained_first(rewrite)


def _put_trained_first(rewrite: RewriteContext) -> None:
    """Moves the collectives that some training needs to the front of each stream."""
    streams = [stream for stream in _streams(rewrite) if len(stream.collectives) > 1]
    if not streams:
        return
    for stream in streams:
        for op in stream.collectives:
            _forget(rewrite, op, set(stream.collectives))
    trained = _trained(rewrite)
    for stream in streams:
        first = [op for op in stream.collectives if op.name in trained]
        stream.collectives[:] = first + [op for op in stream.collectives if op.name not in trained]
        for before, op in zip(stream.collectives, stream.collectives[1:]):
            tf_compat.add_control_inputs(rewrite.remember(op), [before])


def skip_unneeded(
    rewrite: RewriteContext, copied: Container[str] = (), stage_of: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Adds barriers between the collectives of each stream, including those of further micro batches.

    Args:
      rewrite: the rewriting.
      copied: names of the ops that are copied for each micro batch.
      stage_of: the stages of ops, by name; by default the first stage.
    """
    for number, stream in enumerate(_streams(rewrite)):
        ops = _in_order(rewrite, stream, copied)
        for place, op in enumerate(ops):
            _forget(rewrite, op, set(ops[:place]))
        ordered = [OrderedCollective(op, (op,), stage_of.get(op.name, 0)) for op in ops]
        order_needed(rewrite, ordered, f"stream{number}")


def order_needed(rewrite: RewriteContext, ordered: Sequence[OrderedCollective], scope: str) -> None:
    """Lets each collective wait for those of the earlier ones that a run needs; `scope` names the barriers."""
    passed: List[tf.Operation] = []
    for place, (op, ends, stage) in enumerate(ordered):
        tf_compat.add_control_inputs(rewrite.remember(op), passed)
        if place < len(ordered) - 1:
            with rewrite.building(f"needed/{scope}_{place}", stage):
                name, barrier = build_barrier(ends)
            tf_compat.set_attr(rewrite.tf_graph.get_tensor_by_name(name).op, DEFAULT_ATTR, tf.AttrValue(b=True))
            tf_compat.add_control_inputs(barrier, passed)
            passed = [barrier]
            rewrite.orders.append(Order((name,), frozenset([op.name])))


def _streams(rewrite: RewriteContext) -> Sequence[CollectiveStream]:
    """The streams of the split, except those in a branch: no control edge may leave a branch."""
    ranks = replica_groups(rewrite.graph)
    return [
        stream
        for stream in (() if ranks is None else ranks.resharder.streams)
        if not any(tf_compat.control_flow_context_of(op) for op in stream.collectives)
    ]


def _in_order(rewrite: RewriteContext, stream: CollectiveStream, has_copies: Container[str]) -> List[tf.Operation]:
    """The collectives of a stream: micro batch after micro batch, then those that are not copied."""
    names = [op.name for op in stream.collectives]
    copied = [name for name in names if name in has_copies]
    ordered = [rewrite.in_micro_batch(name, copy) for copy in range(rewrite.plan.num_micro_batch) for name in copied]
    return [rewrite.operation(name) for name in dict.fromkeys([*ordered, *names])]


def _forget(rewrite: RewriteContext, op: tf.Operation, others: Set[tf.Operation]) -> None:
    """Removes the control edges from any of the others to an op."""
    controls = list(op.control_inputs)
    if not others.isdisjoint(controls):
        tf_compat.remove_control_inputs(rewrite.remember(op))
        tf_compat.add_control_inputs(op, [control for control in controls if control not in others])


def _trained(rewrite: RewriteContext) -> Set[str]:
    """Names of the ops that a training step needs: for gradients, for updates by them, for outputs."""
    view = GraphView(rewrite.tf_graph)
    gradients = {view.index[first_tensor(of).op.name] for one in rewrite.trainings for _, of in one.boundaries}
    writes = find_training_writes(rewrite.tf_graph, view, view.writes(), gradients)
    outputs = {view.index[output.tensor.partition(":")[0]] for output in rewrite.plan.outputs}
    needed = view.ancestors(gradients | (writes & view.descendants(gradients)) | outputs)
    return {view.nodes[node].name for node in needed}


PASS = Pass(
    "needed_collectives",
    run,
    "replicas",
    adds=names("orders"),
    after=names("recompute offload gather_per_use"),
)
