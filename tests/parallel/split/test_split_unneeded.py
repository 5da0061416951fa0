"""Ops of a split that a run does not need are not computed, and neither do their collectives run."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.replica_groups import ReplicaGroups
from tests.parallel.in_process import marks
from tests.tensorflows import reading_when_asked

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(8, 6).astype("f")
Y = X.sum(1, keepdims=True)
WIDE = 3000  # so large that the weights are in parts
WIDE_LAYERS = (("w", [6, WIDE]), ("v", [WIDE, 1]))


@contextlib.contextmanager
def staged():
    """A stage of a pipeline, and a split in it."""
    with epl.replicate(1), epl.split(2):
        yield


class Towers:
    """Two towers that are trained, a branch that scores, and one that counts: each with a placeholder of its own."""

    def __init__(self, scope=None):
        self.x, self.z, self.query, self.seen = [
            tf.placeholder(tf.float32, [None, 6], name) for name in ("x", "z", "query", "seen")
        ]
        self.y = tf.placeholder(tf.float32, [None, 1], "y")
        with scope() if scope else tf.name_scope("towers"):
            w, v = [
                tf.get_variable(name, shape, initializer=tf.random_normal_initializer(seed=1, stddev=0.01))
                for name, shape in (("w", [6, WIDE]), ("v", [WIDE, 1]))
            ]
            self.score = tf.nn.tanh(tf.matmul(tf.nn.tanh(tf.matmul(self.query, w)), v), name="score")
            self.first = tf.matmul(tf.nn.tanh(tf.matmul(self.x, w)), v, name="first")
            self.second = tf.matmul(tf.nn.tanh(tf.matmul(self.z, w)), v, name="second")
            total = tf.get_variable("total", [], initializer=tf.zeros_initializer(), trainable=False)
            self.count = total.assign_add(tf.reduce_sum(tf.matmul(tf.nn.tanh(tf.matmul(self.seen, w)), v)))
            self.losses = [tf.reduce_mean(tf.square(out - self.y)) for out in (self.first, self.second)]
            self.loss = tf.add_n(self.losses)

    def train(self, joint=True):
        optimizers = [tf.train.GradientDescentOptimizer(0.01) for _ in range(2)]
        if joint:
            self.train_ops = [optimizers[0].minimize(self.loss)]
        else:
            self.train_ops = [one.minimize(loss) for one, loss in zip(optimizers, self.losses)]
        return self

    def results(self):
        """What runs give that each feed no more than they need."""
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            found = [sess.run(self.score, {self.query: X[:3]})]
            if len(self.train_ops) == 1:
                for _ in range(2):
                    found.append(sess.run([self.loss, *self.train_ops], {self.x: X, self.z: 2 * X, self.y: Y})[0])
            found.append(sess.run(self.second, {self.z: X[:5]}))
            found.append(sess.run(self.count, {self.seen: X[:2]}))
            if len(self.train_ops) > 1:
                found.append(sess.run(self.train_ops[1:] + [self.losses[1]], {self.z: X, self.y: Y})[-1])
                found.append(sess.run(self.train_ops[:1] + [self.losses[0]], {self.x: X, self.y: Y})[-1])
            both = {self.x: X, self.z: X, self.y: Y, self.query: X[:4]}
            found.append(sess.run([self.losses[0], self.train_ops[0], self.score], both)[0])
            return found + [sess.run(variable) for variable in tf.trainable_variables()]


def check(init, joint, scope, devices=2, **config):
    init(1, annotate=False)
    expected = Towers().train(joint).results()
    init(devices, annotate=False, **config)
    for value, wanted in zip(Towers(scope).train(joint).results(), expected):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("joint", [True, False], ids=["one training", "two trainings"])
def test_each_run_needs_what_it_fetches(init, joint):
    check(init, joint, lambda: epl.split(2))
    split = Graph.get().state_of(ReplicaGroups)
    assert len(split.resharder.collectives) > 4 and split.shards


def test_a_step_runs_no_collective_of_the_branch_that_scores(init):
    init(2, annotate=False)
    model = Towers(lambda: epl.split(2)).train()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_ops, {model.x: X, model.z: X, model.y: Y})
        data, options = tf.RunMetadata(), tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        sess.run(model.train_ops, {model.x: X, model.z: X, model.y: Y}, options, data)
        ran = {node.node_name for device in data.step_stats.dev_stats for node in device.node_stats}
        split = Graph.get().state_of(ReplicaGroups)
        collectives = [op.name for op in split.resharder.collectives]
        idle = [name for name in collectives if name not in ran]
        assert 0 < len(idle) < len(collectives)
        assert [name for name in collectives if "EPL_REPLICA_1/" + name not in ran] == idle
        assert marks("key", [sess.graph.get_operation_by_name(name) for name in idle])


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_in_the_stages_of_a_pipeline(init, micro_batches):
    def build(annotated):
        x, query, y = [tf.placeholder(tf.float32, [None, n], name) for n, name in ((6, "x"), (6, "query"), (1, "y"))]
        with staged() if annotated else contextlib.ExitStack():
            u = tf.get_variable("u", [6, 6], initializer=tf.random_normal_initializer(seed=2))
            hidden, asked = tf.tanh(tf.matmul(x, u)), tf.tanh(tf.matmul(query, u))
        with staged() if annotated else contextlib.ExitStack():
            w = tf.get_variable("w", [6, WIDE], initializer=tf.random_normal_initializer(seed=1, stddev=0.01))
            v = tf.get_variable("v", [WIDE, 1], initializer=tf.random_normal_initializer(seed=3, stddev=0.01))
            score = tf.matmul(tf.tanh(tf.matmul(asked, w)), v)
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(tf.matmul(hidden, w)), v) - y))
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            found = [sess.run([loss, train_op], {x: X, y: Y})[0] for _ in range(3)]
            found.append(sess.run(score, {query: X[:3]}))
            found.append(sess.run([loss, train_op, score], {x: X, y: Y, query: X})[0])
            return found + [sess.run(variable) for variable in tf.trainable_variables()]

    init(1, annotate=False)
    expected = build(False)
    init(4, annotate=False, pipeline__num_micro_batch=micro_batches)
    for value, wanted in zip(build(True), expected):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=1e-6)


class Read:
    """A training and a score that each have an iterator of their own, in one split; `drawn` notes what is read."""

    def __init__(self, around, split, query_first=False):
        self.drawn = []
        step = tf.train.get_or_create_global_step()
        names = ("query", "x") if query_first else ("x", "query")
        data = {name: self.batches(name) for name in names}
        x, y, query = data["x"][:, :6], data["x"][:, 6:], data["query"][:, :6]
        initializer = tf.random_normal_initializer(seed=1, stddev=0.01)
        with around():
            u = tf.get_variable("u", [6, 6], initializer=tf.random_normal_initializer(seed=2))
            hidden, asked = tf.tanh(tf.matmul(x, u)), tf.tanh(tf.matmul(query, u))
        with split():
            w, v = [tf.get_variable(name, shape, None, initializer) for name, shape in WIDE_LAYERS]
            self.score = tf.reduce_mean(tf.square(tf.matmul(tf.nn.tanh(tf.matmul(asked, w)), v)))
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.tanh(tf.matmul(hidden, w)), v) - y))
        _, metric = tf.metrics.mean(tf.square(y))
        self.train_op = tf.group(tf.train.GradientDescentOptimizer(0.01).minimize(loss), metric, tf.assign_add(step, 1))

    def batches(self, name):
        def read():
            for number in range(8):
                self.drawn.append(name)
                yield (number + 1) * np.concatenate([X, Y], 1)

        dataset = tf.data.Dataset.from_generator(read, tf.float32, [None, 7])
        return reading_when_asked(dataset).make_one_shot_iterator().get_next()

    def results(self):
        """Scores and weights of runs by turns, and what each has read."""
        with tf.Session() as sess:
            sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            found, read = [], []
            for asked in (self.train_op, self.score, self.score, self.train_op):
                self.drawn.clear()
                found.append(sess.run(asked))
                read.append(sorted(self.drawn))
            return [one for one in found if one is not None] + sess.run(tf.global_variables()), read


@pytest.mark.parametrize("query_first", [False, True])
def test_data_of_the_branch_that_scores_is_not_read(init, query_first):
    init(1, annotate=False)
    expected, read = Read(contextlib.suppress, contextlib.suppress, query_first).results()
    assert read == [["x"], ["query"], ["query"], ["x"]]
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    results, read = Read(lambda: epl.replicate(2), lambda: epl.split(2), query_first).results()
    assert read == [["x"], ["query"], ["query"], ["x"]]
    for value, wanted in zip(results, expected):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("query_first", [False, True])
def test_each_device_reads_what_its_run_needs(init, query_first):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    _, read = Read(lambda: epl.replicate(1), lambda: epl.split(2), query_first).results()
    assert read == [["x"] * 2, ["query"] * 2, ["query"] * 2, ["x"] * 2]


def test_each_micro_batch_reads_what_its_run_needs(init):
    init(4, annotate=False, pipeline__num_micro_batch=2)
    _, read = Read(staged, staged, query_first=True).results()
    assert read == [["x"] * 4, ["query"] * 2, ["query"] * 2, ["x"] * 4]
