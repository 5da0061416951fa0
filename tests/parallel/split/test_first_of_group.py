"""Scopes of epl.replicate with fewer devices than others: what is planned, built and said of them, in one process."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan import plan as plans
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.parallel.plan.sections import SplitSection
from epl.utils.errors import NotAvailableError, PlanError
from tests.parallel.in_process import rewritten


def model(layers=1, change=tf.nn.relu):
    """A layer on both devices, and others on the first one."""
    x = tf.placeholder(tf.float32, [None, 8], "x")
    with epl.replicate(2):
        hidden = tf.layers.dense(x, 16, tf.tanh, name="body")
    with epl.replicate(1):
        for number in range(layers):
            hidden = tf.layers.dense(hidden, 64, change, name=f"wide{number}")
        return tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="out")))


def train(loss):
    """The plan of a training step."""
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return rewritten()


def test_the_plan_has_the_annotation_and_the_bytes_of_each_rank(init):
    init(2, annotate=False)
    plan = train(model()).plan
    assert plans.from_json(plans.to_json(plan)) == plan
    section = plans.section(plan, SplitSection)
    scope = Graph.get().taskgraphs[1].strategy
    assert [one.scope for one in section.ratios] == [f"{scope} on the first of each 2 devices"]
    assert {one.variable for one in section.variables} == {"wide0/kernel", "wide0/bias", "out/kernel", "out/bias"}
    assert all(len(one.sizes) == 2 and one.sizes[1] == 0 for one in section.variables)
    assert f"TaskGraph 1, 1:0: {scope} on the first of each 2 devices" in plans.describe(plan)
    assert "variables on the ranks of a group: 0.005 MB, 0.000 MB" in plans.describe(plan)


def test_layers_of_one_device_exchange_nothing(init):
    def collectives(layers):
        init(2, annotate=False)
        view = GraphView(train(model(layers)).tf_graph)
        return sum(op_type in COLLECTIVE_OP_TYPES for op_type in view.types)

    assert collectives(1) == collectives(3)


def test_where_the_smaller_scope_is_is_told(init, caplog):
    init(2, annotate=False)
    with caplog.at_level("INFO", logger="epl"):
        train(model())
    assert "on the first of each 2 ranks, which bring it their rows; it shares the devices of" in caplog.text


def test_an_op_that_every_device_computes_is_named(init, caplog):
    init(2, annotate=False)
    with caplog.at_level("INFO", logger="epl"):
        train(model(change=lambda hidden: tf.linalg.cross(hidden[:, :3], hidden[:, 3:6])))
    assert 'Cross "' in caplog.text and "has no rule: computed in full on every device" in caplog.text


def test_the_smaller_scope_is_lowered_before_other_variables_are_made_in_it(init):
    init(2, annotate=False)
    loss = model()
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    assert "EPL_SPLIT/wide0/kernel" in Graph.get().state_of(ReplicaGroups).shards
    with epl.replicate(1):
        tf.layers.dense(tf.zeros([4, 4]), 4, name="late")
    with pytest.raises(PlanError, match="'late/kernel' .* is made in .* on the first of each 2 devices, after"):
        rewritten()


def test_gradients_that_the_script_computes_are_refused(init):
    init(2, annotate=False)
    model()
    variables = tf.trainable_variables()
    tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(tf.zeros(one.shape), one) for one in variables])
    with pytest.raises(NotAvailableError, match="of each 2 devices cannot be lowered without tf.gradients"):
        rewritten()
