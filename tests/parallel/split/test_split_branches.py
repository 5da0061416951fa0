"""Branches inside of a split that write variables: batch normalization whose mode is fed, as one device computes it."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl

ROWS = np.random.RandomState(0).randn(3, 12, 8).astype("f")


def trained(split, use_resource, is_fed):
    """Logits of evaluation after three steps, and the variables; the mode is fed, or is that of training."""
    tf.set_random_seed(4)
    x, training = tf.placeholder(tf.float32, [None, 8]), tf.placeholder_with_default(True, [])
    with split, tf.variable_scope("model", use_resource=use_resource):
        hidden = tf.layers.dense(x, 4003, use_bias=False)
        hidden = tf.layers.batch_normalization(hidden, training=training if is_fed else True)
        logits = tf.layers.dense(tf.nn.tanh(hidden), 10)
        loss = tf.reduce_mean(tf.square(logits))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    variables = tf.global_variables()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(3):
            sess.run(train_op, {x: ROWS[step]})
        values = sess.run(logits, {x: ROWS[0], training: False})
        return [values, *sess.run(sorted(variables, key=lambda variable: variable.name))]


@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("use_resource", [False, pytest.param(True, marks=pytest.mark.long)])
def test_batch_normalization(init, use_resource, is_fed):
    with tf.Graph().as_default():
        expected = trained(contextlib.ExitStack(), use_resource, is_fed)
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    for found, one in zip(trained(epl.split(2), use_resource, is_fed), expected):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-4)
