"""What is fed to a pipeline: rows are cut among micro batches, the rest is given whole or refused with the numbers."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import FeedError
from tests.parallel.pipelines import Chain, begin, dense, equals_plain, rows, stage


def train(model, feed):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run([model.loss, model.train_op], feed)[0]


def test_rows_that_do_not_fit_are_refused_with_the_numbers(init):
    begin(init, 4, 4)
    model = Chain(2)
    model.minimize()
    with pytest.raises(FeedError, match=r"fed 12 rows.* for 2 local replica\(s\) x 4 micro batches: .*multiple of 8"):
        train(model, model.feed(12))
    with pytest.raises(FeedError, match="fed 3 row"):
        train(model, model.feed(3))


class Sized:
    """x [None, 3] with y of a known first dimension of 2."""

    def __init__(self):
        self.x = tf.placeholder(tf.float32, [None, 3], "x")
        self.y = tf.placeholder(tf.float32, [2, 1], "y")
        with stage():
            hidden = dense(self.x, 3, 0)
        with stage():
            self.loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1) - self.y))
        self.train_op = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)


def test_a_known_first_dimension_is_cut_when_a_batch_for_each_micro_batch_is_fed(init):
    begin(init, 4, 2)
    model = Sized()
    x, y = rows(8), rows(8, 1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run(model.loss, {model.x: x[i : i + 2], model.y: y[i : i + 2]}) for i in range(0, 8, 2)]
        loss = sess.run([model.loss, model.train_op], {model.x: x, model.y: y})[0]
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)


def test_a_known_first_dimension_is_given_whole_with_a_warning_when_one_batch_is_fed(init, caplog):
    begin(init, 4, 2)
    model = Sized()
    x, y = rows(8), rows(2, 1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run(model.loss, {model.x: x[i : i + 2], model.y: y}) for i in range(0, 8, 2)]
        with caplog.at_level(logging.WARNING, "epl"):
            loss = sess.run([model.loss, model.train_op], {model.x: x, model.y: y})[0]
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    assert "y:0 has a first dimension of 2 and was fed 2 rows" in caplog.text


def test_a_known_first_dimension_and_rows_that_fit_no_way_are_refused(init):
    begin(init, 4, 2)
    model = Sized()
    with pytest.raises(FeedError, match="first dimension of 2 and was fed 6 rows.*takes 8 rows, 2 for each, or 2"):
        train(model, {model.x: rows(8), model.y: rows(6, 1)})


def test_a_learning_rate_is_fed_as_a_scalar(init):
    begin(init, 4, 2)

    def build(stage):
        rate = tf.placeholder(tf.float32, [], "rate")
        model = Chain(2, stage, tf.train.GradientDescentOptimizer(rate))
        model.minimize()
        feed = model.feed
        model.feed = lambda count, seed: dict(feed(count, seed), **{}) if seed < 0 else {**feed(count, seed), rate: 0.3}
        return model

    equals_plain(build)


def test_a_vector_that_only_the_update_takes_is_not_cut(init):
    begin(init, 4, 2)
    scale = tf.placeholder(tf.float32, [3], "scale")
    model = Chain(2)
    pairs = model.optimizer.compute_gradients(model.loss)
    model.train_op = model.optimizer.apply_gradients([(g * scale[0], v) for g, v in pairs])
    feed = model.feed(8)
    feed[scale] = [0.5, 1.0, 2.0]
    assert np.isfinite(train(model, feed))


@pytest.mark.parametrize("devices, stages, micro_batches", [(2, 1, 1), (2, 2, 2), (4, 2, 2)])
@pytest.mark.parametrize("rows", [None, 2])
def test_a_sparse_placeholder_whose_shape_nobody_takes(init, devices, stages, micro_batches, rows):
    """embedding_lookup_sparse takes indices and values alone."""
    begin(init, micro_batches, devices)
    ids = tf.sparse_placeholder(tf.int64, None if rows is None else [rows, 1], "ids")
    with stage():
        table = tf.get_variable("table", [16, 4], initializer=tf.ones_initializer())
        hidden = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="mean")
    if stages > 1:
        with stage():
            hidden = 1.0 * hidden
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(hidden))
    count = devices // stages * micro_batches * 2
    value = tf.SparseTensorValue([[row, 0] for row in range(count)], range(count), [count, 1])
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {ids: value})
        expected = np.ones([16, 4])
        expected[:count] -= 1 / (4 * count)
        np.testing.assert_allclose(sess.run(table), expected, rtol=1e-5)


def test_a_sparse_placeholder_is_cut_by_its_dense_rows(init):
    begin(init, 4, 2)
    x = tf.sparse_placeholder(tf.float32, [None, 3], "x")
    with stage():
        w = tf.get_variable("w", [3, 3], initializer=tf.ones_initializer())
        hidden = tf.sparse_tensor_dense_matmul(x, w)
    with stage():
        loss = tf.reduce_mean(hidden)
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    dense_rows = rows(8)
    indices = np.argwhere(np.ones([8, 3])).astype(np.int64)
    value = tf.SparseTensorValue(indices, dense_rows.reshape(-1), [8, 3])
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        found = sess.run([loss, train_op], {x: value})[0]
        after = sess.run(w)
    np.testing.assert_allclose(found, dense_rows.sum(1).mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(1 - after, np.repeat(dense_rows.mean(0)[:, None], 3, 1) / 3, rtol=1e-4, atol=1e-6)


def test_what_is_fed_is_not_changed(init):
    begin(init, 2, 2)
    model = Chain(2)
    model.minimize()
    feed = model.feed(8)
    before = dict(feed)
    train(model, feed)
    assert feed == before or all(feed[key] is before[key] for key in before)


@pytest.mark.parametrize("devices, stages", [(1, 2), (3, 2), (4, 3)])
def test_devices_that_do_not_fit_the_stages_are_refused_with_the_numbers(init, devices, stages):
    begin(init, 2, devices)
    model = Chain(stages)
    model.minimize()
    with pytest.raises(epl.utils.errors.LayoutError, match=f"Total devices {devices} is not divisible .* {stages}"):
        train(model, model.feed(8))


def test_one_micro_batch(init):
    begin(init, 1, 2)

    def build(stage):
        model = Chain(2, stage)
        model.minimize()
        return model

    equals_plain(build)
