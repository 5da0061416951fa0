"""Weights of ZeRO that are gathered together: which, their values, and what waits for them."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import HOST_ATTR
from epl.parallel.plan.zero_decisions import PACK, SMALL
from epl.parallel.sharded_variables.variables import SCOPE
from epl.parallel.zero.up_front_gathers import packs
from epl.utils import tf_compat

LARGE = (SMALL // 4 + 1,)
TINY = [(6, 4), (3, 3), (7, 5), (2, 3, 4), (5,), (2, 9), (4, 2, 7), (3, 2), (8, 8)]
WITH_LARGE = [(61, 40), (30, 31), LARGE, (7, 500), (20, 31, 4), (2001,)]


def variable(number, shape, dtype=tf.float32, device=""):
    held = SimpleNamespace(dtype=dtype, device=device)
    return SimpleNamespace(made=SimpleNamespace(variable=held, full_shape=shape), number=number)


def numbers(found):
    return [[one.number for one in pack] for pack in found]


def test_small_ones_of_a_kind_are_packed_at_the_place_of_the_first():
    shapes = [(4, 4), (SMALL // 4,), LARGE, (3,), (2, 2), (5, 5)]
    kinds = [tf.float32] * 4 + [tf.float64] + [tf.float32]
    made = [variable(number, shape, dtype) for number, (shape, dtype) in enumerate(zip(shapes, kinds))]
    assert numbers(packs(made, lambda one: 0)) == [[0, 1, 3, 5], [2], [4]]
    assert numbers(packs(made, lambda one: one.number // 3)) == [[0, 1], [2], [3, 5], [4]]
    made[1].made.variable.device = "/device:CPU:0"
    assert numbers(packs(made, lambda one: 0)) == [[0, 3, 5], [1], [2], [4]]


def test_a_full_pack_is_followed_by_another():
    count = PACK // SMALL
    made = [variable(number, (SMALL // 4,)) for number in range(2 * count + 1)]
    assert [len(pack) for pack in packs(made, lambda one: 0)] == [count, count, 1]


def gathers():
    """Those of replica 0 for a training step."""
    ops = [op for op in tf.get_default_graph().get_operations() if op.type == "EplAllGather"]
    return [op for op in ops if "EPL_REPLICA" not in op.name and "/shown/" not in op.name]


def trained(loss, feed=None):
    """A session that has made a step."""
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run(train_op, feed)
    return session


@pytest.mark.grid
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("level,shapes,packed", [("v0", TINY, 1), ("v1", TINY, 1), ("v1", WITH_LARGE, 2)])
def test_the_wholes_are_the_variables(init, level, devices, resource, shapes, packed):
    """Parts of one size, of different sizes, and of one row, cut along any dimension."""
    init(devices, zero__level=level)
    weights = [tf.get_variable(f"w{i}", shape, use_resource=resource) for i, shape in enumerate(shapes)]
    loss = tf.add_n([tf.reduce_sum(tf.square(weight)) for weight in weights])
    copies = [tf.identity(weight) for weight in weights]
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            before = sess.run(weights)
            for value, copy in zip(before, sess.run(copies)):
                np.testing.assert_array_equal(copy, value)
            value, _ = sess.run([loss, train_op])
            np.testing.assert_allclose(value, sum(np.sum(np.square(one)) for one in before), rtol=1e-5)
    assert len(gathers()) == packed


def test_updates_wait_for_the_pack(init):
    init(2, zero__level="v1")
    weights = [tf.get_variable(name, [8, 8]) for name in "abc"]
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.add_n([tf.reduce_sum(one) for one in weights]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
    (pack,) = gathers()
    updates = [op for op in train_op.control_inputs if "Apply" in op.type]
    assert len(updates) == 3
    assert all(pack in op.control_inputs for op in updates)


def test_an_optimizer_runs_before_the_variables_of_another_have_values(init):
    init(2, zero__level="v1")
    weights = [tf.get_variable(name, [8, 8], initializer=tf.ones_initializer()) for name in "abc"]
    train_ops = [
        tf.train.GradientDescentOptimizer(0.5).minimize(tf.add_n([tf.reduce_sum(one) for one in trained]))
        for trained in (weights[:2], weights[2:])
    ]
    with tf.Session() as sess:
        sess.run(tf.variables_initializer(weights[:2]))
        sess.run(train_ops[0])
        np.testing.assert_array_equal(sess.run(weights[:2]), np.full([2, 8, 8], 0.5))
        sess.run(weights[2].initializer)
        sess.run(train_ops[1])
        np.testing.assert_array_equal(sess.run(weights), np.full([3, 8, 8], 0.5))


def test_what_gives_the_value_of_another_does_not_wait_for_it(init):
    """An initial value that reads the variable itself, and one that depends on data."""
    init(2, zero__level="v1")
    x = tf.placeholder(tf.float32, [None, 8])
    first = tf.get_variable("first", [8, 8], use_resource=True)
    second = tf.get_variable("second", initializer=0.5 * first, use_resource=True)
    scale = tf.get_variable("scale", [8])
    hidden = tf.matmul(tf.matmul(x, first), second)
    assign = scale.assign(1.0 / tf.math.reduce_std(tf.matmul(x, first), axis=0))
    others = [tf.get_variable(name, [8, 8]) for name in "ab"]
    loss = tf.reduce_sum(hidden * scale) + tf.add_n([tf.reduce_sum(one) for one in others])
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    feed = {x: np.tile(np.random.RandomState(0).randn(4, 8), [2, 1])}  # the same rows for both devices
    with tf.Session() as sess:
        sess.run(first.initializer)
        sess.run(second.initializer)
        np.testing.assert_array_equal(sess.run(second), 0.5 * sess.run(first))
        sess.run(assign.op, feed)
        np.testing.assert_allclose(sess.run(scale), 1 / np.std(feed[x].dot(sess.run(first)), axis=0), rtol=1e-5)
        sess.run([one.initializer for one in others])
        sess.run(train_op, feed)
    assert len(gathers()) == 3  # of first, scale, and the rest


def test_what_a_saver_restores_is_packed(init):
    init(2, zero__level="v1")
    weights = [tf.get_variable(name, [8, 8]) for name in "abc"]
    tf.train.Saver()
    trained(tf.add_n([tf.reduce_sum(one) for one in weights]))
    assert len(gathers()) == 1


@pytest.mark.parametrize("devices", [2, 3])
def test_weights_in_host_memory_are_packed_there(init, devices, caplog):
    init(devices, zero__level="v1", offload__level="v0")
    output = x = tf.placeholder(tf.float32, [None, 16])
    for _ in range(4):
        output = tf.layers.dense(output, 16)
    with caplog.at_level("INFO", "epl"):
        trained(tf.reduce_sum(output), {x: np.ones([12, 16])})
    assert "stay there" not in caplog.text
    of_values = ["Pad", "ConcatV2", "EplAllGather", "SplitV", "Reshape", "GatherV2"]
    nodes = tf_compat.full_graph_def(tf.get_default_graph()).node
    pack = [node for node in nodes if node.name.startswith(SCOPE) and "/pack/" in node.name and node.op in of_values]
    assert {"ConcatV2", "EplAllGather", "SplitV"} <= {node.op for node in pack}
    assert [node.name for node in pack if HOST_ATTR not in node.attr] == []


def test_gradient_checkpoint_cuts_no_pack_once_more(init):
    """What is gathered is not of the batch."""
    init(2, zero__level="v1", gradient_checkpoint__type="collection")
    output = x = tf.placeholder(tf.float32, [None, 16])
    for layer in range(4):
        output = tf.layers.dense(output, 16, tf.tanh)
        if layer == 1:
            tf.add_to_collection("checkpoints", output)
    trained(tf.reduce_sum(output), {x: np.ones([12, 16])})
    recomputed = [op.name for op in tf.get_default_graph().get_operations() if "EPL_RECOMPUTE" in op.name]
    assert any("Tanh" in name for name in recomputed)
    assert [name for name in recomputed if "/pack/" in name] == []


def test_a_block_of_v2_is_not_packed(init):
    init(2, zero__level="v2")
    weights = [tf.get_variable(name, [8, 8]) for name in "ab"]
    output = tf.matmul(tf.matmul(tf.placeholder_with_default(tf.ones([4, 8]), [None, 8]), weights[0]), weights[1])
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(output))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
    assert len(gathers()) == 3
