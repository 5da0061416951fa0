"""A split over fewer devices than there are: what is planned and built for its groups, on devices of one process."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan import plan as plans
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.parallel.split.groups import split_groups
from tests.parallel.in_process import rewritten

COLOCATED = {"cluster__colocate_split_and_replicate": True}


def model(ranks):
    """A loss with two wide layers in the split, and what it is trained with."""
    x = tf.placeholder(tf.float32, [None, 8], "x")
    with epl.replicate(1):
        hidden = tf.nn.dropout(tf.layers.dense(x, 8, tf.tanh, name="body"), rate=0.5)
    with epl.split(ranks):
        wide = tf.nn.dropout(tf.layers.dense(hidden, 1001, tf.nn.relu, name="first"), rate=0.5)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(wide, 8, name="second")))
    return x, loss, tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def ops_of(rewrite, types):
    """By op of replica 0, the NodeDefs of all local replicas; of ops that have copies."""
    view = GraphView(rewrite.tf_graph)
    names = {name: [rewrite.prefix(copy) + name for copy in range(rewrite.local_replicas)] for name in view.index}
    return {
        name: [view.nodes[view.index[one]] for one in copies]
        for name, copies in names.items()
        if view.types[view.index[name]] in types and all(one in view.index for one in copies)
    }


def test_the_plan_names_the_groups_and_moves_parts_in_buckets_between_them(init):
    init(4, annotate=False, communication__max_splits=2, **COLOCATED)
    model(2)
    plan = rewritten().plan
    assert plans.split_groups(plan) == ((0, 1), (2, 3))
    assert plans.from_json(plans.to_json(plan)) == plan
    text = plans.describe(plan)
    assert "split over 2 devices in 2 group(s): ranks 0, 1 | 2, 3" in text
    of_all, of_shards = plan.groups
    assert not of_all.of_shards and of_shards.of_shards
    shards = Graph.get().state_of(ReplicaGroups).shards
    assert {reduction.variable for reduction in of_shards.reductions} < set(shards)  # but for slots
    assert len(of_shards.transfers) == 2 < len(of_shards.reductions)
    assert "{}: {} gradients (0 sparse) in {} transfer(s) between groups".format(
        of_shards.name, len(of_shards.reductions), len(of_shards.transfers)
    ) in text  # fmt: skip


def test_each_device_takes_part_in_the_collectives_of_its_group_and_of_its_part(init):
    init(4, annotate=False, **COLOCATED)
    model(2)
    rewrite = rewritten()
    seen = set()
    for copies in ops_of(rewrite, COLLECTIVE_OP_TYPES).values():
        names = [one.attr["communicator"].s for one in copies]
        seen.add(tuple((names.index(name), one.attr["rank"].i) for name, one in zip(names, copies)))
    in_groups = ((0, 0), (0, 1), (2, 0), (2, 1))
    of_shards = ((0, 0), (1, 0), (0, 1), (1, 1))
    of_all = ((0, 0), (0, 1), (0, 2), (0, 3))
    assert seen == {in_groups, of_shards, of_all}


def test_what_lets_a_step_change_variables_waits_for_the_devices_of_all_groups(init):
    init(4, annotate=False, **COLOCATED)
    model(2)
    rewrite = rewritten()
    copies = ops_of(rewrite, COLLECTIVE_OP_TYPES)
    assert [group.of_shards for group in rewrite.plan.groups] == [False, True]
    for gate in rewrite.gates:
        assert len({one.attr["communicator"].s for one in copies[gate.op.name]}) == 1
        assert [one.attr["rank"].i for one in copies[gate.op.name]] == [0, 1, 2, 3]


def test_every_device_draws_its_own_numbers_and_the_same_initial_values(init):
    init(4, annotate=False, **COLOCATED)
    tf.set_random_seed(3)
    model(2)
    seeds = {
        name: [one.attr["seed2"].i for one in copies]
        for name, copies in ops_of(rewritten(), ["RandomUniform", "RandomUniformInt"]).items()
    }
    initial = {name: found for name, found in seeds.items() if "kernel" in name}
    dropout = {name: found for name, found in seeds.items() if "dropout" in name}
    assert initial and all(len(set(found)) == 1 for found in initial.values()), initial
    assert len(dropout) == 2 and all(len(set(found)) == 4 for found in dropout.values()), dropout


def test_groups_that_differ_before_the_first_step_take_the_parts_of_the_first(init):
    init(4, annotate=False, **COLOCATED)
    x, loss, train_op = model(2)
    rewrite = rewritten()
    parts = [name for name in Graph.get().state_of(ReplicaGroups).shards if name.endswith("first/kernel")]
    copies = [tf.get_default_graph().get_tensor_by_name(rewrite.prefix(copy) + parts[0] + ":0") for copy in range(4)]
    with Graph.get().building_own_ops():  # a script may not take the part of one rank
        read = [tf.stack([copy]) for copy in copies]
        spoil = tf.raw_ops.AssignAdd(ref=copies[2], value=tf.ones(copies[2].shape))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(spoil)
        sess.run([loss, train_op], {x: np.ones([8, 8])})
        values = sess.run(read)
    np.testing.assert_array_equal(values[0], values[2])
    np.testing.assert_array_equal(values[1], values[3])


def test_a_split_over_one_device_is_data_parallelism(init):
    init(2, annotate=False, **COLOCATED)
    x, loss, train_op = model(1)
    plan = rewritten().plan
    assert plans.split_groups(plan) == () and plan.owners == (0, 0)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run([loss, train_op], {x: np.ones([8, 8])})
        kernel = [variable for variable in tf.global_variables() if variable.op.name == "first/kernel"][0]
        assert sess.run(kernel).shape == (8, 1001)


DEVICES = ["w0d0", "w0d1", "w1d0", "w1d1"]


@pytest.mark.parametrize(
    "slices, groups",
    [
        ([["w0d0", "w0d1"], ["w1d0", "w1d1"]], ((0, 1), (2, 3))),
        ([["w0d0", "w1d0"], ["w0d1", "w1d1"]], ((0, 2), (1, 3))),
        ([["w1d1", "w0d1"], ["w1d0", "w0d0"]], ((0, 2), (1, 3))),
        ([["w0d0"], ["w0d1"], ["w1d0"], ["w1d1"]], ((0, 1), (2, 3))),
    ],
    ids=["row-major", "column-major", "specific", "all"],
)
def test_groups_are_the_replicas_of_the_layout_or_devices_that_follow_each_other(slices, groups):
    assert split_groups(2, slices, DEVICES) == groups
