"""The loss scale of mixed precision (`amp.loss_scale`), and steps that are skipped because a gradient overflowed.

    gradients of all replicas --> boundary --+--> cond(finite) --> apply, global step + 1
                                             |        '----------> nothing
                                             +--> finite? --> good steps + 1, after 2000 of them scale x 2
                                                      '-----> good steps = 0, scale / 2

A fixed scale skips no step. The check is made after the gradient boundary, on the gradients of all replicas, stages and
micro batches, so all replicas decide alike. If the user changes gradients (clips them, for example), those that
tf.gradients returned are checked, too: a clip by value makes an infinite gradient finite. If one of them is not finite,
one of the applied gradients becomes NaN, and its all-reduce tells all replicas.

With `amp.debug_log`, replica 0 of each process names the first gradient of a skipped step that was not finite.
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
from epl.utils import tf_compat

FIRST_SCALE = 2.0**15
GOOD_STEPS = 2000  # steps without overflow before the scale grows
_FACTOR = 2.0

Pair = Tuple[Optional[Gradient], Any]
_HOST = "/device:CPU:0"


class ScaleUpdate(NamedTuple):
    """Names of the ops by which a call of apply_gradients reads and writes the loss scale."""

    reads: Tuple[str, ...]
    writes: Tuple[str, ...]


class LossScale:
    """The factor of the objective's gradients: one for all calls of tf.gradients of a graph.

    Attributes:
      value: `amp.loss_scale`: "dynamic", or the fixed scale.
      is_dynamic: whether it adapts.
      scale, good_steps: its variables, if it is dynamic.
      updates: its updates by the calls of apply_gradients, in the order in which they were built.
    """

    def __init__(self, graph: Graph, value: Union[str, float]) -> None:
        self.is_dynamic = value == "dynamic"
        self.taskgraph = graph.taskgraphs[0].index
        self.value = value
        self.updates: List[ScaleUpdate] = []
        if self.is_dynamic:
            with tf.control_dependencies(None), tf.name_scope(None), in_taskgraph(graph.tf_graph, self.taskgraph):
                self.scale = _variable("current_loss_scale", FIRST_SCALE)
                self.good_steps = _variable("good_steps", 0.0)

    def read(self) -> Optional[tf.Tensor]:
        """The value; None if it is 1."""
        if self.is_dynamic:
            return self.scale.read_value()
        return None if self.value == 1.0 else tf.constant(self.value, tf.float32, name="loss_scale")

    def update(self, finite: tf.Tensor) -> Tuple[tf.Operation, tf.Tensor]:
        """The op that adapts the scale after a step, and the value before; noted in `updates`."""
        scale, good = (
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
            for variable in (self.scale, self.good_steps)
        )
        select = tf.raw_ops.Select
        steps = good + 1.0
        larger = scale * _FACTOR
        grown = select(condition=tf.is_finite(larger), x=larger, y=scale)
        grows = tf.greater_equal(steps, GOOD_STEPS)
        smaller = tf.maximum(scale / _FACTOR, 1.0)
        new_scale = select(condition=finite, x=select(condition=grows, x=grown, y=scale), y=smaller)
        counts = tf.logical_and(finite, tf.logical_not(grows))
        new_good = select(condition=counts, x=steps, y=tf.zeros_like(steps))
        writes = [
            tf.raw_ops.AssignVariableOp(resource=self.scale.handle, value=new_scale),
            tf.raw_ops.AssignVariableOp(resource=self.good_steps.handle, value=new_good),
        ]
        self.updates.append(ScaleUpdate((scale.op.name, good.op.name), tuple(op.name for op in writes)))
        return tf.group(*writes), scale


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
    if not changed or not _skips(graph):
        return pairs
    earlier = [gradient for _, gradient in _returned(graph, pairs).values()]
    if not earlier:
        return pairs
    finite = _all_finite(earlier)
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
    gradients = [gradient for gradient, _ in pairs if gradient is not None]
    if not gradients or not _skips(graph):
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
            finite = _all_finite(gradients)
        done = tf.cond(finite, apply_as_user, lambda: tf.no_op("skip"), name="step")
        with in_taskgraph(graph.tf_graph, loss_scale.taskgraph):
            updated, scale = loss_scale.update(finite)
        told = [_tell(graph, pairs, finite, scale)] if Env.get().config.amp.debug_log else []
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


def _all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Whether all gradients are finite: computed for each TaskGraph, then for all of them."""
    by_taskgraph: Dict[Optional[int], List[tf.Tensor]] = {}
    for gradient in gradients:
        values = first_tensor(gradient)
        by_taskgraph.setdefault(taskgraph_index(values.op), []).append(values)
    found = []
    for index, tensors in by_taskgraph.items():
        with in_taskgraph(tensors[0].graph, index):
            found.append(tf.reduce_all(tf.stack([_finite(values) for values in tensors])))
    return found[0] if len(found) == 1 else tf.reduce_all(tf.stack(found))


def _finite(values: tf.Tensor) -> tf.Tensor:
    with values.graph.colocate_with(values.op, ignore_existing=True):
        return tf.reduce_all(tf.is_finite(values))


def _returned(graph: Graph, pairs: Sequence[Pair]) -> Dict[str, Tuple[str, Gradient]]:
    """The gradients from tf.gradients that the pairs are computed from."""
    ops = [first_tensor(gradient).op for gradient, _ in pairs if gradient is not None]
    return upstream(returned_gradients(graph), ops)


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


# ---- The message


def _tell(graph: Graph, pairs: Sequence[Pair], finite: tf.Tensor, scale: tf.Tensor) -> tf.Operation:
    """Prints the first gradient that is not finite, in the order of the backward pass."""
    checked: List[Tuple[str, Gradient]] = list(_returned(graph, pairs).values())
    checked += [
        (variable_name(variable) or str(variable), gradient) for gradient, variable in pairs if gradient is not None
    ]
    checked.sort(key=lambda one: readiness(one[1]))
    with tf.device(_HOST):
        names = tf.constant([name for name, _ in checked])
        bad = tf.stack([tf.logical_not(_finite(first_tensor(gradient))) for _, gradient in checked])
        first = tf.gather(names, tf.argmax(tf.cast(bad, tf.int32)))

        def tell() -> tf.Operation:
            text = [
                "Skipped a training step: the gradient of ",
                first,
                " is not finite; the loss scale was ",
                tf.as_string(scale, precision=0),
            ]
            told = tf.print(tf.strings.join(text), output_stream=sys.stderr)
            tf_compat.set_attr(told, REPLICA_0_ATTR, tf.AttrValue(b=True))
            return told

        return tf.cond(finite, lambda: tf.no_op("fine"), tell, name="debug_log").op
