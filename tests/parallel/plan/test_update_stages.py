"""Where the updates of optimizers run that do not say where."""

import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.pipelines import Chain, begin, equals_plain, rewritten


class Momentum(tf.train.Optimizer):
    """Writes variables with tf.assign, and makes its slots with tf.get_variable."""

    def __init__(self):
        super().__init__(False, "Momentum")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []
        rate = tf.constant(0.1, name="rate")
        for gradient, variable in grads_and_vars:
            slot = tf.get_variable(
                variable.op.name + "/slot", variable.shape, initializer=tf.ones_initializer(), trainable=False
            )
            value = tf.multiply(slot, 0.9, name=variable.op.name + "_next") + gradient
            updates += [tf.assign(slot, value), tf.assign(variable, variable - rate * value)]
        return tf.group(*updates)


def trained(stage):
    model = Chain(2, stage, Momentum())
    model.minimize()
    return model


@pytest.mark.parametrize("resource", [False, True])
def test_updates_and_slots_are_in_the_stage_of_the_variable(init, resource):
    begin(init, 2, 2)
    Chain(2, optimizer=Momentum(), resource=resource).minimize()
    with tf.variable_scope("", use_resource=resource):
        stage_of = rewritten().stage_of
    for index in range(2):
        for name in ("d{}/kernel/slot", "d{}/kernel_next", "d{}/kernel/slot/Initializer/ones"):
            assert stage_of[name.format(index)] == index
    assert stage_of["rate"] == 1  # all variables need it: it stays where it was made


def test_such_an_optimizer_trains_as_on_one_device(init):
    begin(init, 2, 2)
    equals_plain(trained)
