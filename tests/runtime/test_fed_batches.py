"""A batch that is fed in place of what an iterator gives: nothing is read, and the step is that of plain TensorFlow."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import plain_graph
from tests.parallel.pipelines import dense, rows
from tests.tensorflows import reading_when_asked

BATCH = 8
BATCHES = 4

PLANS = {
    "one device": {"devices": 1},
    "data parallel": {"devices": 2},
    "data parallel groups": {"devices": 2, "optimizer__num_apply_group": 2},
    "zero": {"devices": 2, "zero__level": "v1"},
    "divided": {"devices": 4, "together": 4},
    "divided by groups": {"devices": 4, "together": 2},
    "stages": {"devices": 2, "stages": True},
    "stages 4": {"devices": 2, "stages": True, "pipeline__num_micro_batch": 4},
    "stages 2 replicas": {"devices": 4, "stages": True, "pipeline__num_micro_batch": 2},
}


class Read:
    """Least squares by two layers on batches that are noted in `drawn`; a metric, and steps that the script counts."""

    def __init__(self, stage, rows_known=False):
        self.drawn = []
        shapes = ([BATCH if rows_known else None, 3], [BATCH if rows_known else None, 1])
        dataset = tf.data.Dataset.from_generator(self.batches, (tf.float32, tf.float32), shapes)
        self.iterator = reading_when_asked(dataset).make_initializable_iterator()
        step = tf.train.get_or_create_global_step()
        with stage():
            self.x, self.y = self.iterator.get_next()
            hidden = dense(self.x, 3, 0, tf.tanh)
        with stage():
            self.out = dense(hidden, 1, 1, None)
            self.loss = tf.reduce_mean(tf.square(self.out - self.y))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)
        _, self.mean_op = tf.metrics.mean(tf.square(self.x))  # of x itself, plain TensorFlow waits for what reads it
        self.count = next(v for v in tf.local_variables() if v.op.name.endswith("count"))  # of the metric
        self.variables = tf.global_variables() + tf.local_variables()
        self.train_op = tf.group(train_op, self.mean_op, tf.assign_add(step, 1))

    def batches(self):
        for number in range(BATCHES):
            self.drawn.append(number)
            yield rows(BATCH, seed=number), rows(BATCH, 1, seed=number)

    def begin(self, session):
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), self.iterator.initializer])

    def feed(self, number, count=BATCH):
        return {self.x: rows(count, seed=10 + number), self.y: rows(count, 1, seed=10 + number)}

    def values(self, session):
        """All variables of the script by name, the metric and the step included."""
        return session.run({variable.op.name: variable for variable in self.variables})


def begin(init, devices, together=1, stages=False, rows_known=False, **config):
    """The model in a fresh graph."""
    init(devices, annotate=False, **config)
    if stages:
        return Read(lambda: epl.replicate(1), rows_known)
    with epl.replicate(together):
        return Read(contextlib.suppress, rows_known)


def plain_losses(count, known=BATCH):
    """The losses of fed steps, and the weights after them, in plain TensorFlow, which reads nothing."""
    with plain_graph():
        model = Read(contextlib.suppress)
        with tf.Session() as session:
            model.begin(session)
            losses = [session.run([model.loss, model.train_op], model.feed(n, known))[0] for n in range(count)]
            assert model.drawn == []
            return losses, model.values(session)


def assert_equal(values, expected):
    for name, one in expected.items():
        np.testing.assert_array_equal(values[name], one, err_msg=name)


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_a_fed_step_reads_nothing(init, plan):
    losses, weights = plain_losses(4)
    model = begin(init, **PLANS[plan])
    with tf.Session() as session:
        model.begin(session)
        for number in range(2):
            seen = session.run([model.loss, model.train_op], model.feed(number))[0]
            assert seen == pytest.approx(losses[number], rel=1e-5)
            assert model.drawn == []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                session.run(model.out)
        before = model.values(session)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(model.train_op)
        assert_equal(model.values(session), before)
        for number in range(2, 4):
            seen = session.run([model.loss, model.train_op], model.feed(number))[0]
            assert seen == pytest.approx(losses[number], rel=1e-5)
        for name in ("d0/kernel", "d0/bias", "d1/kernel", "d1/bias", "global_step"):
            np.testing.assert_allclose(model.values(session)[name], weights[name], rtol=1e-5, atol=1e-7)


def test_what_is_not_fed_is_read(init):
    model = begin(init, 2)
    with tf.Session() as session:
        model.begin(session)
        session.run(model.train_op, {model.x: rows(2 * BATCH)})  # y is of one batch for each device
        assert model.drawn == [0, 1]


@pytest.mark.parametrize("together, devices", [(2, 2), (2, 4), (4, 4)])
def test_what_needs_one_output_alone_reads_nothing(init, together, devices):
    model = begin(init, devices, together)
    with tf.Session() as session:
        model.begin(session)
        for count in (1, 3, 20):  # rows that the batches do not have
            assert session.run(model.out, {model.x: rows(count)}).shape == (count, 1)
        assert model.drawn == []


def test_fed_batches_of_known_rows(init, caplog):
    losses, _ = plain_losses(2, 2 * BATCH)
    model = begin(init, 2, rows_known=True)
    with tf.Session() as session:
        model.begin(session)
        for number in range(2):  # a batch for each device
            seen = session.run([model.loss, model.train_op], model.feed(number, 2 * BATCH))[0]
            assert seen == pytest.approx(losses[number], rel=1e-5)
        assert "each of the 2 local replicas gets all" not in caplog.text
        session.run(model.train_op, model.feed(2))  # one for both
        assert "each of the 2 local replicas gets all" in caplog.text
        assert model.drawn == []


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_an_evaluation_has_all_that_is_fed(init, plan):
    model = begin(init, **PLANS[plan])
    with tf.Session() as session:
        model.begin(session)
        feed = model.feed(0, 5)  # as many rows as no plan could share out evenly
        out = session.run(model.out, feed)
        assert session.run(model.loss, feed) == pytest.approx(np.mean(np.square(out - feed[model.y])), rel=1e-5)
        session.run(model.mean_op, feed)
        assert session.run(model.count) == 5 * 3
        assert model.drawn == []
