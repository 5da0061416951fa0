"""Update rules that write slots in their own ways: rows of a sparse gradient, rows made dense, means over rows."""

from typing import Any, Callable, Dict

import tensorflow as tf1
import tensorflow.compat.v1 as tf

from tests.behaviour.small import error_of
from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import CLASSES, samples
from tests.parity.scripts.models import cross_entropy, dense, weights
from tests.parity.scripts.optimizers import Inputs


class Dense(tf.train.Optimizer):
    """A mean of gradients, which are made dense where they are sparse."""

    def __init__(self) -> None:
        super().__init__(False, "Dense")

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "mean", self._name)

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        mean = self.get_slot(var, "mean")
        following = 0.9 * mean + 0.1 * grad
        return tf.group(tf.assign(mean, following), tf.assign_sub(var, 0.3 * following / (tf.abs(following) + 0.01)))

    def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> tf.Operation:
        mean = self.get_slot(handle, "mean")
        following = 0.9 * mean + 0.1 * grad
        return tf.group(mean.assign(following), handle.assign_sub(0.3 * following / (tf.abs(following) + 0.01)))

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> tf.Operation:
        shape = tf.shape(handle.read_value())
        return self._resource_apply_dense(tf.scatter_nd(indices[:, None], grad, shape), handle)


class Factored(tf.train.Optimizer):
    """As Adafactor: of a matrix the mean squares of rows and of columns are kept; of sparse gradients those of rows."""

    def __init__(self) -> None:
        super().__init__(False, "Factored")

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            shape = variable.shape.as_list()
            self._get_or_make_slot(variable, tf.zeros(shape[:1]), "rows", self._name)
            if len(shape) == 2:
                self._get_or_make_slot(variable, tf.zeros(shape[1:]), "columns", self._name)

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        rows, square = self.get_slot(var, "rows"), tf.square(grad) + 1e-6
        if grad.shape.ndims == 1:
            following = tf.assign(rows, 0.9 * rows + 0.1 * square)
            return tf.assign_sub(var, 0.05 * grad * tf.rsqrt(following))
        columns = self.get_slot(var, "columns")
        of_rows = tf.assign(rows, 0.9 * rows + 0.1 * tf.reduce_mean(square, 1))
        of_columns = tf.assign(columns, 0.9 * columns + 0.1 * tf.reduce_mean(square, 0))
        return tf.assign_sub(var, 0.05 * grad * tf.rsqrt(of_rows)[:, None] * tf.rsqrt(of_columns)[None, :] * 0.01)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        rows = self.get_slot(var, "rows")
        square = tf.reduce_mean(tf.square(grad.values), 1) + 1e-6
        following = 0.9 * tf.gather(rows, grad.indices) + 0.1 * square
        written = tf.scatter_update(rows, grad.indices, following)
        step = 0.05 * grad.values * tf.rsqrt(following)[:, None]
        with tf.control_dependencies([written]):
            return tf.scatter_sub(var, grad.indices, step)


class Stray(tf.train.GradientDescentOptimizer):
    """Counts updates of rows in a variable that is not a slot."""

    def _apply_sparse_duplicate_indices(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        count = tf.get_variable("count", [3], initializer=tf.zeros_initializer(), trainable=False)
        counted = tf.scatter_add(count, grad.indices, tf.ones_like(grad.indices, tf.float32))
        return tf.group(counted, super()._apply_sparse_duplicate_indices(grad, var))


class Constant(Dense):
    """Has the shape of a variable as a constant."""

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        return super()._apply_dense(grad + tf.zeros(var.shape), var)


MAKERS: Dict[str, Callable[[], tf.train.Optimizer]] = {
    "lazy_adam": lambda: tf1.contrib.opt.LazyAdamOptimizer(0.05),
    "dense": Dense,
    "factored": Factored,
    "stray": lambda: Stray(0.1),
    "constant": Constant,
}


def train(ctx: Context, optimizer: str, rows: int, path: str = "", resource: bool = False, **config: Any) -> None:
    """Begins with a checkpoint, if there is one, trains a table, and records the checkpoint of the end."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    table = weights("table", [rows, 6], use_resource=resource)
    found = tf.reduce_sum(tf.nn.embedding_lookup(table, inputs.ids % rows), 1)
    loss = cross_entropy(inputs.y, dense(found, CLASSES, "out"))
    train_op = MAKERS[optimizer]().minimize(loss)
    saver, directory = tf.train.Saver(), ctx.temporary_directory()
    ctx.record(names=sorted(variable.op.name for variable in tf.global_variables()))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        if path:
            saver.restore(sess, path)
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])
        fetched = {
            variable.op.name: value for variable, value in zip(tf.global_variables(), sess.run(tf.global_variables()))
        }
        ctx.results["fetched"] = [fetched]
        if ctx.worker == 0:
            ctx.record_checkpoint(saver.save(sess, directory + "/slots"))


def refused(ctx: Context, optimizer: str, rows: int, **config: Any) -> None:
    """What the error says."""
    ctx.record(error=error_of(train, ctx, optimizer, rows, **config))
