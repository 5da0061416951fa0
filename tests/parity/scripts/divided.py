"""Batches that are read: `epl.replicate(n)` divides them among devices, one device has all of them."""

import contextlib
import math
from typing import Any, Optional, Sequence

import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.accumulation import CHANGES, Training
from tests.parity.scripts.data import FEATURES, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS, weights
from tests.parity.scripts.splits import SPLITS, annotations, minimize


def _batches(ctx: Context, rows: int = 0) -> Sequence[tf.Tensor]:
    """x, ids and y of one batch; `rows` of the stream are in a batch, those of a step by default."""
    data = samples()
    dataset = tf.data.Dataset.from_tensor_slices(tuple(map(ctx.stream, data))).batch(rows or ctx.batch)
    return dataset.make_one_shot_iterator().get_next()


def _steps(ctx: Context, rows: int) -> int:
    """How many steps there are data for, when `rows` rows are in a batch."""
    readers = max(ctx.local_replicas // ctx.together, 1) if ctx.planned else 1
    return math.ceil(len(ctx.stream(samples().y)) / ((rows or ctx.batch) * readers))


def _train(ctx: Context, loss: tf.Tensor, train_op: tf.Operation, rows: int = 0) -> None:
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
        for _ in range(_steps(ctx, rows)):
            ctx.record(loss=sess.run([loss, train_op])[0])
        ctx.record_variables(sess)


def train(
    ctx: Context,
    name: str,
    optimizer: str = "momentum",
    clip: Optional[float] = None,
    rows: int = 0,
    factor: float = 1.0,
    **config: Any,
) -> None:
    """Trains a model of the table on all data. One device has `factor` times the loss."""
    ctx.init(**config)
    loss = MODELS[name](*_batches(ctx, rows))
    train_op = minimize(OPTIMIZERS[optimizer](), loss if ctx.planned else loss * factor, clip)
    _train(ctx, loss, train_op, rows)


def accumulate(ctx: Context, name: str, steps: int, change: Optional[str] = None, **config: Any) -> None:
    """The same with gradient accumulation."""
    ctx.init(pipeline__num_micro_batch=steps, **config)
    losses = ctx.towers(MODELS[name], _batches(ctx))
    training = Training(
        ctx,
        steps,
        losses,
        OPTIMIZERS["momentum"](),
        change=CHANGES[change] if change else None,
        global_step=tf.train.get_or_create_global_step(),
    )
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            ctx.record(loss=training.run(sess, losses[0]))
        ctx.record_variables(sess)


def split(
    ctx: Context,
    name: str,
    optimizer: str = "momentum",
    clip: float = 0.0,
    rows: int = 0,
    groups: int = 1,
    apart: Sequence[int] = (),
    **config: Any,
) -> None:
    """A model of which a part is split."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=not apart, **config)
    loss = SPLITS[name](*_batches(ctx, rows), *annotations(ctx, groups, apart=apart))
    train_op = minimize(OPTIMIZERS[optimizer](), loss, clip)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(_steps(ctx, rows)):
            ctx.record(loss=sess.run([loss, train_op])[0])
        variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
        ctx.results["variables"] = [sess.run(variables)]


def sparse(ctx: Context, batched: bool) -> None:
    """Sparse tensors of a dataset: made of single rows and then batched, or made of a batch."""
    ctx.init()
    data = samples()
    hot = tf.data.Dataset.from_tensor_slices((ctx.stream(data.x), ctx.stream(data.y)))

    def features(x: tf.Tensor, y: tf.Tensor) -> Any:
        return tf.sparse.from_dense(tf.where(x > 0.3, x, tf.zeros_like(x))), y

    dataset = hot.batch(ctx.batch).map(features) if batched else hot.map(features).batch(ctx.batch)
    x, y = dataset.make_one_shot_iterator().get_next()
    hidden = tf.sparse.sparse_dense_matmul(x, weights("first", [FEATURES, 8]))
    loss = MODELS["layers"](hidden, None, y)
    _train(ctx, loss, minimize(OPTIMIZERS["momentum"](), loss))


def queue(ctx: Context) -> None:
    """tf.train.batch, whose last batch may be smaller."""
    ctx.init()
    data = samples()
    row = tf.train.slice_input_producer([ctx.stream(data.x), ctx.stream(data.y)], num_epochs=1, shuffle=False)
    x, y = tf.train.batch(row, ctx.batch, num_threads=1, allow_smaller_final_batch=True)
    loss = MODELS["layers"](x, None, y)
    train_op = minimize(OPTIMIZERS["momentum"](), loss)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coordinator)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while not coordinator.should_stop():
                ctx.record(loss=sess.run([loss, train_op])[0])
        coordinator.request_stop()
        coordinator.join(threads)
        ctx.record_variables(sess)
