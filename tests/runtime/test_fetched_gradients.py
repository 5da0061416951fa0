"""Gradients that are fetched, and what is computed from them, are those of one device, whole."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.pipelines import no_stage

ROWS = {"x": np.random.RandomState(0).rand(8, 16), "ids": np.arange(24).reshape(8, 3) * 37 % 1003}


class Model:
    """Two tables of words and a wide layer in a split, after a replicated layer; gradients, clipped ones, a norm."""

    def __init__(self, replicate, split):
        x, ids = tf.placeholder(tf.float32, [None, 16]), tf.placeholder(tf.int32, [None, 3])
        self.feeds = {x: ROWS["x"], ids: ROWS["ids"]}
        initial = tf.random_normal_initializer(stddev=0.5, seed=1)
        with replicate():
            hidden = tf.layers.dense(x, 8, tf.tanh, name="hidden", kernel_initializer=initial)
        with split():
            by_columns = tf.get_variable("by_columns", [1003, 8], initializer=initial)
            by_rows = tf.get_variable("by_rows", [20011, 1], initializer=initial)
            hidden += tf.reduce_sum(tf.nn.embedding_lookup(by_columns, ids), 1)
            hidden *= tf.reduce_sum(tf.nn.embedding_lookup(by_rows, ids), 1)
            wide = tf.layers.dense(hidden, 1001, name="wide", kernel_initializer=initial)
            loss = tf.reduce_mean(tf.square(wide))
        variables = tf.trainable_variables()
        gradients = tf.gradients(loss, variables)
        clipped, norm = tf.clip_by_global_norm(gradients, 0.1)
        self.gradients = dict(zip([v.name for v in variables], gradients))
        self.clipped = dict(zip([v.name for v in variables], clipped))
        self.norm = norm
        self.train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(clipped, variables))


def dense(value):
    """A gradient as an array; rows of the same index are added up."""
    if isinstance(value, np.ndarray):
        return value
    result = np.zeros(value.dense_shape, value.values.dtype)
    np.add.at(result, value.indices, value.values)
    return result


def run(model):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        found, _ = sess.run([[model.gradients, model.clipped, model.norm], model.train_op], model.feeds)
        alone = sess.run(model.gradients["wide/kernel:0"], model.feeds)
    return found, alone


@pytest.mark.parametrize("devices", [2, 3, pytest.param(4, marks=pytest.mark.long)])
def test_of_a_split(init, devices):
    with tf.Graph().as_default():
        expected, expected_alone = run(Model(no_stage, no_stage))
    init(devices, annotate=False, cluster__colocate_split_and_replicate=True)
    count = 3 if devices == 3 else 2
    found, alone = run(Model(lambda: epl.replicate(1), lambda: epl.split(count)))
    assert set(found[0]) == set(expected[0])
    for mine, other in zip(found[:2], expected[:2]):
        for name in other:
            np.testing.assert_allclose(dense(mine[name]), dense(other[name]), rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-5)
    np.testing.assert_allclose(alone, expected_alone, rtol=1e-4, atol=1e-6)


def test_lengths_of_rows_of_which_each_device_has_some_columns(init):
    def run(model):
        lengths = tf.reduce_sum(tf.square(model.gradients["by_columns:0"].values), 1)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            return sess.run([lengths, model.train_op], model.feeds)[0]

    with tf.Graph().as_default():
        expected = run(Model(no_stage, no_stage))
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    np.testing.assert_allclose(run(Model(lambda: epl.replicate(1), lambda: epl.split(2))), expected, rtol=1e-4)


def test_of_a_call_that_trains_nothing(init):
    with tf.Graph().as_default():
        expected = of_another_call(no_stage)
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    np.testing.assert_allclose(of_another_call(lambda: epl.split(2)), expected, rtol=1e-4, atol=1e-6)


def of_another_call(split):
    x = tf.placeholder(tf.float32, [None, 16])
    with split():
        wide = tf.layers.dense(x, 1001, name="wide", kernel_initializer=tf.random_normal_initializer(seed=1))
        losses = [tf.reduce_mean(tf.square(wide)), tf.reduce_mean(tf.abs(wide))]
    kernel = tf.trainable_variables()[0]
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(losses[0])
    gradient = 2.0 * tf.gradients(losses[1], kernel)[0]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run([gradient, train_op], {x: ROWS["x"]})[0]
