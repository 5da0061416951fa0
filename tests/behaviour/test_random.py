"""Random ops draw other numbers on every replica, and the same ones again when the graph has a seed."""

from typing import Any, Optional

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small
from tests.parity.context import GLOBAL_BATCH, Context
from tests.parity.oracle import Oracle, replica_differences, topology_name


def _draw(ctx: Context, graph_seed: Optional[int], op_seed: Optional[int]) -> None:
    ctx.init()
    if graph_seed is not None:
        tf.set_random_seed(graph_seed)
    masks = [
        tf.nn.dropout(tf.ones([1, 200]), rate=0.5, seed=op_seed),
        tf.random_uniform([1, 200], seed=op_seed),
        tf.keras.layers.Dropout(0.5, seed=op_seed)(tf.ones([1, 200]), training=True),
        tf.function(lambda x: tf.nn.dropout(x, rate=0.4, seed=op_seed))(tf.ones([1, 200])),
    ]
    if ctx.planned:
        import epl

        epl.add_to_collection(masks, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    small = Small()
    loss = small.loss + 0.0 * tf.add_n([tf.reduce_sum(mask) for mask in masks])
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(3):
            ctx.record(masks=sess.run([masks, train_op], small.feed(ctx, step))[0])
        ctx.record_variables(sess)


@pytest.mark.grid
@pytest.mark.parametrize("graph_seed,op_seed", [(None, None), (5, None), (None, 6), (5, 6)])
@pytest.mark.parametrize("topology", [(1, 2), (2, 2), (1, 4)], ids=topology_name)
def test_every_replica_draws_its_own(
    oracle: Oracle, topology: Any, graph_seed: Optional[int], op_seed: Optional[int]
) -> None:
    answers = oracle.plan(topology, _draw, graph_seed=graph_seed, op_seed=op_seed)
    seen = set()
    for masks in answers[0].results["masks"]:
        for mask in masks:
            assert mask.shape == (topology[0] * topology[1], 200)
            seen.update(row.tobytes() for row in mask)
    # 3 steps x 4 masks x replicas; with an op seed of their own the first and the third of a replica draw the same.
    distinct = 3 if op_seed is not None else 4
    assert len(seen) >= 3 * distinct * topology[0] * topology[1]
    assert not replica_differences(answers)


@pytest.mark.parametrize("graph_seed,op_seed", [(5, None), (None, 6)])
def test_seeds_repeat_and_the_first_replica_draws_what_one_device_draws(
    oracle: Oracle, graph_seed: Optional[int], op_seed: Optional[int]
) -> None:
    plain = oracle.plain(_draw, graph_seed=graph_seed, op_seed=op_seed).results["masks"]
    runs = [oracle.plan((1, 2), _draw, graph_seed=graph_seed, op_seed=op_seed)[0].results["masks"] for _ in range(2)]
    for expected, first, second in zip(plain, *runs):
        for one, two, three in zip(expected, first, second):
            np.testing.assert_array_equal(two, three)
            np.testing.assert_array_equal(two[:1], one)


def _dropout_training(ctx: Context) -> None:
    """Backward must use the masks of forward: with a linear loss the gradient is the mask itself."""
    ctx.init()
    x = tf.placeholder(tf.float32, [None, 1], "x")
    kernel = tf.get_variable("kernel", [1, 300], initializer=tf.ones_initializer())
    dropped = tf.nn.dropout(tf.matmul(x, kernel), rate=0.5)
    if ctx.planned:
        import epl

        epl.add_to_collection(dropped, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    loss = tf.reduce_mean(tf.reduce_sum(dropped, 1))
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ones = ctx.mine(np.ones([GLOBAL_BATCH, 1], np.float32))
        ctx.record(dropped=sess.run([dropped, train_op], {x: ones})[0])
        ctx.record_variables(sess)


@pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)
def test_gradients_use_the_masks_of_their_replica(oracle: Oracle, topology: Any) -> None:
    answers = oracle.plan(topology, _dropout_training)
    expected = 1.0 - answers[0].results["dropped"][0].mean(0)
    np.testing.assert_allclose(answers[0].results["variables"][0]["kernel"][0], expected, rtol=1e-5, atol=1e-6)
    assert not replica_differences(answers)
