"""Splits in the stages of a pipeline: what is in which stage, the order of collectives, what is refused."""

from collections import defaultdict

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.utils.errors import PlanError
from tests.parallel.in_process import init, rewritten  # noqa: F401

WIDE = 2003


class Model:
    """Two stages, a wide layer split in each, and what is computed after the loss."""

    def __init__(self, ranks=2):
        wide = tf.random_normal_initializer(stddev=0.05, seed=1)
        self.x = tf.placeholder(tf.float32, [None, 16])
        self.y = tf.placeholder(tf.int32, [None])
        with epl.replicate(1), epl.split(ranks):
            hidden = tf.layers.dense(self.x, WIDE, tf.nn.tanh, kernel_initializer=wide)
            hidden = tf.layers.dense(hidden, 64, kernel_initializer=wide)
        with epl.replicate(1):
            hidden = tf.layers.dense(hidden, 64, tf.nn.tanh)
            with epl.split(ranks):
                logits = tf.layers.dense(hidden, WIDE, kernel_initializer=wide)
                self.loss = tf.losses.sparse_softmax_cross_entropy(self.y, logits)
                self.best = tf.reduce_max(tf.nn.softmax(logits))
                self.total = tf.reduce_sum(self.y)

    def minimize(self):
        return tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)

    def feed(self, rows=24):
        random = np.random.RandomState(0)
        return {self.x: random.rand(rows, 16), self.y: random.randint(0, WIDE, rows)}


def by_communicator(view, prefix):
    found = defaultdict(list)
    for node in view.of_types(COLLECTIVE_OP_TYPES):
        communicator = view.nodes[node].attr["communicator"].s.decode()
        if "/split/stage" in communicator and view.nodes[node].name.startswith("EPL_REPLICA") == bool(prefix):
            found[communicator].append(node)
    return found


@pytest.mark.parametrize("schedule", ["PreferForward", "PreferBackward"])
def test_the_collectives_of_a_communicator_are_in_one_order_without_the_schedule(init, schedule):  # noqa: F811
    init(4, annotate=False, pipeline__num_micro_batch=3, pipeline__strategy=schedule)
    Model().minimize()
    rewrite = rewritten()
    view = GraphView(tf.get_default_graph())
    barriers = {name.partition(":")[0] for names in rewrite.barriers for name in names}
    for prefix in ("", "EPL_REPLICA_1/"):
        idle = {view.index[prefix + name] for name in barriers}
        streams = by_communicator(view, prefix)
        assert {name.partition("/split/")[2] for name in streams} == {
            "stage0/forward0", "stage0/backward0", "stage1/forward0", "stage1/backward0", "stage1/once",
        }  # fmt: skip
        for name, nodes in streams.items():
            if name.endswith("once"):  # the rows of all ranks, in no micro batch
                assert len(nodes) == 1
                continue
            assert len(nodes) >= 3
            before = [len(view.ancestors([node], idle.__contains__).intersection(nodes)) for node in nodes]
            assert sorted(before) == list(range(1, len(nodes) + 1))  # each has all of those before it


def test_what_is_behind_the_loss_can_be_fetched_in_a_training_step_and_alone(init):  # noqa: F811
    init(4, annotate=False, pipeline__num_micro_batch=3)
    model = Model()
    train_op = model.minimize()
    feed = model.feed()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        alone, loss = sess.run([model.best, model.loss], feed)  # of all rows
        first, trained, _ = sess.run([model.best, model.loss, train_op], feed)  # the best of micro batch 0
        of_first = {tensor: rows[:4] for tensor, rows in feed.items()}
        assert sess.run(model.best, of_first) != first  # the step has changed the weights
    np.testing.assert_allclose(trained, loss, rtol=1e-6)
    assert 0 < first <= alone * (1 + 1e-6)  # products of other sizes


def test_a_value_whose_gradient_alone_needs_a_collective_is_fetched_in_a_training_step(init):  # noqa: F811
    """TensorFlow finds that on replica 0 nothing takes what the collective gives."""
    init(2, annotate=False, cluster__colocate_split_and_replicate=True, communication__timeout=15)
    x, y = tf.placeholder(tf.float32, [None, 16]), tf.placeholder(tf.int32, [None])
    with epl.split(2):
        logits = tf.layers.dense(x, WIDE)
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
        best = tf.reduce_max(tf.nn.softmax(logits))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    feed = {x: np.random.RandomState(0).rand(8, 16), y: np.arange(8)}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        expected = sess.run(best, feed)
        np.testing.assert_allclose(sess.run([best, train_op], feed)[0], expected, rtol=1e-6)


def test_a_scope_that_makes_other_stages_behind_the_gradients_is_refused(init):  # noqa: F811
    init(4, annotate=False)
    model = Model()
    train_op = model.minimize()
    for _ in range(2):
        with epl.replicate(1):
            model.best = tf.identity(model.best)
    with pytest.raises(
        PlanError, match=r"2 stage\(s\) when its variables were cut into parts \(epl.split\)"
    ), tf.Session() as sess:
        sess.run([train_op, model.best], model.feed())


def test_a_worker_without_a_device_of_the_model_is_refused(init):  # noqa: F811
    init(4, annotate=False)
    own = Env.get().cluster.available_devices
    layout = {"specific": [[[own[stage]], [own[stage + 2]]] for stage in range(2)]}
    Env.get().use(epl.Cluster(worker_hosts=["localhost:1", "localhost:2"], worker_index=0, layout=layout))
    with pytest.raises(PlanError, match=r"gives worker\(s\) 1 no device of it"):
        Model().minimize()
    assert Graph.get().failure is not None


def test_outputs_are_merged_over_micro_batches_and_devices(init):  # noqa: F811
    """One in the split counts once for both devices, and one outside of it on each; a mean is the same."""
    init(4, annotate=False, pipeline__num_micro_batch=2)
    model = Model()
    train_op = model.minimize()
    alone, best = tf.identity(model.best), tf.identity(model.best)
    epl.add_to_collection([model.best, best], epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    epl.add_to_collection(model.total, epl.GraphKeys.GLOBAL_SUM_OBJECTS)
    feed = model.feed(24)  # the first replica has the first half, of which micro batch 0 is the first half
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        rows_of = [list(range(at, at + 6)) + list(range(at + 12, at + 18)) for at in (0, 6)]
        own = [{tensor: values[rows] for tensor, values in feed.items()} for rows in rows_of]
        expected = np.mean([sess.run(alone, of_micro_batch) for of_micro_batch in own])
        inside, outside, found, _ = sess.run([model.best, best, model.total, train_op], feed)
    np.testing.assert_allclose([inside, outside], [expected] * 2, rtol=1e-6)
    assert found == feed[model.y].sum()


def test_groups_that_the_replicas_of_a_stage_do_not_make_are_refused(init):  # noqa: F811
    init(4, annotate=False)
    with pytest.raises(PlanError, match=r"epl.split\(4\) needs groups of 4 devices, and each stage of the model has 2"):
        Model(4).minimize()
