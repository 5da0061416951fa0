"""Saved models: of a graph that trains parts there is none; of one that does not, plain TensorFlow loads it."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.runtime import hooks
from tests.parallel.in_process import error_text

ROWS = np.random.RandomState(0).rand(4, 8)


def model(scope):
    x = tf.placeholder(tf.float32, [None, 8], "x")
    with scope:
        return x, tf.layers.dense(x, 1001, name="head")


def test_the_graph_that_trains_a_split_is_refused_and_one_that_does_not_is_saved(init, tmp_path):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    x, logits = model(epl.split(2))
    train_op = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(logits)))
    checkpoint, folder = str(tmp_path / "trained"), str(tmp_path / "saved")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: ROWS})
        expected = sess.run(logits, {x: ROWS})
        text = error_text(tf.saved_model.simple_save, sess, str(tmp_path / "refused"), {"x": x}, {"logits": logits})
        assert text.startswith("PlanError: A saved model was asked for of the graph that is trained with epl.split")
        tf.train.Saver().save(sess, checkpoint)
    with tf.Graph().as_default(), tf.Session() as sess:
        x, logits = model(epl.split(2))
        tf.train.Saver().restore(sess, checkpoint)
        tf.saved_model.simple_save(sess, folder, {"x": x}, {"logits": logits})
    hooks.remove()
    with tf.Graph().as_default(), tf.Session() as sess:
        signature = tf.saved_model.load(sess, ["serve"], folder).signature_def["serving_default"]
        found = sess.run(signature.outputs["logits"].name, {signature.inputs["x"].name: ROWS})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", ["v1", pytest.param("v2", marks=pytest.mark.long)])
def test_the_graph_that_trains_with_zero_is_refused(init, tmp_path, level):
    init(2, zero__level=level)
    x, logits = model(contextlib.ExitStack())
    train_op = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(logits)))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: ROWS})
        text = error_text(tf.saved_model.simple_save, sess, str(tmp_path / "refused"), {"x": x}, {"logits": logits})
    assert text.startswith("PlanError: A saved model was asked for of the graph that is trained with zero.level")
