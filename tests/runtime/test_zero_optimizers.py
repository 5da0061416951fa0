"""What optimizers make of the user's variables when they get parts of them."""

import numpy as np
import pytest
import tensorflow as tf1
import tensorflow.compat.v1 as tf


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
