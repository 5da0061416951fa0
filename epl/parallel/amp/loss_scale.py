"""The loss scale of mixed precision (`amp.loss_scale`), and steps that are skipped because a gradient overflowed.

    gradients of all replicas --> boundary --+--> cond(finite) --> apply, global step + 1
                                             |        '----------> nothing
                                             +--> finite? --> good steps + 1, after 2000 of them scale x 2
                                                      '-----> good steps = 0, scale / 2

A fixed scale skips no step. The check is made after the gradient boundary, on the gradients of all replicas, stages and
micro batches, so all replicas decide alike. If the user changes gradients (clips them, for example), those that
tf.gradients returned are checked, too: a clip by value makes an infinite gradient finite. If one of them is not finite,
one of the applied gradients becomes NaN, and its all-reduce tells all replicas.

With `amp.debug_log`, replica 0 of each process names the first gradient of a skipped step that was not finite. Without
it, it does so once, if an optimizer has skipped 20 steps in a row and the scale has reached its minimum.
"""

import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import readiness, returned_gradients, upstream, variable_name
from epl.ir.graph import Graph, first_tensor
from epl.ir.taskgraph import REPLICA_0_ATTR
from epl.parallel.accumulation.apply import control_flow_v1
from epl.parallel.accumulation.counters import HOST, new_counter
from epl.utils import tf_compat

FIRST_SCALE = 2.0**15
GOOD_STEPS = 2000  # steps without overflow before the scale grows
STUCK_STEPS = 20  # skipped in a row, at the smallest scale: nothing is trained any more
_FACTOR = 2.0
_SMALLEST = 1.0
_SAID = tf.int64.min // 2  # a count of skipped steps that never reaches STUCK_STEPS

Pair = Tuple[Optional[Gradient], Any]


class ScaleUpdate(NamedTuple):
    """Names of the ops by which a call of apply_gradients reads and writes the loss scale."""

    reads: Tuple[str, ...]
    writes: Tuple[str, ...]


class Checked(NamedTuple):
    """Gradients of one TaskGraph, and which of them are finite.

    Attributes:
      names: of their variables, in words.
      readiness: numbers that order them as the backward pass computes them.
      finite: one truth value for each.
    """

    names: Tuple[str, ...]
    readiness: Tuple[int, ...]
    finite: tf.Tensor


class LossScale:
    """The factor of the objective's gradients: one for all calls of tf.gradients of a graph.

    Attributes:
      value: `amp.loss_scale`: "dynamic", or the fixed scale.
      is_dynamic: whether it adapts.
      scale, good_steps: its variables, if it is dynamic.
      updates: its updates by the calls of apply_gradients, in the order in which they were built.
      unchanged: of the call of apply_gradients in progress, the gradients that tf.gradients returned, if the user has
        changed them since.
    """

    def __init__(self, graph: Graph, value: Union[str, float]) -> None:
        self.is_dynamic = value == "dynamic"
        self.taskgraph = graph.taskgraphs[0].index
        self.value = value
        self.updates: List[ScaleUpdate] = []
        self.unchanged: List[Checked] = []
        if self.is_dynamic:
            with tf.control_dependencies(None), tf.name_scope(None), in_taskgraph(graph.tf_graph, self.taskgraph):
                self.scale = _variable("current_loss_scale", FIRST_SCALE)
                self.good_steps = _variable("good_steps", 0.0)
            for variable in (self.scale, self.good_steps):
                tf_compat.tell_keras(variable)

    def read(self) -> Optional[tf.Tensor]:
        """The value; None if it is 1."""
        if self.is_dynamic:
            return self.scale.read_value()
        return None if self.value == 1.0 else tf.constant(self.value, tf.float32, name="loss_scale")

    def update(self, finite: tf.Tensor) -> Tuple[tf.Operation, tf.Tensor, tf.Tensor]:
        """The op that adapts the scale after a step, and the values before and after; noted in `updates`."""
        scale, good = (
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
            for variable in (self.scale, self.good_steps)
        )
        select = tf.raw_ops.Select
        steps = good + 1.0
        larger = scale * _FACTOR
        grown = select(condition=tf.is_finite(larger), x=larger, y=scale)
        grows = tf.greater_equal(steps, GOOD_STEPS)
        smaller = tf.maximum(scale / _FACTOR, _SMALLEST)
        new_scale = select(condition=finite, x=select(condition=grows, x=grown, y=scale), y=smaller)
        counts = tf.logical_and(finite, tf.logical_not(grows))
        new_good = select(condition=counts, x=steps, y=tf.zeros_like(steps))
        writes = [
            tf.raw_ops.AssignVariableOp(resource=self.scale.handle, value=new_scale),
            tf.raw_ops.AssignVariableOp(resource=self.good_steps.handle, value=new_good),
        ]
        self.updates.append(ScaleUpdate((scale.op.name, good.op.name), tuple(op.name for op in writes)))
        return tf.group(*writes), scale, new_scale


