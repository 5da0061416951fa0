"""Gradient accumulation: with one stage, a training step takes `pipeline.num_micro_batch` runs, the micro steps.

    run 0 .. M-2                                run M-1
    gradient ---> assign or add ---> sum        gradient --+
                                                    sum ---+--> / M --> apply, global step + 1

It is built while apply_gradients is recorded, around the optimizer's own call, which goes into the branch of a tf.cond
that the last micro step takes. Here runs are counted and the branches built; where gradients are added up is left to
`epl.parallel.accumulation.gradients`. What replicas must agree on is in the record
(`epl.parallel.accumulation.record`); that they do is left to the passes.

Counters and sums need no initializer: a counter that was never written is 0, and the first micro step overwrites the
sums. So they are in no collection and in no checkpoint, and a new session begins a new training step.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.gradient import Boundary
from epl.ir.graph import Graph, first_tensor
from epl.parallel.accumulation import sums as gradient_sums
from epl.parallel.accumulation.counters import HOST, at_start, new_counter
from epl.parallel.accumulation.gradients import (
    Late,
    Pair,
    Steps,
    add_late,
    early_boundaries,
    first_and_last,
    hold,
    late_gradients,
    note_late,
    with_means,
)
from epl.parallel.accumulation.record import AccumulatedGradient, AccumulationRecord, accumulations_of
from epl.parallel.plan.stages import plan_stages
from epl.utils import tf_compat
from epl.utils.errors import EplError, PlanError


def steps_of(graph: Graph) -> Steps:
    """The micro steps of a training step of this graph, as annotated so far; a pipeline does its step in one run."""
    config = Env.get().config
    count = config.pipeline.num_micro_batch
    if count > 1 and not _is_one_stage(graph):
        count = 1
    return Steps(count, 1 if config.communication.gradients_reduce_method == "sum" else count)


def _is_one_stage(graph: Graph) -> bool:
    cluster = Env.get().cluster
    if len(graph.taskgraphs) == 1 or cluster is None:
        return len(graph.taskgraphs) == 1
    try:
        return len(plan_stages(graph, cluster)[0]) == 1
    except EplError:
        return False  # the plan will be refused for it


def accumulated_apply(
    graph: Graph, pairs: Sequence[Pair], changed: bool, steps: Steps, apply: Callable[[List[Pair]], Any]
) -> tf.Operation:
    """Adds gradients up over several runs, and applies their mean in the last one.

    Args:
      graph: what is known of the default graph.
      pairs: what the user gives to apply_gradients.
      changed: whether some gradient is another than tf.gradients returned.
      steps: the runs.
      apply: applies and records pairs.

    Returns:
      The training op of one run.

    Raises:
      PlanError: the steps cannot be counted.
    """
    train_ops = tf.get_collection_ref(tf.GraphKeys.TRAIN_OP)
    user_scope = graph.tf_graph.get_name_scope()

    def apply_as_user(means: List[Pair]) -> tf.Operation:
        """Under the names that the ops have without accumulation: variables are named by them."""
        with tf.name_scope(user_scope + "/" if user_scope else None):
            result = apply(means)
        return tf.group(*[value for value in tf.nest.flatten(result) if value is not None])

    before = len(train_ops)
    with tf.name_scope("epl_accumulation"), control_flow_v1():
        early = early_boundaries(graph, pairs, changed)
        accumulation = _find_or_make(graph, early, steps)
        accumulation = hold(graph, accumulation, early, steps)
        train_op = _build(graph, accumulation, pairs, early, steps, apply_as_user)
    train_ops[before:] = [train_op] if len(train_ops) > before else []
    return train_op


def _build(
    graph: Graph,
    accumulation: AccumulationRecord,
    pairs: Sequence[Pair],
    early: Dict[str, Boundary],
    steps: Steps,
    apply: Callable[[List[Pair]], tf.Operation],
) -> tf.Operation:
    """The two branches of a run, and the counting."""
    accumulated = [accumulation.accumulated[name] for name in early]
    late = late_gradients(graph, pairs, early)
    counters, checks = [accumulation.counter], []
    if early:
        own, position = _counter()
        counters.append(own)
        checks.append(_check_runs(accumulation.position, position))
    is_first, is_last = first_and_last(accumulation.position, steps)

    def last() -> tf.Operation:
        graph.common_branches.append(tf_compat.current_context(graph.tf_graph))
        return apply(with_means(pairs, late, steps))

    def not_last() -> tf.Operation:
        with tf.control_dependencies(_begun(accumulation.counter, accumulated, late)):
            writes = [gradient_sums.write(one.storage, one.total) for one in accumulated]
            return tf.group(*(writes + ([add_late(late, is_first)] if late else [])))

    with tf.control_dependencies(checks):
        done = tf.cond(is_last, last, not_last, name="micro_step")
    _refuse_loop(done.op)
    note_late(graph, accumulation, pairs, late, counters)
    reduced = tuple(one.reduced for one in accumulated if one.reduced is not None)
    if reduced:
        graph.apply_calls[-1] = graph.apply_calls[-1]._replace(boundaries=reduced)
    with tf.control_dependencies([done]), tf.device(HOST):
        following = (accumulation.position + 1) % steps.count
        advanced = [tf.raw_ops.AssignVariableOp(resource=counter, value=following) for counter in counters]
        return tf.group(*advanced, name="train_op")


# ---- Counting


def _counter() -> Tuple[tf.Tensor, tf.Tensor]:
    """A variable that counts micro steps, and its value: 0 before it was ever written, or in one that failed."""
    handle, value = new_counter()
    with at_start(), tf.device(HOST):
        return handle, tf.identity(tf.maximum(value, 0), name="position")


def _begun(counter: tf.Tensor, accumulated: Sequence[AccumulatedGradient], late: Sequence[Late]) -> List[tf.Operation]:
    """Marks the counter until the micro step is done: after one that failed half-way the training step begins anew.

    It is marked when there are gradients, so that a run which finds no more data leaves everything as it was.
    """
    firsts = [one.total[0] for one in accumulated[:1]] + [first_tensor(one.source) for one in late[:1]]
    with tf.control_dependencies(firsts), tf.device(HOST):
        return [tf.raw_ops.AssignVariableOp(resource=counter, value=tf.constant(-1, tf.int64))]


def _check_runs(position: tf.Tensor, own: tf.Tensor) -> tf.Operation:
    """Optimizers that share gradients count together: one that was left out in a run must not go on."""
    with at_start(), tf.device(HOST):
        text = (
            "An optimizer did not run in each micro step of its training step, and shares gradients that are changed "
            "(clipped together, for example) with another optimizer. Run both in the same Session.run, or change and "
            "apply the gradients of each apart."
        )
        together = tf.logical_or(tf.equal(position, 0), tf.equal(position, own))
        return tf.raw_ops.Assert(condition=together, data=[tf.constant(text)], summarize=3)


def _find_or_make(graph: Graph, early: Dict[str, Boundary], steps: Steps) -> AccumulationRecord:
    """The record of those that share gradients in `early`, else a new one."""
    sharing = [
        accumulation
        for accumulation in accumulations_of(graph)
        if not early.keys().isdisjoint(accumulation.accumulated)
    ]
    if len(sharing) > 1:
        raise PlanError(
            "apply_gradients was given gradients that are changed together ({}, for example), and two earlier calls "
            "count their micro steps apart with some of them. With pipeline.num_micro_batch > 1, change the gradients "
            "of all optimizers together, or those of each apart.".format(next(iter(early.values()))[0])
        )
    if sharing:
        return sharing[0]
    counter, position = _counter()
    graph.local_variables.add(counter.op.name)
    accumulation = AccumulationRecord(steps.count, counter, position, (), frozenset(), {})
    accumulations_of(graph).append(accumulation)
    return accumulation


def _refuse_loop(op: tf.Operation) -> None:
    if tf_compat.is_in_while(tf_compat.control_flow_context_of(op)):
        raise PlanError(
            "apply_gradients was called inside a tf.while_loop. With pipeline.num_micro_batch > 1 one Session.run is "
            "one micro step: apply gradients once per run, outside of the loop."
        )


@contextlib.contextmanager
def control_flow_v1() -> Iterator[None]:
    """tf.cond makes ops of the graph itself, in which gradients can be given another source."""
    enabled = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    try:
        yield
    finally:
        if enabled:
            tf.enable_control_flow_v2()
