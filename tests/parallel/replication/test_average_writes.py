"""Which moving averages of batch norm travel together."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.in_process import rewritten


def network(x, name, before=()):
    """A layer with batch norm, its loss, and a step that updates the averages of this network alone."""
    with tf.variable_scope(name), tf.control_dependencies(list(before)):
        known = len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
        hidden = tf.layers.batch_normalization(tf.layers.dense(x, 3), training=True)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1)))
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)[known:]):
            weights = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, name)
            return tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=weights)


@pytest.fixture
def models(init):
    """Two models on one batch, each with a step of its own; the second counts its forward passes."""
    init(2)
    x = tf.placeholder(tf.float32, [None, 4], "x")
    runs = tf.get_variable("runs", [], initializer=tf.zeros_initializer(), trainable=False)
    first = network(x, "first")
    return x, runs, first, network(x, "second", [runs.assign_add(1.0)])


def test_a_step_of_one_model_runs_nothing_of_another(models):
    x, runs, first, second = models
    feed = {x: np.ones([4, 4])}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(first, feed)
        assert sess.run(runs) == 0
        sess.run(second, feed)
        assert sess.run(runs) == 1


def test_the_averages_of_a_model_share_a_collective(models):
    found = [name for name in rewritten().collectives if "averaged_writes/" in name]
    assert len({name.split("averaged_writes/")[1][0] for name in found}) == 2  # of four averages
