"""What optimizers make of the user's variables when they get parts of them."""

import numpy as np
import pytest
import tensorflow as tf1
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils.errors import PlanError
from tests.tensorflows import ONLY_1


@ONLY_1
@pytest.mark.parametrize(
    "given",
    [tuple, set, lambda one: (v for v in one), dict.fromkeys, lambda one: dict.fromkeys(one).keys()],
    ids=["tuple", "set", "generator", "dict", "keys"],
)
def test_optimizers_find_variables_by_the_objects_of_the_user(init, given):
    """Given in whichever container."""
    init(2, zero__level="v1")
    decayed, other, kept = [tf.get_variable(name, [64, 6], initializer=tf.ones_initializer()) for name in "abc"]
    optimizer = tf1.contrib.opt.MomentumWOptimizer(weight_decay=0.25, learning_rate=0.5, momentum=0.9)
    pairs = optimizer.compute_gradients(tf.reduce_sum(decayed + other + kept))
    train_op = optimizer.apply_gradients(pairs, decay_var_list=given([decayed, other]))
    slots = [optimizer.get_slot(variable, "momentum") for variable in (decayed, kept)]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        np.testing.assert_allclose(sess.run(decayed), np.full([64, 6], 0.75 - 0.5))
        np.testing.assert_allclose(sess.run(kept), np.full([64, 6], 1.0 - 0.5))
        np.testing.assert_allclose(sess.run(slots), np.ones([2, 64, 6]))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_variable_with_fewer_rows_than_devices_stays_full(init, momentum):
    init(4, zero__level="v1")
    variable = tf.get_variable("v", [3, 2], initializer=tf.ones_initializer())
    train_op = tf.train.MomentumOptimizer(0.25, momentum).minimize(tf.reduce_sum(tf.square(variable)))
    assert not Graph.get().state_of(ShardedVariables).variables
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        np.testing.assert_allclose(sess.run(variable), np.full([3, 2], 0.5))


def test_optimizers_of_one_scope_share_slots(init, tmp_path):
    init(2, zero__level="v1")
    variable = tf.get_variable("v", [8, 2], initializer=tf.ones_initializer())

    def train(loss):
        with tf.variable_scope("train", reuse=tf.AUTO_REUSE):
            return tf.train.MomentumOptimizer(0.5, 0.5).minimize(loss)

    ops = [train(tf.reduce_sum(variable)), train(tf.reduce_sum(2 * variable))]
    assert [variable.op.name for variable in tf.global_variables()] == ["v", "train/v/Momentum"]
    slot = tf.global_variables()[1]
    saver = tf.train.Saver()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for op in ops:
            sess.run(op)
        np.testing.assert_allclose(sess.run(slot), np.full([8, 2], 2.5))
        path = saver.save(sess, str(tmp_path / "saved"))
    assert dict(tf.train.list_variables(path)) == {"v": [8, 2], "train/v/Momentum": [8, 2]}


@pytest.mark.parametrize("of_slot", [False, True])
@pytest.mark.parametrize(
    "clear", [lambda v: tf.scatter_update(v, [1], [[0.0, 0.0]]), lambda v: v[1].assign([0.0, 0.0])]
)
def test_rows_are_written_by_update_rules_alone(init, of_slot, clear):
    init(2, zero__level="v1")
    variable = tf.get_variable("v", [8, 2])
    optimizer = tf.train.MomentumOptimizer(0.5, 0.5)
    optimizer.minimize(tf.reduce_sum(variable))
    cleared = clear(optimizer.get_slot(variable, "momentum") if of_slot else variable)
    with tf.Session() as sess:
        with pytest.raises(PlanError, match=r"writes rows or slices of 'v"):
            sess.run(cleared)


class Reshaping(tf.train.GradientDescentOptimizer):
    """What it makes of a gradient with an op that no rule knows on parts is whole, and meets parts again."""

    def _apply_dense(self, grad, var):
        rows = tf.reshape(grad, [-1, 2])
        mean = tf.reduce_mean(rows, axis=0, keepdims=True)
        return super()._apply_dense(rows * grad + mean * grad, var)


class Squeezing(tf.train.MomentumOptimizer):
    """Of a part of one row the dimension goes, too."""

    def _apply_dense(self, grad, var):
        return super()._apply_dense(grad + tf.expand_dims(tf.squeeze(self.get_slot(var, "momentum")), 0), var)


def test_a_dimension_that_parts_alone_lose_is_refused(init):
    init(4, zero__level="v1")
    variable = tf.get_variable("v", [4, 2])
    with tf.Session() as sess:
        with pytest.raises(PlanError, match="another shape on whole tensors, .4, 2., than on parts, .2,."):
            sess.run(Squeezing(0.25, 0.9).minimize(tf.reduce_sum(variable)))


@pytest.mark.grid
@pytest.mark.parametrize("rows", [4, 8])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_whole_meets_parts(init, devices, rows):
    """Also parts of one row, which have the shape of what is repeated along the rows."""
    init(devices, zero__level="v1")
    value = np.arange(2.0 * rows, dtype=np.float32).reshape([rows, 2]) / 10
    variable = tf.get_variable("v", initializer=value)
    train_op = Reshaping(0.25).minimize(tf.reduce_sum(tf.square(variable)))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        grad = 2 * value
        update = grad * grad + grad.mean(axis=0) * grad
        np.testing.assert_allclose(sess.run(variable), value - 0.25 * update, rtol=1e-5)
