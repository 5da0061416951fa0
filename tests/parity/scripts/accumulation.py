"""Gradient accumulation, and the same written out: sums kept in numpy, applied by a program without EPL."""

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.data import FEATURES, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS, dense
from tests.parity.scripts.optimizers import DecayedAdam, Inputs

Gradients = List[Any]
Change = Callable[[Gradients], Gradients]

ALL_OPTIMIZERS = dict(
    OPTIMIZERS,
    adagrad=lambda: tf.train.AdagradOptimizer(0.1),
    rmsprop=lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    ftrl=lambda: tf.train.FtrlOptimizer(0.1),
    decayed_adam=lambda: DecayedAdam(0.01, 0.1),
)


def clipped(gradients: Gradients) -> Gradients:
    """Clipped by their common norm."""
    return tf.clip_by_global_norm(gradients, 0.1)[0]


def doubled(gradients: Gradients) -> Gradients:
    """Each changed by itself."""
    return [None if gradient is None else 2.0 * gradient for gradient in gradients]


CHANGES = {"clipped": clipped, "doubled": doubled}


class Training:
    """What trains in runs of which every `steps`-th applies the mean of the gradients of the last `steps`.

    Under a plan it is the training op; by hand and plain it is programmed out.
    """

    def __init__(
        self,
        ctx: Context,
        steps: int,
        losses: List[tf.Tensor],
        optimizer: tf.train.Optimizer,
        variables: Optional[Sequence[tf.Variable]] = None,
        change: Optional[Change] = None,
        global_step: Optional[tf.Variable] = None,
    ) -> None:
        self.steps = steps
        self._planned = ctx.planned
        self._sums: List[Any] = []
        self._runs = 0
        variables = list(tf.trainable_variables() if variables is None else variables)
        self._updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        if ctx.planned:
            self._plan(losses[0], optimizer, variables, change, global_step)
            return
        towers = [tf.gradients(loss, variables, gate_gradients=True) for loss in losses]
        used = [i for i, gradient in enumerate(towers[0]) if gradient is not None]
        self._gradients = [[tower[i] for i in used] for tower in towers]
        self._fed = [[_placeholder(gradient) for gradient in tower] for tower in self._gradients]
        means = [tower if change is None else change(tower) for tower in self._fed]
        if len(means) > 1:
            mean = [tf.add_n([tf.convert_to_tensor(g) for g in same]) / len(same) for same in zip(*means)]
        else:
            mean = means[0]
        self._apply = optimizer.apply_gradients(zip(mean, [variables[i] for i in used]), global_step)

    def _plan(
        self,
        loss: tf.Tensor,
        optimizer: tf.train.Optimizer,
        variables: Sequence[tf.Variable],
        change: Optional[Change],
        global_step: Optional[tf.Variable],
    ) -> None:
        with tf.control_dependencies(self._updates):
            if change is None:
                self.train_op = optimizer.minimize(loss, global_step, variables)
            else:
                gradients = change(tf.gradients(loss, variables, gate_gradients=True))
                self.train_op = optimizer.apply_gradients(zip(gradients, variables), global_step)

    def run(self, sess: tf.Session, fetches: Any, feed: Optional[Dict[tf.Tensor, Any]] = None) -> Any:
        """One micro step; returns the values of the fetches."""
        if self._planned:
            return sess.run([fetches, self.train_op], feed)[0]
        values, _, gradients = sess.run([fetches, self._updates, self._gradients], feed)
        self._sums.append(gradients)
        self._runs += 1
        if self._runs % self.steps == 0:
            means: Dict[tf.Tensor, Any] = {}
            for place, towers in enumerate(zip(*self._sums)):
                for fed, same in zip(self._fed[place], zip(*towers)):
                    means.update(_mean(fed, same, self.steps))
            sess.run(self._apply, means)
            self._sums = []
        return values


