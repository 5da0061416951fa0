"""Runs of a training graph that train nothing: each device has all rows that are fed, and values are of one copy."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.parallel.sharding.replicated_rows import GivenCopies, primary_ranks_of
from epl.parallel.split import section
from epl.utils.errors import FeedError, PlanError
from tests.parallel.split.harness import DEAR, few_choices

COLOCATED = {"cluster__colocate_split_and_replicate": True}
ROWS = np.random.RandomState(0).randn(5, 12).astype("f")


def built(split, size=None):
    """The loss of a model, and values of a row, of all rows, and from after a loop, a branch and a replicated part."""
    x = tf.placeholder(tf.float32, [size, 12])
    dense = tf.layers.dense
    with split():
        hidden = dense(x, 7, tf.nn.tanh)
        rows = tf.shape(hidden)[0]
        total = tf.reduce_sum(hidden)
        product = tf.reduce_prod(1.0 + 0.1 * hidden, 0)
        looped = tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a + tf.sin(a)), [0, hidden])[1]
        states, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(3), tf.reshape(looped, [-1, 7, 1]), dtype=tf.float32)
    outside = tf.layers.flatten(states[:, 2:]) + dense(x, 15)
    with split():
        wide = dense(outside, 11) / tf.sqrt(1.0 + tf.square(total))
        wide = tf.cond(tf.reduce_sum(wide) > 1e9, lambda: wide * 2.0, lambda: tf.tanh(wide))
        similar = tf.matmul(wide, wide, transpose_b=True)
        over_rows = tf.nn.softmax(wide, 0) + tf.cumsum(wide) + tf.matmul(wide, wide, transpose_a=True)[:1]
        loss = tf.reduce_sum(tf.square(similar)) / tf.cast(rows, tf.float32)
    norm = tf.sqrt(tf.reduce_sum(tf.square(wide)))
    return x, loss, [loss, rows, total, product, looped, states, wide, similar, over_rows, norm, wide + outside[:, :11]]


def plain(rows):
    with tf.Graph().as_default(), tf.Session() as sess:
        tf.set_random_seed(4)
        x, loss, values = built(contextlib.ExitStack)
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        sess.run(tf.global_variables_initializer())
        return sess.run(values, {x: rows})


@pytest.mark.parametrize(
    "devices, seed", [(2, None), *[pytest.param(*case, marks=pytest.mark.long) for case in ((4, None), (3, 1), (3, 2))]]
)
def test_values_are_those_of_one_device(init, monkeypatch, devices, seed):
    """Four devices are two groups. One row is less than there are devices."""
    real = section.search

    def search(program, *_, **__):
        if seed is not None:
            few_choices(seed)(program)
        return real(program, **DEAR)

    monkeypatch.setattr(section, "search", search)
    init(devices, annotate=False, **COLOCATED)
    tf.set_random_seed(4)
    x, loss, values = built(lambda: epl.split(3 if devices == 3 else 2))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for rows in (ROWS, ROWS[:1]):
            for found, one in zip(sess.run(values, {x: rows}), plain(rows)):
                np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-4)


def test_a_batch_of_known_size_has_copies(init):
    """What is of one row, and what is a mean, is as of one device; the rest is refused."""
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [5, 12])
    with epl.split(2):
        logits = tf.layers.dense(x, 1001)
        loss = tf.reduce_mean(tf.square(logits))
        total = tf.reduce_sum(logits)
    outside = tf.sqrt(tf.abs(total))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        found, mean = sess.run([logits, loss], {x: ROWS})
        assert found.shape == (5, 1001)
        np.testing.assert_allclose(np.square(found).mean(), mean, rtol=1e-5)
        for value in (total, outside):
            with pytest.raises(FeedError, match="Leave the batch dimension"):
                sess.run(value, {x: ROWS})


def test_a_loop_over_a_batch_of_known_size_is_refused(init):
    init(2, annotate=False, **COLOCATED)
    x, loss, _ = built(lambda: epl.split(2), 5)
    with pytest.raises(PlanError, match="Leave the batch dimension open"):
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def test_a_gradient_of_a_sum_is_fetched_with_the_train_op(init):
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 12])
    with epl.split(2):
        loss = tf.reduce_sum(tf.square(tf.layers.dense(x, 1001)))
    gradient = tf.gradients(loss, x)[0]
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        with pytest.raises(FeedError, match="run of the train op"):
            sess.run(gradient, {x: ROWS})
        sess.run([gradient, train_op], {x: ROWS})


@pytest.mark.parametrize("owners, in_one_process", [([7, 7, 7], True), ([7, 7, 8], False), ([7, 8, 7], False)])
def test_copies_are_dropped_and_repeated(owners, in_one_process):
    """Process 7 has three rows, process 8 has two."""
    leads = primary_ranks_of(owners)
    of_process = {7: [1, 2, 3], 8: [4, 5]}
    copies = np.concatenate([of_process[owner] for owner in owners])
    whole = np.concatenate([of_process[owner] for owner in dict.fromkeys(owners)])
    rows = tf.constant([len(of_process[owner]) for owner in owners], tf.int64)
    made = GivenCopies(3, in_one_process, tf.constant(leads, tf.int64))
    with tf.Session() as sess:
        for dim, shape in ((0, [-1, 1]), (1, [1, -1])):
            tensor = tf.constant(copies.reshape(shape))
            np.testing.assert_array_equal(sess.run(made.drop(tensor, dim, rows)), whole.reshape(shape))
            tensor = tf.constant(whole.reshape(shape))
            np.testing.assert_array_equal(sess.run(made.repeat(tensor, dim, rows)), copies.reshape(shape))
        for rank, owner in enumerate(owners):
            begin = sess.run(made.begin(rows, tf.constant(rank)))
            np.testing.assert_array_equal(whole[begin : begin + len(of_process[owner])], of_process[owner])
