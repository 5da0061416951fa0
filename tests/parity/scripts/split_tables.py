"""Tables in epl.split: sparse gradients changed row by row, and update rules that keep something for each row."""

from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np
import tensorflow as tf1
import tensorflow.compat.v1 as tf

from tests.behaviour.small import error_of
from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import samples
from tests.parity.scripts.models import cross_entropy, dense
from tests.parity.scripts.optimizers import Inputs
from tests.parity.scripts.splits import annotations

SHAPES = {"columns": (1003, 8), "rows": (20011, 1)}  # how two or three devices divide a table of that shape


class RowAdagrad(tf.train.Optimizer):
    """As Adagrad with a sum for each row: steps of a row are as long as the others of that row let them be."""

    def __init__(self) -> None:
        super().__init__(False, "RowAdagrad")

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            self._get_or_make_slot(variable, tf.fill(variable.shape[:1], 0.01), "sums", self._name)

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        return tf.assign_sub(var, 0.02 * grad).op

    def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> tf.Operation:
        return handle.assign_sub(0.02 * grad)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        sums, step = self._step(grad.values, var, grad.indices)
        with tf.control_dependencies([tf.scatter_update(self.get_slot(var, "sums"), grad.indices, sums)]):
            return tf.scatter_sub(var, grad.indices, step).op

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> tf.Operation:
        sums, step = self._step(grad, handle, indices)
        with tf.control_dependencies([self.get_slot(handle, "sums").scatter_update(tf.IndexedSlices(sums, indices))]):
            return handle.scatter_sub(tf.IndexedSlices(step, indices))

    def _step(self, values: tf.Tensor, var: Any, indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        sums = tf.gather(self.get_slot(var, "sums"), indices) + tf.reduce_mean(tf.square(values), 1)
        return sums, 0.01 * values * tf.rsqrt(sums)[:, None] + 0.001 * tf.gather(var, indices)


class NdDecay(tf.train.GradientDescentOptimizer):
    """Looks rows of the variable up as tf.gather_nd does."""

    def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
        decayed = grad + 0.1 * tf.gather_nd(handle, indices[:, None])
        return super()._resource_apply_sparse_duplicate_indices(decayed, handle, indices)


class FirstRow(tf.train.GradientDescentOptimizer):
    """Draws all rows to the first one."""

    def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
        grad += 0.1 * tf.gather(handle, [0])
        return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)


class ManyWays(tf.train.Optimizer):
    """Rows are chosen, given other shapes, written into copies of slots, and handed to Python."""

    def __init__(self) -> None:
        super().__init__(False, "ManyWays")

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "mean", self._name)

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        return tf.assign_sub(var, 0.02 * grad).op

    def _apply_sparse_duplicate_indices(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        grad = self._deduplicated(grad)
        values = tf.where(grad.indices % 2 > 0, grad.values, 0.5 * tf.ones_like(grad.values) + grad.values)
        values += 0.1 * tf.reshape(tf.fill([tf.size(values)], 0.1), tf.shape(values))
        lengths = tf.numpy_function(lambda rows: np.linalg.norm(rows, axis=1), [values], tf.float32)
        lengths.set_shape([None])
        mean = self.get_slot(var, "mean")
        following = tf.tensor_scatter_update(mean.read_value(), grad.indices[:, None], values)
        kept = lengths < 1.3
        step = tf.boolean_mask(values, kept)
        with tf.control_dependencies([tf.assign(mean, following)]):
            return tf.scatter_sub(var, tf.boolean_mask(grad.indices, kept), 0.02 * step).op

    def _deduplicated(self, grad: tf.IndexedSlices) -> tf.IndexedSlices:
        unique, places = tf.unique(grad.indices)
        values = tf.unsorted_segment_sum(grad.values, places, tf.size(unique))
        return tf.IndexedSlices(values, unique, grad.dense_shape)


MAKERS: Dict[str, Callable[[], tf.train.Optimizer]] = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.02),
    "lazy_adam": lambda: tf1.contrib.opt.LazyAdamOptimizer(0.005, epsilon=0.001),
    "row_adagrad": RowAdagrad,
    "nd_decay": lambda: NdDecay(0.02),
    "first_row": lambda: FirstRow(0.02),
    "many_ways": ManyWays,
}


def _clipped(gradient: Any) -> Any:
    """Each row of a sparse gradient at most so long."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.IndexedSlices(tf.clip_by_norm(gradient.values, 0.02, axes=[1]), gradient.indices, gradient.dense_shape)


def train(
    ctx: Context,
    cut: str,
    optimizer: str,
    clips: bool = False,
    resource: bool = False,
    path: str = "",
    ratios: Sequence[float] = (),
    **config: Any,
) -> None:
    """Begins with a checkpoint, if there is one, trains a table, and records the lengths of rows and a checkpoint."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, **config)
    replicate, split = annotations(ctx, ratios=ratios)
    data, inputs = samples(), Inputs()
    shape = SHAPES[cut]
    with replicate():
        hidden = dense(inputs.x, shape[1], "features", tf.nn.tanh)
    with split():
        initial = tf.random_normal_initializer(stddev=0.05, seed=4)
        table = tf.get_variable("table", shape, initializer=initial, use_resource=resource)
        ids = tf.mod(inputs.ids * 7919, shape[0])
        hidden += tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)
        wide = tf.layers.dense(hidden, 1001, name="wide", kernel_initializer=initial)
        loss = cross_entropy(inputs.y * 200 + inputs.ids[:, 0], wide)
    made = MAKERS[optimizer]()
    gradients, variables = zip(*made.compute_gradients(loss))
    if ctx.planned:
        from epl.ir.graph import Graph
        from epl.parallel.plan.replica_groups import ReplicaGroups

        held = {held.full_name: held.placement for held in Graph.of(loss.graph).state_of(ReplicaGroups).shards.values()}
        assert held["table"].dim == (0 if 0 in ratios else ("rows", "columns").index(cut)), held
    lengths = [tf.norm(one.values, axis=1) for one in gradients if isinstance(one, tf.IndexedSlices)]
    if clips:
        gradients = [_clipped(one) for one in gradients]
    train_op = made.apply_gradients(zip(gradients, variables), tf.train.get_or_create_global_step())
    with ctx.saving_session(path) as sess:
        for number in range(STEPS):
            found = sess.run([loss, lengths, train_op], inputs.feed(ctx, data, number))
            ctx.record(loss=found[0], longest=max(found[1][0]))


def refused(ctx: Context, **arguments: Any) -> None:
    """What the error says."""
    ctx.record(error=error_of(train, ctx, **arguments))
