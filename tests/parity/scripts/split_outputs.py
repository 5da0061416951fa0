"""A split head of which values of rows and of the whole batch are in output collections."""

from typing import Any

import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense
from tests.parity.scripts.splits import OPTIMIZERS, WIDE, annotations


def trained(ctx: Context, groups: int = 1, scope: str = "GLOBAL", **config: Any) -> None:
    """Trains, and records what is merged in each step, and of fed rows without one."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, **config)
    replicate, split = annotations(ctx, groups)
    x, y = tf.placeholder(tf.float32, [None, FEATURES]), tf.placeholder(tf.int32, [None])
    with replicate():
        features = dense(x, 16, "features", tf.nn.tanh)
    with split():
        logits = dense(features, WIDE, "head")
        loss = cross_entropy(y, logits)
        merged = [
            (loss, "MEAN"),
            (tf.reduce_sum(tf.cast(logits > 0, tf.int32)), "SUM"),
            (tf.reduce_mean(logits, 0), "MEAN"),
            (tf.reduce_max(logits, 1), "CONCAT"),
        ]
        alone = tf.reduce_sum(tf.square(logits))
    if ctx.planned:
        import epl

        for tensor, how in merged:
            epl.add_to_collection(tensor, getattr(epl.GraphKeys, f"{scope}_{how}_OBJECTS"))
    train_op = OPTIMIZERS["adam"]().minimize(loss)
    fetches = [tensor for tensor, _ in merged]
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {x: ctx.step_rows(data.x, number), y: ctx.step_rows(data.y, number)}
            found = sess.run([fetches, train_op], feeds)[0]
            ctx.record(loss=found[0], merged=found)
        ctx.record(alone=sess.run(alone, {x: data.x[:7]}))
        variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
        ctx.results["variables"] = [sess.run(variables)]
