"""Layers in a split whose outputs are scaled by random numbers: by each random op that has a rule, by dropout, too."""

from typing import Callable, Dict, List

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.split_rules import RANDOM, choosing
from tests.parity.scripts.splits import annotations

COLUMNS = 301  # that no number of devices here divides
RATE = 0.01  # of learning; weights stay near 1
KEPT = 0.75  # of what dropout takes
LARGEST = 2**30  # integer, less one

# What scales a tensor, element by element.
NOISES: Dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "dropout": lambda h: tf.nn.dropout(h, rate=1 - KEPT),
    "normal": lambda h: h * tf.random.normal(tf.shape(h)),
    "truncated": lambda h: h * tf.random.truncated_normal(tf.shape(h)),
    "uniform": lambda h: h * tf.random.uniform(tf.shape(h)),
    "integers": lambda h: h * (tf.cast(tf.random.uniform(tf.shape(h), 0, LARGEST, tf.int32), tf.float32) / LARGEST),
}


def train(ctx: Context, open_batch: bool, turn: int = 0) -> None:
    """Trains on a loss whose gradient is the mean over the rows of what the outputs are scaled by.

    Records of each step the outputs, and the weights before and after it. Turns are those of split_rules.py: of the
    random ops, or of what scales where the size of the batch is written into the model.
    """
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    _, split = annotations(ctx)
    x = tf.placeholder(tf.float32, [None if open_batch else ctx.batch, 1])
    outputs: Dict[str, tf.Tensor] = {}
    weights: Dict[str, tf.Variable] = {}
    with split():
        losses: List[tf.Tensor] = []
        for name, scaled in NOISES.items():
            weights[name] = tf.get_variable(name, [1, COLUMNS], initializer=tf.ones_initializer())
            outputs[name] = scaled(tf.matmul(x, weights[name]))
            losses.append(tf.reduce_mean(tf.reduce_sum(outputs[name], 1)))
        loss = tf.add_n(losses)
    if ctx.planned:
        import epl

        epl.add_to_collection(list(outputs.values()), epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    drawn = [op for op in tf.get_default_graph().get_operations() if op.type in RANDOM]
    assert {op.type for op in drawn} == RANDOM
    optimizer = tf.train.GradientDescentOptimizer(RATE)
    chosen = drawn if open_batch else [output.op for output in outputs.values()]
    with choosing(ctx, {op.name: turn for op in chosen}, set()):
        pairs = optimizer.compute_gradients(loss)
    with tf.control_dependencies(list(outputs.values())):
        train_op = optimizer.apply_gradients(pairs)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = sess.run(weights)
        for _ in range(STEPS):
            ones = np.array_split(np.ones([GLOBAL_BATCH, 1]), ctx.workers)[ctx.worker]
            found = sess.run([outputs, train_op], {x: ones})[0]
            after = sess.run(weights)
            ctx.record(outputs=found, before=before, after=after)
            before = after
        ctx.results["variables"] = [before]
