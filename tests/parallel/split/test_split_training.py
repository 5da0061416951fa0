"""How epl.split is decided and what it becomes, on devices of one process."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.view import ancestor_ops
from epl.parallel import transformation
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.parallel.split import model as split_training
from epl.parallel.split import section
from epl.parallel.split.resharding_paths import LINKS, Link
from epl.runtime.run_plan import RunPlanner
from epl.utils.errors import PlanError
from tests.parallel.in_process import error_text, rewritten

COLOCATED = {"cluster__colocate_split_and_replicate": True}


def train_parts(x):
    """A loss all of whose variables are parts, and what it is trained with."""
    with epl.split(2):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1001)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert {variable.op.name for variable in tf.trainable_variables()} <= set(
        Graph.get().state_of(ReplicaGroups).shards
    )
    return loss, train_op


def test_what_moves_costs_what_the_links_of_the_devices_take(init, monkeypatch):
    seen = []
    search = section.search
    monkeypatch.setattr(section, "search", lambda program, link, **_: seen.append(link) or search(program, link))
    monkeypatch.setitem(LINKS, "cpu", Link(1e-3, 1e8))
    init(2, annotate=False, **COLOCATED)
    train_parts(tf.placeholder(tf.float32, [None, 8]))
    assert seen == [Link(1e-3, 1e8)]


def test_a_global_output_is_merged_in_each_step_of_parts_alone(init):
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 8])
    _, train_op = train_parts(x)
    total = tf.reduce_sum(x)
    epl.add_to_collection(total, epl.GraphKeys.GLOBAL_SUM_OBJECTS)
    rewrite = rewritten()
    step = RunPlanner(rewrite).plan_run([], [train_op], [x])
    assert rewrite.merged[total.name].op in {op.name for op in step.targets}


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_writes_from_own_data_wait_for_the_data_of_all_where_parts_alone_are_trained(init, micro_steps):
    init(2, annotate=False, pipeline__num_micro_batch=micro_steps, **COLOCATED)
    data = tf.data.Dataset.from_tensor_slices(np.ones([20, 8], "f")).batch(4)
    x = data.make_one_shot_iterator().get_next()
    seen = tf.get_variable("seen", [], initializer=tf.zeros_initializer(), trainable=False)
    count = seen.assign_add(tf.reduce_sum(x))
    _, train_op = train_parts(x)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        steps = 0
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                sess.run([train_op, count])
                steps += 1
        assert sess.run(seen) == steps * 4 * 8
    ((gate, _),) = Graph.get().rewritten.gates
    assert x.op in ancestor_ops(gate.control_inputs) and gate in ancestor_ops(count.op.control_inputs)


@pytest.mark.parametrize("broken", ["finish", "planning"])
def test_a_graph_whose_parts_were_changed_in_vain_does_not_run(init, monkeypatch, broken):
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 8])
    _, train_op = train_parts(x)

    def fails(*_):
        raise PlanError("half changed")

    with monkeypatch.context() as patch:
        owner, name = (split_training.SplitModel, "finish") if broken == "finish" else (transformation, "find_groups")
        patch.setattr(owner, name, fails)
        with tf.Session() as sess:
            assert error_text(sess.run, train_op, {x: np.ones([2, 8])}) == "PlanError: half changed"
    with tf.Session() as sess:
        assert error_text(sess.run, train_op, {x: np.ones([2, 8])}) == "PlanError: half changed"


@pytest.mark.parametrize("resource", [False, True])
def test_a_fed_variable_of_which_there_are_parts_is_refused(init, resource):
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.split(2):
        table = tf.get_variable("table", [8, 1001], use_resource=resource)
        value = tf.convert_to_tensor(table)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, value)))
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    (slot,) = [variable for variable in tf.global_variables() if "Momentum" in variable.op.name]
    feed = {x: np.ones([2, 8])}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for fed in (table, value, slot):
            text = error_text(sess.run, train_op, {**feed, fed: np.zeros(fed.shape)})
            assert text.startswith("FeedError: ") and "each of 2 devices has a part of it (epl.split)" in text
        sess.run(train_op, feed)


def test_variables_of_a_split_that_is_opened_behind_the_gradients_are_refused(init):
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 8])
    _, train_op = train_parts(x)
    with epl.split(2):
        late = tf.reduce_mean(tf.square(tf.layers.dense(x, 1001, name="late")))
    second = tf.train.GradientDescentOptimizer(0.1).minimize(late)
    with tf.Session() as sess:
        text = error_text(sess.run, [train_op, second], {x: np.ones([2, 8])})
    assert text.startswith(f"PlanError: 'late/kernel' ({__file__}:") and "after the tf.gradients" in text


def test_a_whole_variable_that_is_shared_behind_the_gradients_is_refused(init):
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.split(2):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1001, name="head")))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.variable_scope("", reuse=True):
        assert tf.get_variable("head/kernel") is tf.trainable_variables()[0]
    with pytest.raises(PlanError, match="'head/kernel' is asked for again .reuse. after tf.gradients"):
        tf.layers.dense(x, 1001, name="head", reuse=True)


def test_a_variable_of_a_split_that_is_opened_behind_the_first_run_is_refused(init):
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 8])
    scope = epl.split(2)
    with scope:
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1001)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([2, 8])})
        with scope:
            late = tf.get_variable("late", [8, 1001])
        assert "PlanError: 'late' (" in error_text(sess.run, late.initializer)


def test_what_has_no_variables_to_split_may_follow_the_gradients(init):
    """Scalars, metrics and slots in a late scope, and variables outside of it."""
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.split(2):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1001)))
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    gradients = optimizer.compute_gradients(loss)
    with epl.split(2):
        train_op = optimizer.apply_gradients(gradients, tf.train.get_or_create_global_step())
        average = tf.train.ExponentialMovingAverage(0.5)
        with tf.control_dependencies([train_op]):
            averaged = average.apply(tf.trainable_variables())
        mean, update = tf.metrics.mean(x)
    outside = tf.get_variable("outside", [8, 3])
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run([averaged, update], {x: np.ones([2, 8])})
        assert sess.run([mean, outside], {x: np.ones([2, 8])})[0] == 1


def test_a_split_over_a_worker_that_serves_another_model_is_refused(init, monkeypatch):
    """It would be waited for in vain."""
    init(1, annotate=False, **COLOCATED)
    Env.get().use(epl.Cluster(worker_hosts=["localhost:1", "localhost:2"], worker_index=0, layout="auto"))
    server = SimpleNamespace(serving={1}, service=SimpleNamespace(over=False, job=None))
    monkeypatch.setattr(Env.get(), "process_server", server)
    with pytest.raises(PlanError, match=r"worker\(s\) 1 that serve it have left the script"):
        train_parts(tf.placeholder(tf.float32, [None, 8]))
