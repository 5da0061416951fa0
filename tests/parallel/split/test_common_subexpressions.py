"""Equal ops are computed once: which are, and that all who take what they give get it."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.split.program import Program
from epl.parallel.split.region import find_region
from tests.parallel.split.harness import Model, check, rows
from tests.parallel.split.models import FLOAT, weights


def steps(build):
    """The op types of the steps for what is built of data, in order."""
    with tf.Graph().as_default() as graph:
        build(tf.placeholder(FLOAT, [None, 6], "x"))
        return [step.op.type for step in Program(find_region(graph.get_operations()), 2).steps]


@pytest.mark.parametrize(
    "build, count",
    [
        (lambda x: (tf.tanh(x), tf.tanh(x)), 1),
        (lambda x: (tf.tanh(x * 2), tf.tanh(x * tf.constant(2.0, FLOAT))), 2),
        (lambda x: (x * 2, x * 3), 2),
        (lambda x: (tf.argmax(x, 1), tf.argmax(x, 1, output_type=tf.int32)), 2),
        (lambda x: (tf.ensure_shape(x, [None, 6]), tf.ensure_shape(x, [4, 6])), 2),
        (lambda x: (tf.reduce_sum(x, 1), tf.reduce_sum(x, [1])), 2),
    ],
)
def test_equal_ops_are_one_step(build, count):
    assert len(steps(build)) == count


def test_random_numbers_are_drawn_anew_for_each_op():
    found = steps(lambda x: [x * tf.random.uniform(tf.shape(x), dtype=FLOAT, seed=5) for _ in range(2)])
    assert (found.count("Shape"), found.count("RandomUniform")) == (1, 2)


def test_ops_that_wait_for_others_differ():
    def build(x):
        with tf.control_dependencies([tf.debugging.assert_non_negative(x)]):
            first, second = tf.tanh(x), tf.tanh(x)
        return first, second, tf.tanh(x)

    assert steps(build).count("Tanh") == 2


def test_custom_gradients_differ():
    def times(factor):
        return tf.custom_gradient(lambda x: (tf.identity(x), lambda grad: factor * grad))

    assert steps(lambda x: (times(2.0)(x), times(3.0)(x))).count("IdentityN") == 2


def test_all_who_take_an_equal_op_get_its_value():
    """Another op, a loop, an output, and one that waits for it."""

    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        h = tf.matmul(x, weights("kernel", 6, 8))
        tanh = [tf.tanh(h) for _ in range(6)]  # one for each
        loop = tf.while_loop(lambda i, _: i < 2, lambda i, s: (i + 1, s * tanh[1]), [0, tanh[2]])[1]
        with tf.control_dependencies([tanh[3].op]):
            y = tf.matmul(tanh[0] + loop, weights("head", 8, 5))
        return Model(tf.reduce_mean(tf.square(y)) + tf.reduce_mean(tanh[4]), [y, tanh[5]])

    splits = check(build, rows((3, 5, 2), x=(6,)))
    assert splits[0].placements["kernel"].is_shard
    assert [step.op.type for step in splits[0].program.steps].count("Tanh") == 1
