"""Staging areas: each replica takes out what it has put in, and nothing waits for what nobody puts in."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import data_flow_ops

from tests.parallel.in_process import replicas_equal

pytestmark = pytest.mark.timeout(60)

# An op that waits at a full area occupies a thread of the session, one for each replica.
THREADS = tf.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=4)


class Staged:
    """Learns nothing but the sum of what it was given: w goes down by the mean of each batch."""

    def __init__(self, source, capacity=0):
        self.area = data_flow_ops.StagingArea([tf.float32], [[None]], capacity=capacity)
        self.put = self.area.put([source])
        self.x = self.area.get()
        self.w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        self.train_op = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(self.x) * self.w)


def numbers():
    """0, 1, 2, ... one in each batch."""
    data = tf.data.Dataset.range(1000).map(tf.to_float).batch(1)
    return data.make_one_shot_iterator().get_next()


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_replica_trains_on_what_was_put_in_a_step_before(init, devices, grouped):
    init(devices)
    model = Staged(numbers())
    put = tf.group(model.put, tf.no_op()) if grouped else model.put
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(put)
        for _ in range(3):
            sess.run([model.train_op, put])
        np.testing.assert_allclose(-sess.run(model.w), sum(range(3 * devices)) / float(devices))
        assert sess.run(model.area.size()) == 1 and (devices == 1 or replicas_equal(sess, "w"))


def test_what_is_put_within_the_step(init):
    init()
    model = Staged(numbers())
    with tf.control_dependencies([model.put]):
        x = model.area.get()
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(x) * model.w)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            sess.run(train_op)
        np.testing.assert_allclose(-sess.run(model.w), (0 + 1 + 2 + 3) / 2.0)


def test_a_fed_batch_is_put_in_parts(init):
    init()
    x = tf.placeholder(tf.float32, [None], "x")
    model = Staged(x)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.put, {x: [1, 2, 3, 4]})
        sess.run(model.train_op)
        np.testing.assert_allclose(-sess.run(model.w), 2.5)


def test_taking_out_alone_takes_from_every_replica(init):
    init()
    model = Staged(numbers(), capacity=1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(3):  # an area that one replica alone empties would be full in the other
            sess.run(model.put)
            sess.run(model.x)


def test_a_thread_that_puts_does_not_keep_out_the_one_that_trains(init):
    init()
    model = Staged(numbers(), capacity=1)
    with tf.Session(config=THREADS) as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.put)

        def fill():
            for _ in range(20):
                sess.run(model.put)

        thread = threading.Thread(target=fill)
        thread.start()
        for _ in range(20):
            sess.run(model.train_op)
        thread.join()
        np.testing.assert_allclose(-sess.run(model.w), sum(range(40)) / 2.0)


def test_a_thread_that_puts_first_does_not_keep_out_the_one_that_trains(init):
    init()
    model = Staged(numbers(), capacity=1)
    with tf.Session(config=THREADS) as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.put)
        thread = threading.Thread(target=sess.run, args=(model.put,))
        thread.start()
        thread.join(1.0)
        assert thread.is_alive()  # the area is full
        sess.run(model.train_op)
        thread.join()
        np.testing.assert_allclose(-sess.run(model.w), 0.5)


def test_a_map_staging_area(init):
    init()
    area = data_flow_ops.MapStagingArea([tf.float32], shapes=[[None]], ordered=True)
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
    put = area.put(tf.identity(step), [numbers()], indices=[0])
    _, x = area.get()
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(x) * w, step)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            sess.run(put)
            sess.run(train_op)
        np.testing.assert_allclose(-sess.run(w), (0 + 1 + 2 + 3) / 2.0)
