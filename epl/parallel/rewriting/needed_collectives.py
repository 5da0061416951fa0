"""A collective of a split waits for those before it that the run needs, and for no others.

    a ──▶ b ──▶ c     =>     a ──▶ (barrier of a) ──▶ b
                              `──────────┐
                             (barrier of a, barrier of b) ──▶ c         b is not needed: its barrier is fed

As they are built, the collectives of a stream wait one for the other: whoever needs the last needs all, such as a
branch that scores other data in the same scope. Behind a barrier (barriers.py) each waits for all before it, and the
barriers of those that a run does not need are fed. Which these are, the same fetches tell all ranks alike.

What the actions of a pipeline's schedule wait for runs in every step. So there the collectives that no training needs
come last in their stream. The barriers are built when the micro batches are in the graph (clone_micro_batches.py): the
first collective of a micro batch comes behind the last one of the micro batch before.
"""

from types import MappingProxyType
from typing import Container, List, Mapping, Sequence, Set

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


def run(rewrite: RewriteContext) -> None:
    """Puts the collectives of a split in order, in a pipeline for now those of the first micro batch."""
    if len(rewrite.plan.stages) == 1:
        skip_unneeded(rewrite)
    else:
        _put_trained_first(rewrite)


def _put_trained_first(rewrite: RewriteContext) -> None:
    """Puts what some training needs in front of the other collectives of each stream."""
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
    """Puts barriers between the collectives of each stream, those of its micro batches included.

    Args:
      rewrite: the rewriting.
      copied: names of the ops of which each micro batch has a copy.
      stage_of: the stages of ops by name; the first one for those that are not there.
    """
    for number, stream in enumerate(_streams(rewrite)):
        ops = _in_order(rewrite, stream, copied)
        passed: List[tf.Operation] = []
        for place, op in enumerate(ops):
            _forget(rewrite, op, set(ops[:place]))
            tf_compat.add_control_inputs(rewrite.remember(op), passed)
            if op is not ops[-1]:
                scope = f"needed/stream{number}_{place}"
                with rewrite.building(scope, stage_of.get(op.name, 0)):
                    name, barrier = build_barrier([op])
                tf_compat.set_attr(rewrite.tf_graph.get_tensor_by_name(name).op, DEFAULT_ATTR, tf.AttrValue(b=True))
                tf_compat.add_control_inputs(barrier, passed)
                passed = [barrier]
                rewrite.orders.append(Order((name,), frozenset([op.name])))


def _streams(rewrite: RewriteContext) -> Sequence[CollectiveStream]:
    """Those of the split; not those in a branch of control flow, out of which no control edge leads."""
    ranks = replica_groups(rewrite.graph)
    return [
        stream
        for stream in (() if ranks is None else ranks.resharder.streams)
        if not any(tf_compat.control_flow_context_of(op) for op in stream.collectives)
    ]


def _in_order(rewrite: RewriteContext, stream: CollectiveStream, has_copies: Container[str]) -> List[tf.Operation]:
    """The collectives of a stream: micro batch after micro batch, then those of which micro batches have no copies."""
    names = [op.name for op in stream.collectives]
    copied = [name for name in names if name in has_copies]
    ordered = [rewrite.in_micro_batch(name, copy) for copy in range(rewrite.plan.num_micro_batch) for name in copied]
    return [rewrite.operation(name) for name in dict.fromkeys([*ordered, *names])]


def _forget(rewrite: RewriteContext, op: tf.Operation, others: Set[tf.Operation]) -> None:
    """Has an op no longer wait for any of the others by control edges."""
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
    adds=names("orders"),
    after=names("recompute offload regather"),
)