def loss_scale_of(graph: Graph) -> LossScale:
    """The loss scale of a graph, created at the first call."""
    found = graph.state_of(LossScale)
    return found or graph.keep(LossScale, LossScale(graph, Env.get().config.amp.loss_scale))


def mark_overflow(graph: Graph, pairs: List[Pair], changed: bool) -> List[Pair]:
    """Makes an applied gradient NaN if one that tf.gradients returned is not finite.

    Args:
      graph: the annotated model.
      pairs: the (gradient, variable) pairs to apply.
      changed: whether the user has changed a gradient after tf.gradients.
    """
    if not _skips(graph):
        return pairs
    scale = loss_scale_of(graph)
    scale.unchanged = _check(_returned(graph, pairs)) if changed else []
    if not scale.unchanged:
        return pairs
    finite = _all_finite(scale.unchanged)
    nothing = tf.raw_ops.Select(condition=finite, x=tf.constant(0.0), y=tf.constant(float("nan")), name="overflow")
    result = list(pairs)
    dense = [i for i, (gradient, _) in enumerate(pairs) if isinstance(gradient, tf.Tensor)]
    sparse = [i for i, (gradient, _) in enumerate(pairs) if isinstance(gradient, tf.IndexedSlices)]
    for i in [min(dense, key=lambda i: _elements(pairs[i][0]))] if dense else sparse:
        result[i] = (_plus(pairs[i][0], nothing), pairs[i][1])
    return result


def apply_if_finite(graph: Graph, pairs: List[Pair], apply: Callable[[], Any]) -> Any:
    """Applies gradients, unless one of them is not finite; adapts the loss scale.

    Args:
      graph: the annotated model.
      pairs: the (gradient, variable) pairs to apply, after the boundaries.
      apply: applies them.

    Returns:
      What `apply` returns, or a training op.
    """
    applied = [(variable_name(variable) or str(variable), one) for one, variable in pairs if one is not None]
    if not applied or not _skips(graph):
        return apply()
    train_ops = tf.get_collection_ref(tf.GraphKeys.TRAIN_OP)
    before = len(train_ops)
    user_scope = graph.tf_graph.get_name_scope()
    loss_scale = loss_scale_of(graph)

    def apply_as_user() -> tf.Operation:
        """Applies with the op names of a step without tf.cond: variables are named after them."""
        graph.common_branches.append(tf_compat.current_context(graph.tf_graph))
        with tf.name_scope(user_scope + "/" if user_scope else None):
            result = apply()
        return tf.group(*[value for value in tf.nest.flatten(result) if value is not None])

    with tf.name_scope("epl_loss_scale"), control_flow_v1():
        with in_taskgraph(graph.tf_graph, loss_scale.taskgraph):
            checked = _check(applied)
            finite = _all_finite(checked)
        done = tf.cond(finite, apply_as_user, lambda: tf.no_op("skip"), name="step")
        with in_taskgraph(graph.tf_graph, loss_scale.taskgraph):
            updated, before_step, after_step = loss_scale.update(finite)
            checked += loss_scale.unchanged
            told = [_tell_stuck(graph, checked, finite, after_step)]
            if Env.get().config.amp.debug_log:
                told.append(_tell_skip(checked, finite, before_step))
        train_op = tf.group(done, updated, *told, name="train_op")
    train_ops[before:] = [train_op] if len(train_ops) > before else []
    return train_op


def _skips(graph: Graph) -> bool:
    """Whether a step of this graph may be skipped."""
    found = graph.state_of(LossScale)
    return found is not None and found.is_dynamic


def _variable(name: str, value: float) -> tf.Variable:
    with tf_compat.silent_deprecations():
        return tf.Variable(value, trainable=False, name=name, dtype=tf.float32, use_resource=True)


# ---- The check


def _check(gradients: Sequence[Tuple[str, Gradient]]) -> List[Checked]:
    """Which of some gradients, with the names of their variables, are finite: computed for each TaskGraph."""
    by_taskgraph: Dict[Optional[int], List[Tuple[str, Gradient]]] = {}
    for name, gradient in gradients:
        by_taskgraph.setdefault(taskgraph_index(first_tensor(gradient).op), []).append((name, gradient))
    checked = []
    for index, some in by_taskgraph.items():
        with in_taskgraph(first_tensor(some[0][1]).graph, index):
            finite = tf.stack([_finite(first_tensor(gradient)) for _, gradient in some])
        names = tuple(name for name, _ in some)
        checked.append(Checked(names, tuple(readiness(gradient) for _, gradient in some), finite))
    return checked


