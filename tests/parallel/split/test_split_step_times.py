"""The seconds of the ops of a split: those of their backward ops are those of the gradients that are needed."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.split.program import Program
from epl.parallel.split.region import find_region

ROWS, WIDTH = 64, 256


def seconds_of(build):
    """Op name -> seconds in a program of two ranks."""
    with tf.Graph().as_default() as graph:
        loss = build()
        program = Program(find_region(graph.get_operations()), 2)
        assert all(step.seconds == 0 for step in program.steps)
        program.train([loss])
        return {step.op.name: step.seconds for step in program.steps}


def weights(name, *shape):
    return tf.get_variable(name, shape or (WIDTH, WIDTH), use_resource=True)


def test_a_product_with_what_is_fed_has_one_gradient_and_a_hidden_one_two():
    def build():
        x = tf.placeholder(tf.float32, [ROWS, WIDTH], "x")
        hidden = tf.matmul(x, weights("v"), name="first")
        hidden = tf.matmul(hidden, weights("w"), name="second")
        return tf.reduce_sum(tf.matmul(tf.stop_gradient(hidden), weights("u"), name="third")) + tf.reduce_sum(hidden)

    seconds = seconds_of(build)
    assert seconds["second"] == pytest.approx(1.5 * seconds["first"], rel=0.01)
    assert seconds["third"] == pytest.approx(seconds["first"], rel=0.01)


def test_what_no_loss_depends_on_has_no_backward_pass():
    def build():
        x = tf.placeholder(tf.float32, [ROWS, WIDTH], "x")
        hidden = tf.matmul(x, weights("v"), name="first")
        tf.matmul(hidden, weights("w"), name="measured")
        return tf.reduce_sum(hidden)

    seconds = seconds_of(build)
    assert seconds["first"] == pytest.approx(2 * seconds["measured"], rel=0.01)


@pytest.mark.parametrize("resource", [False, True])
def test_a_lookup_moves_the_same_bytes_for_a_large_table(resource):
    def build(words):
        table = tf.get_variable("table", [words, WIDTH], use_resource=resource)
        found = tf.nn.embedding_lookup(table, tf.placeholder(tf.int32, [ROWS], "ids"))
        return tf.reduce_sum(found)

    small, large = (sum(seconds_of(lambda n=words: build(n)).values()) for words in (1000, 1000000))
    assert large == pytest.approx(small, rel=0.05)


def test_a_batch_that_is_built_into_constants_does_not_stop_the_others():
    def build():
        x = tf.placeholder(tf.float32, [ROWS, WIDTH], "x")
        hidden = tf.reshape(tf.matmul(x, weights("v"), name="first"), [ROWS, 16, WIDTH // 16])
        hidden = tf.reshape(tf.nn.relu(hidden), [ROWS, WIDTH])
        return tf.reduce_mean(tf.matmul(hidden, weights("w"), name="second"))

    seconds = seconds_of(build)
    assert seconds["second"] == pytest.approx(1.5 * seconds["first"], rel=0.01)
    assert seconds["Relu"] > 0
