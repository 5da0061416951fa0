"""A run that writes variables without gradients: every replica gets all that is fed, and holds the same afterwards."""

import numpy as np
import pytest
import tensorflow as tf1
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.utils.errors import FeedError
from tests.parallel.in_process import Linear, replicas_equal
from tests.tensorflows import ONLY_1


class Bank:
    """A classifier with a table of rows and a learning rate, which the script writes by what it feeds."""

    def __init__(self, scopes=(None,), by_rows=True):
        self.x = tf.placeholder(tf.float32, [None, 3], "x")
        self.ids = tf.placeholder(tf.int32, [None], "ids")
        self.rows = tf.placeholder(tf.float32, [None, 4], "rows")
        self.value = tf.placeholder(tf.float32, name="value")
        scopes = [epl.replicate(1) if scope is None and len(scopes) > 1 else scope for scope in scopes]
        with scopes[0] or tf.name_scope("first"):
            self.bank = tf.get_variable("bank", [5, 4], initializer=tf.ones_initializer())
            self.w = tf.get_variable("w", [3, 4], initializer=tf.ones_initializer())
            hidden = tf.matmul(self.x, self.w) + tf.reduce_mean(self.bank, 0)
        with scopes[-1] or tf.name_scope("last"):
            self.rate = tf.get_variable("rate", [], initializer=tf.constant_initializer(0.1), trainable=False)
            v = tf.get_variable("v", [4, 1], initializer=tf.ones_initializer())
            self.out = tf.matmul(hidden, v, name="out")
            self.loss = tf.reduce_mean(tf.square(self.out - 1.0))
        self.train = tf.train.MomentumOptimizer(self.rate, 0.9).minimize(self.loss)
        if by_rows:
            self.write = tf.scatter_update(self.bank, self.ids, self.rows)
        else:
            self.write = self.bank.assign(tf.tensor_scatter_update(self.bank, self.ids[:, None], self.rows))
        self.set_rate = self.rate.assign(self.value)
        self.load = self.w.assign(tf.reshape(self.value, [3, 4]))
        self.init = tf.global_variables_initializer()

    def values(self):
        """Variables and action of a session in which the script writes between steps of training."""
        random = np.random.RandomState(0)
        x = random.randn(8, 3).astype("f")
        with tf.Session() as sess:
            sess.run(self.init)
            sess.run(self.train, {self.x: x})
            sess.run(self.load, {self.value: random.randn(12)})
            sess.run(self.train, {self.x: x})
            rows = random.randn(3, 4)
            sess.run(self.write, {self.ids: [0, 3, 4], self.rows: rows})
            action, _ = sess.run([self.out, self.set_rate], {self.x: x[:1], self.value: 0.05})
            sess.run(self.train, {self.x: x})
            return sess.run([self.bank, self.w, self.rate]) + [action]


def plain_values(init):
    init(1, annotate=False)
    return Bank().values()


@pytest.mark.parametrize("config", [{}, {"zero__level": "v0"}, {"zero__level": "v1"}, {"zero__level": "v2"}])
def test_updates_by_what_is_fed_are_as_of_one_device(init, config):
    expected = plain_values(init)
    init(2, **config)
    for value, wanted in zip(Bank(by_rows=not config).values(), expected):
        np.testing.assert_allclose(value, wanted, rtol=1e-5)


@pytest.mark.parametrize("devices", [2, 4])
def test_in_a_pipeline_the_first_micro_batch_has_all_that_is_fed(init, devices):
    expected = plain_values(init)
    init(devices, annotate=False, pipeline__num_micro_batch=2)
    for value, wanted in zip(Bank([None, None]).values(), expected):
        np.testing.assert_allclose(value, wanted, rtol=1e-5)


def test_in_a_split_each_device_writes_its_part(init):
    expected = plain_values(init)
    init(2, annotate=False)
    for value, wanted in zip(Bank([epl.split(2)]).values(), expected):
        np.testing.assert_allclose(value, wanted, rtol=1e-5)


def test_all_replicas_hold_the_same(init):
    init()
    model = Bank()
    noise = model.bank.assign_add(tf.random_normal([5, 4]))
    count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False)
    add = count.assign_add(1.0)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for op, feed in [
            (model.write, {model.ids: [0, 1], model.rows: np.ones([2, 4])}),
            (noise, {}),
            (add, {}),
            (add, {}),
        ]:
            sess.run(op, feed)
            sess.run(model.train, {model.x: np.ones([4, 3])})
            assert replicas_equal(sess, "bank", "count", "w")
        assert sess.run(count) == 2


def test_one_update_by_a_batch_is_of_the_whole_batch(init):
    """Centres that follow the data without gradients, as those of k-means do."""
    init()
    model = Linear()
    centre = tf.get_variable("centre", [3], initializer=tf.zeros_initializer(), trainable=False)
    follow = centre.assign_add(tf.reduce_sum(model.x, 0))
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        x = model.feed(5)[model.x]
        loss, _ = sess.run([tf.reduce_sum(model.x), follow], {model.x: x})
        np.testing.assert_allclose(sess.run(centre), x.sum(0), rtol=1e-5)
        np.testing.assert_allclose(loss, x.sum(), rtol=1e-5)
        assert replicas_equal(sess, "centre")


@ONLY_1
def test_an_optimizer_of_scipy_trains(init):
    init()
    model = Linear()
    optimizer = tf1.contrib.opt.ScipyOptimizerInterface(model.loss, options={"maxiter": 50})
    feed = model.feed(8)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        optimizer.minimize(sess, feed_dict=feed)
        best = np.linalg.lstsq(feed[model.x], feed[model.y], rcond=None)[0]
        np.testing.assert_allclose(sess.run(model.w), best, atol=1e-4)
        assert replicas_equal(sess, "w")


def test_an_update_beside_an_output_of_the_job_is_refused(init):
    init()
    model = Bank()
    epl.add_to_collection(model.out, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    with tf.Session() as sess:
        sess.run(model.init)
        feed = {model.x: np.ones([4, 3]), model.ids: [0, 1], model.rows: np.ones([2, 4])}
        with pytest.raises(FeedError, match="'ids:0' is fed to a run that writes .*Run the update by itself"):
            sess.run([model.out, model.write], feed)
        assert sess.run([model.out, model.rate.assign_add(1.0)], {model.x: np.ones([4, 3])})[0].shape == (4, 1)


def test_another_process_needs_the_values_of_what_a_step_takes(init):
    init()
    model = Bank()
    best = tf.get_variable("best", [], initializer=tf.zeros_initializer(), trainable=False)
    keep = best.assign(model.value)
    add = model.rate.assign_add(0.1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train, {model.x: np.ones([4, 3])})
        find = Graph.get().runner._planner.plan_run
        assert find([], [model.set_rate.op], [model.value]).written.differs_between_processes
        assert not find([], [keep.op], [model.value]).written.differs_between_processes
        assert not find([], [add.op], []).written.differs_between_processes
        assert not find([], [model.train], [model.x]).written.values
