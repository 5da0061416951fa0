"""Small ResNet blocks with batch norm, and how they are trained."""

from typing import Any, Callable, Dict, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.accumulation import CHANGES, Training
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.uneven import cut

Norm = Callable[[tf.Tensor, str], tf.Tensor]


def layers(maps: tf.Tensor, name: str, fused: bool = False, training: Any = True) -> tf.Tensor:
    return tf.layers.batch_normalization(maps, training=training, momentum=0.8, epsilon=0.01, fused=fused, name=name)


def fused(maps: tf.Tensor, name: str) -> tf.Tensor:
    return layers(maps, name, True)


def half_frozen(maps: tf.Tensor, name: str) -> tf.Tensor:
    """Fine-tuning: the first block has the statistics that it was trained with."""
    return layers(maps, name, training=not name.startswith("block1"))


def fused_chosen(maps: tf.Tensor, name: str) -> tf.Tensor:
    return layers(maps, name, True, tf.get_collection("is_training")[0])


def fused_keras(maps: tf.Tensor, name: str) -> tf.Tensor:
    return keras(maps, name, True)


def fused_contrib(maps: tf.Tensor, name: str) -> tf.Tensor:
    return contrib(maps, name, True)


def keras(maps: tf.Tensor, name: str, fused: bool = False) -> tf.Tensor:
    layer = tf.keras.layers.BatchNormalization(momentum=0.8, epsilon=0.01, fused=fused, name=name, dtype=maps.dtype)
    made = layer(maps, training=True)
    for update in layer.updates:
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return made


def contrib(maps: tf.Tensor, name: str, fused: bool = False) -> tf.Tensor:
    from tensorflow.contrib import layers as contrib_layers

    return contrib_layers.batch_norm(
        maps, decay=0.8, epsilon=0.01, scale=True, is_training=True, fused=fused, scope=name
    )


def moments(maps: tf.Tensor, name: str) -> tf.Tensor:
    """By hand: the ops have numbers in their names, which those before them shift."""
    mean, variance = tf.nn.moments(maps, [0, 1, 2])
    return tf.nn.batch_normalization(maps, mean, variance, None, None, 0.01)


def chosen(maps: tf.Tensor, name: str) -> tf.Tensor:
    """Whether it trains is fed."""
    return layers(maps, name, training=tf.get_collection("is_training")[0])


NORMS: Dict[str, Norm] = {one.__name__: one for one in (layers, half_frozen, keras, contrib, chosen)}
FUSED: Dict[str, Norm] = {one.__name__: one for one in (fused, fused_chosen, fused_keras, fused_contrib)}


def _initializer(shape: Sequence[int], dtype: Any = tf.float32, partition_info: Any = None, **unused: Any) -> tf.Tensor:
    size = int(np.prod(shape))
    return tf.constant(np.sin(np.arange(size) * 1.7 + 1).reshape(shape) / np.sqrt(size / shape[-1]), dtype)


def _convolved(maps: tf.Tensor, filters: int, name: str, size: int = 3) -> tf.Tensor:
    return tf.layers.conv2d(
        maps, filters, size, padding="same", use_bias=False, kernel_initializer=_initializer, name=name
    )


def block(norm: Norm, maps: tf.Tensor, filters: int, name: str) -> tf.Tensor:
    """A residual block; the batch norm of the shortcut and those of the other branch do not wait for each other.

    With `gradient_checkpoint.type` "collection" its output is a checkpoint.
    """
    shortcut = norm(_convolved(maps, filters, name + "_shortcut", 1), name + "_norm_shortcut")
    inner = tf.nn.relu(norm(_convolved(maps, filters, name + "_a"), name=name + "_norm_a"))
    made = tf.nn.relu(shortcut + norm(_convolved(inner, filters, name + "_b"), name + "_norm_b"))
    tf.add_to_collection("checkpoints", made)
    return made


