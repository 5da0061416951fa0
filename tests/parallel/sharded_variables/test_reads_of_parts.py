"""What a run gives of weights in parts that are read beside a training step, or fed in place of what they give."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl

long = pytest.mark.long
LEVELS = ["v1", "v2"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "resource, size, steps",
    [(False, 64, 5), pytest.param(False, 512, 100, marks=long), pytest.param(True, 512, 100, marks=long)],
)
def test_weights_that_are_fetched_beside_a_step_are_those_before_it(init, level, resource, size, steps):
    init(2, zero__level=level)
    weights = tf.get_variable("weights", [size, size], initializer=tf.zeros_initializer(), use_resource=resource)
    x = tf.placeholder(tf.float32, [None, size])
    same, turned = tf.identity(weights), tf.transpose(weights)
    loss = tf.reduce_sum(tf.matmul(x, turned))
    optimizer = tf.train.MomentumOptimizer(1.0, 0.0)
    train_op = optimizer.minimize(loss)
    slot = optimizer.get_slot(weights, "momentum")
    rows = np.full([2, size], -1.0, np.float32)  # each step adds 1 to each weight
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(steps):
            found = sess.run([weights, same, turned, slot, train_op], {x: rows})[:-1]
            for value, expected in zip(found, [step, step, step, -1.0 if step else 0.0]):
                np.testing.assert_array_equal(value, np.full([size, size], expected))
        late = tf.reduce_sum(same) + tf.reduce_sum(x)
        np.testing.assert_allclose(sess.run([late, train_op], {x: rows})[0], (steps * size - 1.0) * size)


@pytest.mark.parametrize("steps", [4, pytest.param(60, marks=long)])
def test_parts_of_a_split_that_are_fetched_beside_a_step_are_those_before_it(init, steps):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    x = tf.placeholder(tf.float32, [None, 16])
    with epl.split(2):
        layer = tf.layers.Dense(1024, use_bias=False, kernel_initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(layer(x))
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.full([2, 16], -1.0)})
        unit = sess.run(layer.kernel)[0, 0]
        for step in range(1, steps):
            found, _ = sess.run([layer.kernel, train_op], {x: np.full([2, 16], -1.0)})
            np.testing.assert_array_equal(found, np.full([16, 1024], step * unit))


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_fed_in_place_of_what_is_computed_from_a_weight_counts(init, level):
    init(2, zero__level=level)
    weights = tf.get_variable("weights", [64, 6], initializer=tf.ones_initializer())
    turned = tf.transpose(weights)
    scaled = 2.0 * turned
    x = tf.placeholder(tf.float32, [None, 6])
    values = tf.matmul(x, scaled)
    train_op = tf.train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(tf.square(values)) / 2.0)
    rows, fed = np.ones([4, 6], np.float32), np.full([6, 64], 3.0, np.float32)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for tensor, factor in ((turned, 2.0), (scaled, 1.0)):
            expected = np.full([4, 64], 18.0 * factor)
            np.testing.assert_allclose(sess.run(values, {x: rows, tensor: fed}), expected)
            np.testing.assert_allclose(sess.run(values, {x: rows}), np.full([4, 64], 12.0))
        trained, _ = sess.run([values, train_op], {x: rows, turned: fed})
        np.testing.assert_allclose(trained, np.full(trained.shape, 36.0))
        np.testing.assert_allclose(sess.run(weights), np.full([64, 6], 1.0 - 0.25 * 2 * 2 * 36.0))
