"""The update rule and the learning rate."""

import optimizer
import pytest
import tensorflow.compat.v1 as tf


def updated(name, gradient, **arguments):
    """The value of a variable that was 2, after one step."""
    weight = tf.get_variable(name, initializer=[2.0])
    update = optimizer.AdamWeightDecayOptimizer(0.1, **arguments).apply_gradients([(tf.constant([gradient]), weight)])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(update)
        return session.run(weight)[0]


def test_adamw_takes_the_step_of_its_paper():
    # m = 0.1 * 4, v = 0.01 * 16; the step is m / sqrt(v) + decay * weight.
    given = updated("kernel", 4.0, decay=0.5, beta1=0.9, beta2=0.99, epsilon=0.0)
    assert given == pytest.approx(2.0 - 0.1 * (0.4 / 0.4 + 0.5 * 2.0))


@pytest.mark.parametrize("name", ["dense/bias", "output/LayerNorm/gamma", "output/LayerNorm/beta"])
def test_biases_and_norms_do_not_decay(name):
    assert updated(name, 0.0, decay=0.5) == 2.0


def rates(numbers, **arguments):
    step = tf.placeholder(tf.int64, [])
    rate = optimizer.learning_rate(1.0, step, **arguments)
    with tf.Session() as session:
        return [float(session.run(rate, {step: number})) for number in numbers]


def test_the_rate_rises_and_falls_on_lines():
    assert rates([0, 1, 2, 5, 10], steps=10, warm_up=2) == pytest.approx([0.0, 0.5, 0.8, 0.5, 0.0])


def test_without_warm_up_the_rate_begins_at_its_peak():
    assert rates([0, 5], steps=10, warm_up=0) == pytest.approx([1.0, 0.5])


def test_a_training_step_clips_all_gradients_together():
    x = tf.get_variable("x", initializer=0.0)
    y = tf.get_variable("y", initializer=0.0)
    step = tf.train.get_or_create_global_step()
    train = optimizer.train_op(3.0 * x + 4.0 * y, step, 0.1, steps=10, warm_up=0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        moments = [session.run(name + "/adam_m:0") for name in "xy"]
        assert session.run(step) == 1
    assert moments == pytest.approx([0.1 * 0.6, 0.1 * 0.8])