def blocks(norm: Norm, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    maps = block(norm, tf.reshape(x, [-1, 2, 3, FEATURES // 6]), 4, "block1")
    hidden = tf.reduce_mean(block(norm, maps, 3, "block2"), [1, 2])
    logits = tf.layers.dense(hidden, CLASSES, kernel_initializer=_initializer, name="logits")
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def train(
    ctx: Context,
    norm: str,
    dtype: str = "float64",
    shares: Sequence[int] = (),
    alone: bool = False,
    reversed_rows: bool = False,
    steps: int = 1,
    shown: bool = False,
    change: str = "",
    **config: Any,
) -> None:
    """Trains in a plain session, with momentum.

    Args:
      ctx: the run.
      norm: of NORMS or FUSED.
      dtype: of the model.
      shares: rows of each replica, in proportion; equal by default.
      alone: only the first worker evaluates, on all rows of a batch.
      reversed_rows: each batch has its rows in reverse order, which means the same.
      steps: runs of a training step.
      shown: the first worker alone builds a summary of moments, before the model.
      change: of CHANGES, what is done to gradients before they are applied.
      config: of EPL.
    """
    if shares:
        config["auto__balance"] = ":".join(map(str, shares))
    ctx.init(pipeline__num_micro_batch=steps, **config)
    data = samples()
    x = tf.placeholder(dtype, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    tf.add_to_collection("is_training", tf.placeholder_with_default(True, [], "is_training"))
    if shown and ctx.worker == 0:
        tf.summary.scalar("shown", tf.reduce_sum(tf.nn.moments(x, [0])[0]))
    loss = blocks({**NORMS, **FUSED, "moments": moments}[norm], x, y)
    _, update = tf.metrics.mean(loss)
    by_rows = tf.gradients(loss, x)[0] if alone else None
    global_step = tf.train.get_or_create_global_step()
    changes = CHANGES[change] if change else None
    training = Training(
        ctx, steps, [loss], tf.train.MomentumOptimizer(0.1, 0.9), change=changes, global_step=global_step
    )
    if ctx.planned and shares:
        import epl

        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for step in range(STEPS):
            rows = np.arange(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
            rows = rows[::-1] if reversed_rows else rows
            if ctx.planned:
                sizes = cut(GLOBAL_BATCH, shares or [1] * ctx.replicas)
                own = ctx.replicas // ctx.workers
                rows = rows[sum(sizes[: ctx.worker * own]) : sum(sizes[: (ctx.worker + 1) * own])]
            feed = {x: data.x[rows] * 3 + 5, y: data.y[rows]}
            ctx.record(loss=training.run(sess, loss, feed))
        ctx.record(recomputed=sum("EPL_RECOMPUTE/" in op.name for op in sess.graph.get_operations()))
        if alone and ctx.worker == 0:
            is_training = tf.get_collection("is_training")[0]
            feed = {x: data.x[:6], y: data.y[:6]}
            value = [sess.run(loss, {**feed, is_training: trains}) for trains in (False, True)]
            ctx.record(evaluated=value, metric=sess.run(update, {**feed, is_training: False}))
            ctx.record(by_rows=sess.run(by_rows, feed))
        ctx.record_variables(sess)


def statistics(
    ctx: Context, norm: str, shares: Sequence[int], part: int = -1, alone: bool = False, **config: Any
) -> None:
    """Updates moving averages in steps that leave the weights alone; reads batches with `shares` rows of each replica.

    Plain, `part` says of which replica the rows are. The averages are updated once more on what is read, in a job of
    one worker without a training step, and once by hand, on rows that are fed. `alone`: the first worker alone does
    the former, without a training step.
    """
    ctx.init(**config)
    data, ends = samples(), np.cumsum(shares)
    own = len(shares) // ctx.workers
    parts = range(ctx.worker * own, (ctx.worker + 1) * own) if ctx.planned else [part]
    batches = [np.arange(step * ends[-1] + end - size, step * ends[-1] + end)
               for step in range(STEPS) for end, size in list(zip(ends, shares))[parts[0] : parts[-1] + 1]]  # fmt: skip
    rows = [(data.x[batch] * 3 + 5, data.y[batch]) for batch in batches]
    read = tf.data.Dataset.from_generator(lambda: iter(rows), (tf.float32, tf.int32), ([None, FEATURES], [None]))
    x, y = tf.data.make_one_shot_iterator(read).get_next()
    tf.add_to_collection("is_training", tf.placeholder_with_default(True, [], "is_training"))
    loss = blocks({**NORMS, **FUSED}[norm], x, y)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(updates):
        train_op = tf.train.GradientDescentOptimizer(0.0).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(STEPS - 1):
            sess.run(train_op)
        if not alone or ctx.worker == 0:
            sess.run(train_op if ctx.workers > 1 and not alone else updates)
        fed = {x: data.x[:5] * 3 + 5, y: data.y[:5]}
        sess.run(updates, fed)
        ctx.record_variables(sess)
        if ctx.planned:
            from epl.ir.graph import Graph

            ctx.record(collectives=[name for name in Graph.of(sess.graph).rewritten.collectives if "averaged" in name])
