"""Tensors of both stages of a pipeline in each of the collections of outputs."""

import itertools
from typing import Any

import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts.data import CLASSES, FEATURES
from tests.parity.scripts.models import cross_entropy, dense
from tests.parity.scripts.pipelines import Pipeline

COLLECTIONS = list(itertools.product(["global", "local"], ["concat", "mean", "sum"]))
STEPS = 2


def merged(ctx: Context, **pipeline: Any) -> None:
    """Records what steps fetch: of each collection the rows of the first stage, and their sum in the second one."""
    import epl

    plan = Pipeline(ctx, stages=2, **pipeline)
    x, y = tf.placeholder(tf.float32, [None, FEATURES], "x"), tf.placeholder(tf.int32, [None], "y")
    with ctx.scope():
        hidden = dense(x, 8, "hidden", tf.nn.tanh)
        rows = [tf.identity(x) for _ in COLLECTIONS]
    with ctx.scope():
        loss = cross_entropy(y, dense(hidden, CLASSES, "out"))
        labels = [tf.reduce_sum(tf.cast(y, tf.float32) + x[:, 0]) for _ in COLLECTIONS]
    fetches = {}
    for (scope, way), *tensors in zip(COLLECTIONS, rows, labels):
        epl.add_to_collection(tensors, getattr(epl.GraphKeys, "%s_%s_OBJECTS" % (scope.upper(), way.upper())))
        fetches["%s_%s" % (scope, way)] = tensors
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            samples = plan.rows(step)
            ctx.record(merged=sess.run([fetches, train_op], {x: samples.x, y: samples.y})[0])
