"""Splits whose devices have different numbers of rows."""

from typing import Any, Dict

import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.accumulation import CHANGES, Training
from tests.parity.scripts.data import samples
from tests.parity.scripts.optimizers import Inputs
from tests.parity.scripts.splits import MODELS, OPTIMIZERS, annotations, minimize, parts

# Of each process but the first one, which has the rest.
FURTHER = [5, 2, 4]


def _local_rows(ctx: Context, step: int) -> slice:
    """What this process feeds: in each step another number of rows, of all of which one device is fed the sum."""
    begin, end = step * GLOBAL_BATCH, step * GLOBAL_BATCH + 13 + step % 3
    if not ctx.planned:
        return slice(begin, end)
    ends = [end - sum(FURTHER[: ctx.workers - 1 - worker]) for worker in range(ctx.workers)]
    return slice(ends[ctx.worker - 1] if ctx.worker else begin, ends[ctx.worker])


def train(
    ctx: Context, name: str, optimizer: str = "momentum", clip: float = 0.0, groups: int = 1, **config: Any
) -> None:
    """Trains a model of `splits`; the loss that is recorded is that of all rows."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, **config)
    inputs = Inputs()
    loss = _loss(ctx, name, inputs, groups)
    train_op = minimize(OPTIMIZERS[optimizer](), loss, clip)
    _show_of_all(ctx, loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], _feed(ctx, inputs, step))[0])
        _record(ctx, sess)


def accumulated(
    ctx: Context, name: str, steps: int, optimizer: str = "momentum", change: str = "", groups: int = 1, **config: Any
) -> None:
    """The same with accumulation; the runs of a training step weigh alike."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, pipeline__num_micro_batch=steps, **config)
    inputs = Inputs()
    loss = _loss(ctx, name, inputs, groups)
    training = Training(
        ctx,
        steps,
        [loss],
        OPTIMIZERS[optimizer](),
        change=CHANGES[change] if change else None,
        global_step=tf.train.get_or_create_global_step(),
    )
    _show_of_all(ctx, loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(loss=training.run(sess, loss, _feed(ctx, inputs, step)))
        _record(ctx, sess)


def _feed(ctx: Context, inputs: Inputs, step: int) -> Dict[tf.Tensor, Any]:
    return dict(zip(inputs.tensors(), [values[_local_rows(ctx, step)] for values in samples()]))


def _loss(ctx: Context, name: str, inputs: Inputs, groups: int) -> tf.Tensor:
    """Of the model; by hand, the mean over towers that have about as many rows each, weighed by them."""
    rows = tf.shape(inputs.y)[0]
    sizes = [(rows + replica) // ctx.replicas for replica in range(ctx.replicas)]
    scopes = annotations(ctx, groups)
    losses = ctx.towers(lambda *tensors: MODELS[name](*tensors, *scopes), inputs.tensors(), sizes)
    if len(losses) == 1:
        return losses[0]
    return tf.add_n([loss * tf.cast(size / rows, loss.dtype) for loss, size in zip(losses, sizes)])


def _show_of_all(ctx: Context, loss: tf.Tensor) -> None:
    """Has the loss fetched as the mean over the rows of all processes."""
    if ctx.planned:
        import epl

        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)


def _record(ctx: Context, sess: tf.Session) -> None:
    variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
    ctx.results["variables"] = [sess.run(variables)]
    if ctx.planned:
        ctx.results["parts"] = parts(sess)
