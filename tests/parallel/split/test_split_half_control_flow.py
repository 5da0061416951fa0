"""Loops and branches inside of epl.split in half precision: losses are those of one device in half precision."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl

ROWS = np.random.RandomState(0).randn(8, 16).astype("f")


def loop(value, kernel):
    return tf.while_loop(lambda i, _: i < 2, lambda i, v: (i + 1, tf.nn.relu(tf.matmul(v, kernel))), [0, value])[1]


def branch(value, kernel):
    return tf.cond(tf.reduce_mean(kernel) < 9, lambda: tf.nn.relu(tf.matmul(value, kernel)), lambda: value)


def losses(scope, flow):
    x = tf.placeholder(tf.float32, [None, 16])
    initial = tf.random_normal_initializer(stddev=0.3, seed=1)
    with epl.replicate(1):
        value = tf.layers.dense(x, 16, kernel_initializer=initial)
    with scope():
        kernel = tf.get_variable("kernel", [16, 16], initializer=initial)
        value = tf.layers.dense(flow(value, kernel), 1024, kernel_initializer=initial)
        loss = tf.reduce_mean(tf.square(value))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return [sess.run([loss, train_op], {x: ROWS})[0] for _ in range(3)]


@pytest.mark.parametrize("flow", [loop, branch])
def test_losses_are_those_of_one_device(init, flow):
    half = {"annotate": False, "amp__level": "O1", "amp__loss_scale": 128}
    init(1, **half)
    expected = losses(contextlib.ExitStack, flow)
    assert expected[2] < expected[0]
    init(2, cluster__colocate_split_and_replicate=True, **half)
    np.testing.assert_allclose(losses(lambda: epl.split(2), flow), expected, rtol=2e-3)