def _placeholder(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        shape = [None] + gradient.values.shape.as_list()[1:]
        return tf.IndexedSlices(
            tf.placeholder(gradient.dtype, shape),
            tf.placeholder(gradient.indices.dtype, [None]),
            tf.placeholder_with_default(gradient.dense_shape, [2]),
        )
    return tf.placeholder(gradient.dtype, gradient.shape)


def _mean(fed: Any, same: Sequence[Any], steps: int) -> Dict[tf.Tensor, Any]:
    """Feeds the mean of the gradients of several runs; slices are joined, as those of one large batch would be."""
    if isinstance(fed, tf.IndexedSlices):
        return {
            fed.values: np.concatenate([slices.values for slices in same]) / np.float32(steps),
            fed.indices: np.concatenate([slices.indices for slices in same]),
        }
    return {fed: np.sum(same, axis=0) / np.float32(steps)}


def train(
    ctx: Context, name: str, steps: int, optimizer: str = "momentum", change: Optional[str] = None, **config: Any
) -> None:
    """Trains a model of the table, fed."""
    ctx.init(pipeline__num_micro_batch=steps, **config)
    data, inputs = samples(), Inputs()
    losses = ctx.towers(MODELS[name], inputs.tensors())
    training = Training(
        ctx,
        steps,
        losses,
        ALL_OPTIMIZERS[optimizer](),
        change=CHANGES[change] if change else None,
        global_step=tf.train.get_or_create_global_step(),
    )
    loss = tf.add_n(losses) / len(losses) if len(losses) > 1 else losses[0]
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for step in range(STEPS):
            ctx.record(loss=training.run(sess, loss, inputs.feed(ctx, data, step)))
        ctx.record_variables(sess)


def summed(ctx: Context, steps: int, factor: float) -> None:
    """The reduction method "sum": gradients are larger by the number of replicas and micro steps."""
    ctx.init(pipeline__num_micro_batch=steps, communication__gradients_reduce_method="sum")
    data, inputs = samples(), Inputs()
    loss = MODELS["embedding"](*inputs.tensors())
    training = Training(ctx, steps, [loss if ctx.planned else loss * factor], OPTIMIZERS["momentum"]())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(loss=training.run(sess, loss, inputs.feed(ctx, data, step)))
        ctx.record_variables(sess)


def fed_uneven(ctx: Context, steps: int, name: str) -> None:
    """Another number of rows in each run, which no number of replicas divides."""
    ctx.init(pipeline__num_micro_batch=steps)
    data, inputs = samples(), Inputs()
    loss = MODELS[name](*inputs.tensors())
    training = Training(ctx, steps, [loss], OPTIMIZERS["momentum"]())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            rows = slice(step * GLOBAL_BATCH, step * GLOBAL_BATCH + 11 - step % 3)
            feed = {inputs.x: data.x[rows], inputs.ids: data.ids[rows], inputs.y: data.y[rows]}
            ctx.record(loss=training.run(sess, loss, feed))
        ctx.record_variables(sess)


def iterated(ctx: Context, steps: int, epochs: int = 2) -> None:
    """tf.data, until its end, again and again; the epochs end within a training step."""
    ctx.init(pipeline__num_micro_batch=steps)
    data = samples()
    rows = tf.data.Dataset.from_tensor_slices((ctx.stream(data.x), ctx.stream(data.ids), ctx.stream(data.y)))
    iterator = rows.batch(ctx.batch, drop_remainder=True).make_initializable_iterator()
    losses = ctx.towers(MODELS["embedding"], iterator.get_next())
    training = Training(ctx, steps, losses, OPTIMIZERS["adam"](), global_step=tf.train.get_or_create_global_step())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(epochs):
            sess.run(iterator.initializer)
            while True:
                try:
                    ctx.record(loss=training.run(sess, losses[0]))
                except tf.errors.OutOfRangeError:
                    break
        ctx.record_variables(sess)


def alternating(ctx: Context, steps: int) -> None:
    """Two losses with an optimizer each, run in turn: each counts its own micro steps."""
    ctx.init(pipeline__num_micro_batch=steps)
    data, inputs = samples(), Inputs()
    with tf.variable_scope("maker"):
        made = dense(inputs.x, FEATURES, "make", tf.nn.tanh)
    with tf.variable_scope("judge"):
        real = dense(inputs.x, 1, "judge")
    with tf.variable_scope("judge", reuse=True):
        fake = dense(made, 1, "judge")
    judge_loss = tf.reduce_mean(tf.nn.softplus(fake) + tf.nn.softplus(-real))
    maker_loss = tf.reduce_mean(tf.nn.softplus(-fake))
    judge = Training(
        ctx, steps, [judge_loss], tf.train.AdamOptimizer(0.01, name="judge"), tf.trainable_variables("judge")
    )
    maker = Training(
        ctx, steps, [maker_loss], tf.train.AdamOptimizer(0.01, name="maker"), tf.trainable_variables("maker")
    )
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            # Not evenly: the judge runs twice as often.
            training = maker if step % 3 == 2 else judge
            ctx.record(loss=training.run(sess, judge_loss, inputs.feed(ctx, data, step)))
        ctx.record_variables(sess)


def clipped_together(ctx: Context, steps: int, **config: Any) -> None:
    """One differentiation, all gradients clipped together, two optimizers that apply a part each."""
    ctx.init(pipeline__num_micro_batch=steps, **config)
    data, inputs = samples(), Inputs()
    loss = MODELS["embedding"](*inputs.tensors())
    variables = tf.trainable_variables()
    first, second = tf.train.AdagradOptimizer(0.1), tf.train.MomentumOptimizer(0.05, 0.9)
    if ctx.planned:
        gradients = clipped(tf.gradients(loss, variables))
        train_op = tf.group(
            first.apply_gradients(zip(gradients[:1], variables[:1])),
            second.apply_gradients(zip(gradients[1:], variables[1:])),
        )
    else:
        training = Training(ctx, steps, [loss], _Both(first, second), change=clipped)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = inputs.feed(ctx, data, step)
            value = sess.run([loss, train_op], feed)[0] if ctx.planned else training.run(sess, loss, feed)
            ctx.record(loss=value)
        ctx.record_variables(sess)


class _Both:
    """Two optimizers, the first for the first variable."""

    def __init__(self, first: tf.train.Optimizer, second: tf.train.Optimizer) -> None:
        self._first, self._second = first, second

    def apply_gradients(self, pairs: Any, global_step: Any) -> tf.Operation:
        pairs = list(pairs)
        return tf.group(self._first.apply_gradients(pairs[:1]), self._second.apply_gradients(pairs[1:]))


def keras_optimizer(ctx: Context, steps: int) -> None:
    """An optimizer of tf.keras, called in the graph."""
    ctx.init(pipeline__num_micro_batch=steps)
    data, inputs = samples(), Inputs()
    with tf.variable_scope("net", use_resource=True):
        loss = MODELS["layers"](*inputs.tensors())
    optimizer = tf.keras.optimizers.Adam(0.01)
    variables = tf.trainable_variables()
    if ctx.planned:
        train_op = optimizer.apply_gradients(zip(tf.gradients(loss, variables), variables))
    else:
        training = Training(ctx, steps, [loss], _Keras(optimizer))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = inputs.feed(ctx, data, step)
            value = sess.run([loss, train_op], feed)[0] if ctx.planned else training.run(sess, loss, feed)
            ctx.record(loss=value)
        ctx.record_variables(sess)


class _Keras:
    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def apply_gradients(self, pairs: Any, global_step: Any) -> tf.Operation:
        return self._optimizer.apply_gradients(pairs)


def uneven_workers(ctx: Context, steps: int, batches: Sequence[int]) -> None:
    """Process i has batches[i] batches; two epochs, the first of which ends within a training step."""
    ctx.init(pipeline__num_micro_batch=steps)
    data = samples()
    count = batches[ctx.worker] * 4
    rows = tf.data.Dataset.from_tensor_slices((data.x[:count], data.ids[:count], data.y[:count])).batch(4)
    iterator = rows.make_initializable_iterator()
    loss = MODELS["embedding"](*iterator.get_next())
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            sess.run(iterator.initializer)
            runs = 0
            try:
                while True:
                    ctx.record(loss=sess.run([loss, train_op])[0])
                    runs += 1
            except tf.errors.OutOfRangeError:
                ctx.record(runs=runs)
        ctx.record_variables(sess)


def estimator(ctx: Context, steps: int) -> None:
    """tf.estimator.Estimator, stopped by global steps; checkpoints and resuming."""
    ctx.init(annotate=False, pipeline__num_micro_batch=steps)
    data = samples()

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tf.estimator.EstimatorSpec:
        with ctx.scope():
            loss = MODELS["layers"](features, None, labels)
        train_op = OPTIMIZERS["momentum"]().minimize(loss, tf.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices((ctx.stream(data.x), ctx.stream(data.y)))
        return rows.batch(ctx.batch, drop_remainder=True).repeat()

    directory = ctx.temporary_directory()
    trainer = tf.estimator.Estimator(model_fn, directory, tf.estimator.RunConfig(save_checkpoints_steps=1))
    trainer.train(input_fn, steps=2)
    checkpoint = tf.train.latest_checkpoint(directory)
    ctx.record(checkpoint=checkpoint)
    if checkpoint:
        ctx.record(
            saved={name: tf.train.load_variable(checkpoint, name) for name, _ in tf.train.list_variables(checkpoint)}
        )
