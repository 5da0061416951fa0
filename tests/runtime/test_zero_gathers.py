"""Weights of ZeRO that are gathered together: which, their values, and what waits for them."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.runtime.zero_gathers import PACK, SMALL, packs

LARGE = (256, 512)
SHAPES = [(6, 4), (3, 3), (7, 5), (2, 3, 4), (5,), (2, 9), LARGE, (4, 2, 7), (3, 1), (8, 8)]


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
    return [op for op in tf.get_default_graph().get_operations() if op.type == "EplAllGather"]


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("level", ["v0", "v1"])
def test_the_wholes_are_the_variables(init, level, devices, resource):
    """Parts of one size, of different sizes, and of one row, cut along any dimension."""
    init(devices, zero__level=level)
    weights = [tf.get_variable("w{}".format(i), shape, use_resource=resource) for i, shape in enumerate(SHAPES)]
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
    built = gathers()
    assert len(built) <= 2 + len(weights)  # a pack, the large one, and what was fetched


def test_updates_wait_for_the_pack(init):
    init(2, zero__level="v1")
    weights = [tf.get_variable(name, [8, 8]) for name in "abc"]
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.add_n([tf.reduce_sum(one) for one in weights]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
    (pack,) = [op for op in gathers() if "EPL_REPLICA" not in op.name]
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


def test_a_block_of_v2_is_not_packed(init):
    init(2, zero__level="v2")
    weights = [tf.get_variable(name, [8, 8]) for name in "ab"]
    output = tf.matmul(tf.matmul(tf.placeholder_with_default(tf.ones([4, 8]), [None, 8]), weights[0]), weights[1])
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(output))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
    assert len([op for op in gathers() if "EPL_REPLICA" not in op.name]) == 3