def _all_finite(checked: Sequence[Checked]) -> tf.Tensor:
    found = []
    for one in checked:
        with in_taskgraph(one.finite.graph, taskgraph_index(one.finite.op)):
            found.append(tf.reduce_all(one.finite))
    return found[0] if len(found) == 1 else tf.reduce_all(tf.stack(found))


def _finite(values: tf.Tensor) -> tf.Tensor:
    with values.graph.colocate_with(values.op, ignore_existing=True):
        return tf.reduce_all(tf.is_finite(values))


def _returned(graph: Graph, pairs: Sequence[Pair]) -> List[Tuple[str, Gradient]]:
    """The gradients from tf.gradients that the pairs are computed from, with the names of their variables."""
    ops = [first_tensor(gradient).op for gradient, _ in pairs if gradient is not None]
    return list(upstream(returned_gradients(graph), ops).values())


def _plus(gradient: Any, nothing: tf.Tensor) -> Gradient:
    values = first_tensor(gradient)
    with in_taskgraph(values.graph, taskgraph_index(values.op)):
        with values.graph.colocate_with(values.op, ignore_existing=True):
            marked = values + tf.cast(nothing, values.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(marked, gradient.indices, gradient.dense_shape)
    return marked


def _elements(gradient: Any) -> float:
    count = gradient.shape.num_elements()
    return float("inf") if count is None else count


# ---- The messages


def _tell_skip(checked: Sequence[Checked], finite: tf.Tensor, scale: tf.Tensor) -> tf.Operation:
    """Prints which gradient made this step be skipped."""

    def text() -> List[Any]:
        return [
            "Skipped a training step: the gradient of ",
            _first_not_finite(checked),
            " is not finite; the loss scale was ",
            tf.as_string(scale, precision=0),
        ]

    with tf.device(HOST):
        return _print_if(tf.logical_not(finite), text, "debug_log")


def _tell_stuck(graph: Graph, checked: Sequence[Checked], finite: tf.Tensor, scale: tf.Tensor) -> tf.Operation:
    """Prints once that nothing is trained any more: no smaller scale makes these gradients finite."""
    counter, skipped = new_counter()
    graph.local_variables.add(counter.op.name)
    select = tf.raw_ops.Select

    def text() -> List[Any]:
        return [
            "WARNING: ",
            tf.as_string(skipped + 1),
            " training steps in a row were skipped: the gradient of ",
            _first_not_finite(checked),
            " is not finite, and the loss scale is 1, so no smaller one can help: nothing is trained. Train some steps "
            "with amp.level ''. If the loss is not finite there, look at the data, the learning rate, logarithms and "
            "divisions of the model (tf.debugging.check_numerics). If it is, an activation is too large for float16. "
            "This is said once.",
        ]

    with tf.device(HOST):
        count = skipped + 1
        is_due = tf.logical_and(tf.greater_equal(count, STUCK_STEPS), tf.less_equal(scale, _SMALLEST))
        is_due = tf.logical_and(tf.logical_not(finite), is_due)
        more = select(condition=is_due, x=tf.constant(_SAID, tf.int64), y=count)
        following = select(condition=finite, x=tf.minimum(skipped, 0), y=more)
        counted = tf.raw_ops.AssignVariableOp(resource=counter, value=following)
        return tf.group(counted, _print_if(is_due, text, "skipped_in_a_row"))


def _first_not_finite(checked: Sequence[Checked]) -> tf.Tensor:
    """The name of the first variable, in the order of the backward pass, whose gradient is not finite."""
    finite = tf.concat([one.finite for one in checked], 0)
    order = tf.constant([number for one in checked for number in one.readiness], tf.int64)
    last = tf.fill(tf.shape(order), tf.int64.max)
    first = tf.argmin(tf.raw_ops.Select(condition=finite, x=last, y=order))
    return tf.gather(tf.constant([name for one in checked for name in one.names]), first)


def _print_if(condition: tf.Tensor, text: Callable[[], List[Any]], name: str) -> tf.Operation:
    """Prints what `text` gives, parts of one line, on standard error; replica 0 alone does."""

    def tell() -> tf.Operation:
        told = tf.print(tf.strings.join(text()), output_stream=sys.stderr)
        tf_compat.set_attr(told, REPLICA_0_ATTR, tf.AttrValue(b=True))
        return told

    return tf.cond(condition, tell, lambda: tf.no_op("fine"), name=name).op
