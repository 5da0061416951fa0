"""Models whose plan the planner finds: `auto.planner` "search", `auto.balance` "speed"; one device has all rows."""

from typing import Any

import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts.data import FEATURES, TOKENS, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS
from tests.parity.scripts.splits import minimize


def fed(ctx: Context, name: str, rows: int, planned_rows: int = 0, dtype: str = "float32", **config: Any) -> None:
    """Trains without annotation on what is fed: rows of all workers, of which each takes what the planner gives it.

    The model computes in `dtype`: in float32 the last bits depend on which rows are added up first.
    """
    ctx.init(annotate=False, auto__rows=planned_rows or rows, **config)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    loss = MODELS[name](tf.cast(x, dtype), ids, y)
    own = rows
    if ctx.planned:
        import epl

        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        train_op = minimize(OPTIMIZERS["momentum"](), loss)
        own = epl.local_rows(rows)
        assert ctx.workers == 1 or own != rows / 2  # two workers of different speed
    else:
        train_op = minimize(OPTIMIZERS["momentum"](), loss)
    first = rows - own if ctx.worker else 0
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for begin in range(0, len(samples().y), rows):
            part = slice(begin + first, begin + first + own)
            feed = {tensor: values[part] for tensor, values in zip((x, ids, y), samples())}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)
