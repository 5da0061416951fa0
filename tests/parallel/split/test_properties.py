"""Property: random small graphs, computed in random legal layouts, give what they give unsplit.

The search would take the cheap ways alone. Here each op keeps a few of its choices, of which one is taken wherever it
can be, so that odd combinations of layouts meet.
"""

import hypothesis
import hypothesis.strategies as st
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.split.harness import Model, check, few_choices, rows
from tests.parallel.split.models import FLOAT, one_hot, weights

# Each takes a tensor [batch, m, n], a number that is used in no other step, and the variant; and gives one like it.
FUNCTIONS = [tf.nn.relu, tf.tanh, tf.square, tf.nn.softmax, tf.nn.log_softmax, tf.negative, tf.abs, tf.nn.softplus]
REDUCTIONS = [tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min]


def dense(x, number, variant):
    size, width = 3 + variant % 4, x.shape[-1].value
    flat = tf.matmul(tf.reshape(x, [-1, width]), weights("w%d" % number, width, size))
    return tf.reshape(flat, [-1, x.shape[1].value, size])


def affine(x, number, variant):
    return x * weights("s%d" % number, x.shape[-1].value) + weights("b%d" % number, x.shape[1].value, 1)


def function(x, number, variant):
    return FUNCTIONS[variant](x)


def transposed(x, number, variant):
    return tf.transpose(x, [0, 2, 1])


def reduced(x, number, variant):
    return x - REDUCTIONS[variant % 4](x, 1 + variant // 4, keepdims=True)


def over_batch(x, number, variant):
    return x + REDUCTIONS[variant % 4](x, 0, keepdims=True)


def joined(x, number, variant):
    return tf.concat([x, x if variant % 2 else tf.sin(x)], 1 + variant // 4)


def halved(x, number, variant):
    axis = 1 + variant % 2
    return x if x.shape[axis].value % 2 else tf.multiply(*tf.split(x, 2, axis))


def attended(x, number, variant):
    return tf.matmul(tf.matmul(x, x, transpose_b=True), x)


def reshaped(x, number, variant):
    m, n = x.shape[1].value, x.shape[2].value
    return tf.reshape(x, [-1, n, m] if variant % 2 else [-1, 1, m * n])


def contracted(x, number, variant):
    m, n = x.shape[1].value, x.shape[2].value
    if variant % 2:
        return tf.einsum("bmn,mk->bkn", x, weights("e%d" % number, m, 4))
    return tf.einsum("bmn,mnk->bmk", x, weights("f%d" % number, m, n, 3))


def picked(x, number, variant):
    n = x.shape[-1].value
    best = one_hot(tf.argmax(x, -1, output_type=tf.int32), n)
    return tf.where(best > 0, x, x * 0.5) + tf.cumsum(best, 1 + variant % 2)


STEPS = [dense, affine, function, transposed, reduced, over_batch, joined, halved, attended, reshaped, contracted]
STEPS.append(picked)


def equal_unsplit(steps, counts, seed):
    def build():
        x = tf.placeholder(FLOAT, [None, 4, 6], "x")
        h = x * weights("first", 6)
        for number, (step, variant) in enumerate(steps):
            h = step(h, number, variant)
            h = h / (1 + tf.reduce_max(tf.abs(tf.stop_gradient(h)), [1, 2], keepdims=True))
        return Model(tf.reduce_mean(tf.reduce_sum(tf.square(h), [1, 2])) + tf.nn.l2_loss(h), [h])

    check(build, rows(counts, seed, x=(4, 6)), prepare=few_choices(seed))


GRAPHS = hypothesis.given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), min_size=3, max_size=6),
    counts=st.sampled_from([(2, 2), (1, 3), (2, 1, 2)]),
    seed=st.integers(0, 1000),
)


def settings(examples):
    health = hypothesis.HealthCheck.all()
    return hypothesis.settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=health
    )


@settings(3)
@GRAPHS
def test_random_graphs(steps, counts, seed):
    equal_unsplit(steps, counts, seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(150)
@GRAPHS
def test_more_random_graphs(steps, counts, seed):
    equal_unsplit(steps, counts, seed)
