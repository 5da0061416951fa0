"""Output collections of tensors of a split: merged values are those of one device with the rows of all."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.runtime.run_plan import RunPlanner
from tests.parallel.in_process import rewritten

COLOCATED = {"cluster__colocate_split_and_replicate": True}
KEYS = epl.GraphKeys
ROWS = np.random.RandomState(0).rand(8, 16)


class Model:
    """A wide layer in a scope, and values of rows and of all of the batch."""

    def __init__(self, scope):
        self.x = tf.placeholder(tf.float32, [None, 16])
        with scope:
            initial = tf.random_normal_initializer(stddev=0.5, seed=1)
            logits = tf.layers.dense(self.x, 1001, name="head", kernel_initializer=initial)
            self.loss = tf.reduce_mean(tf.square(logits))
            self.best = tf.argmax(logits, 1)
            self.count = tf.reduce_sum(tf.cast(logits > 0, tf.int32))
            self.mean = tf.reduce_mean(logits, 0)
            self.kernel = tf.trainable_variables()[0].value()


def plain(rows):
    """What one device has for rows."""
    with tf.Graph().as_default(), tf.Session() as sess:
        model = Model(contextlib.ExitStack())
        sess.run(tf.global_variables_initializer())
        return sess.run([model.loss, model.best, model.count, model.mean, model.kernel], {model.x: rows})


@pytest.mark.parametrize(
    "devices, scope, scalars",
    [
        (2, "GLOBAL", "MEAN"),
        *[
            pytest.param(*case, marks=pytest.mark.long)
            for case in itertools.product((2, 4), ("GLOBAL", "LOCAL"), ("MEAN", "CONCAT"))
            if case != (2, "GLOBAL", "MEAN")
        ],
    ],
)
def test_merged_values_are_those_of_one_device(init, devices, scope, scalars):
    """Two devices are one group, four are two groups with half of the rows each."""
    init(devices, annotate=False, **COLOCATED)
    model = Model(epl.split(2))
    for tensor, how in ((model.loss, scalars), (model.best, "CONCAT"), (model.count, "SUM"), (model.mean, "MEAN")):
        epl.add_to_collection(tensor, getattr(KEYS, f"{scope}_{how}_OBJECTS"))
    epl.add_to_collection(model.kernel, getattr(KEYS, f"{scope}_MEAN_OBJECTS"))
    fetches = [model.loss, model.best, model.count, model.mean]
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    assert Graph.get().state_of(ReplicaGroups).shards
    expected = plain(ROWS)
    if scalars == "CONCAT" and devices == 4:
        expected[0] = [plain(rows)[0] for rows in np.split(ROWS, 2)]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        kernel = sess.run(model.kernel, {model.x: ROWS})  # ahead of the step: beside it, it may be of before or after
        found = [*sess.run([fetches, train_op], {model.x: ROWS})[0], kernel]
    for value, one in zip(found, expected):
        assert np.shape(value) == np.shape(one)
        np.testing.assert_allclose(value, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_global", [True, pytest.param(False, marks=pytest.mark.long)])
def test_values_without_a_step_are_those_of_one_device(init, is_global):
    init(2, annotate=False, **COLOCATED)
    model = Model(epl.split(2))
    scope = "GLOBAL" if is_global else "LOCAL"
    for tensor, how in ((model.loss, "MEAN"), (model.best, "CONCAT"), (model.count, "SUM")):
        epl.add_to_collection(tensor, getattr(KEYS, f"{scope}_{how}_OBJECTS"))
    tf.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for tensor, one in zip([model.loss, model.best, model.count], plain(ROWS)):
            np.testing.assert_allclose(sess.run(tensor, {model.x: ROWS}), one, rtol=1e-5)


def test_a_global_mean_is_merged_in_each_step_of_parts_alone(init):
    init(2, annotate=False, **COLOCATED)
    model = Model(epl.split(2))
    outside = tf.reduce_sum(model.x)
    epl.add_to_collection([model.loss, outside], KEYS.GLOBAL_MEAN_OBJECTS)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    rewrite = rewritten()
    targets = {op.name for op in RunPlanner(rewrite).plan_run([], [train_op], [model.x]).targets}
    assert len(rewrite.merged) >= 2 and {one.op for one in rewrite.merged.values() if one.op} <= targets


@pytest.mark.long
def test_a_summary_of_a_sum_shows_the_merged_value(init):
    init(4, annotate=False, **COLOCATED)
    model = Model(epl.split(2))
    epl.add_to_collection(model.count, KEYS.LOCAL_SUM_OBJECTS)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    shown = tf.summary.scalar("count", model.count)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        summary = tf.Summary.FromString(sess.run([shown, train_op], {model.x: ROWS})[0])
    assert summary.value[0].simple_value == plain(ROWS)[2]


def sums(x, scope):
    """What is computed of a batch in several ways; the last one is of a size that is told by the shape."""
    with scope:
        initial = tf.random_normal_initializer(stddev=0.5, seed=1)
        logits = tf.layers.dense(x, 1001, name="head", kernel_initializer=initial)
        total, count = tf.reduce_sum(logits), tf.reduce_sum(tf.cast(logits > 0, tf.int32))
        labels = tf.argmax(tf.abs(logits), 1)
        rows = tf.cast(tf.shape(logits)[0], tf.float32)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        return loss, [
            total,
            count,
            tf.nn.l2_loss(logits),
            tf.reduce_sum(logits, 0),
            tf.reduce_mean(tf.reduce_sum(logits, 0)),
            tf.matmul(logits[:, :3], logits[:, :2], transpose_a=True),
            total / tf.cast(count, tf.float32),
            tf.losses.sparse_softmax_cross_entropy(labels, logits, tf.cast(labels > 500, tf.float32)),
            tf.reduce_max(logits),
            total / rows,
        ]


def test_sums_over_fed_rows_are_those_of_one_device(init):
    """Where nothing is trained both devices have all rows."""
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 16])
    loss, found = sums(x, epl.split(2))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        values = sess.run([loss, *found], {x: ROWS})
    with tf.Graph().as_default(), tf.Session() as sess:
        x = tf.placeholder(tf.float32, [None, 16])
        loss, found = sums(x, contextlib.ExitStack())
        sess.run(tf.global_variables_initializer())
        expected = sess.run([loss, *found], {x: ROWS})
    for value, one in zip(values, expected):
        assert value.dtype == one.dtype
        np.testing.assert_allclose(value, one, rtol=1e-4, atol=1e-3)


def test_collectives_of_outputs_that_a_step_merges_unasked_keep_their_order(init):
    """The step merges the kernel, although it does not fetch it: later collectives wait for its gather."""
    init(2, annotate=False, **COLOCATED)
    model = Model(epl.split(2))
    for tensor, how in ((model.loss, "MEAN"), (model.best, "CONCAT"), (model.count, "SUM"), (model.mean, "MEAN")):
        epl.add_to_collection(tensor, getattr(KEYS, f"GLOBAL_{how}_OBJECTS"))
    epl.add_to_collection(model.kernel, KEYS.GLOBAL_MEAN_OBJECTS)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    rewrite = rewritten()
    needed = [one for one in rewrite.orders if one.barriers[0].startswith("EPL_PLAN/needed/")]
    (order,) = [one for one in needed if all("EPL_SPLIT" not in name for name in one.writes)]
    planner = RunPlanner(rewrite)
    for fetches in ([], [model.loss, model.best, model.count, model.mean]):
        plan = planner.plan_run(fetches, [train_op], [model.x])
        assert not {tensor.name for tensor in plan.barriers}.intersection(order.barriers)
