"""Functions of TensorFlow that are made of many ops: in random legal placements they give their unsplit results."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.split.harness import Model, Plain, check, few_choices, rows, run_split
from tests.parallel.split.models import FLOAT, norm, one_hot, weights

COUNTS = (3, 1, 2)


def probabilities(y):
    """A distribution over 7 classes for each label."""
    return 0.8 * one_hot(y, 7) + 0.2 / 7


def batch_norm(h):
    mean, variance = tf.nn.moments(h, [0])
    return tf.nn.batch_normalization(h, mean, variance, weights("shift", 7), weights("scale_", 7), 1e-3)


def of_images(h):
    """Convolved as images of one row."""
    padded = tf.pad(tf.reshape(h, [-1, 1, 7, 1]), [[0, 0], [1, 1], [2, 0], [0, 0]])
    images = tf.nn.conv2d(padded, weights("filter", 3, 3, 1, 4), 1, "VALID")
    return tf.nn.max_pool2d(tf.nn.relu(images), [1, 2], [1, 2], "VALID")


def of_states(h):
    """A recurrent cell over what are taken for three steps."""
    states, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicRNNCell(4), tf.stack([h, h * 2, tf.sin(h)], 1), dtype=FLOAT)
    return tf.matmul(states[:, -1], weights("of_state", 4, 7))


# Of scores [batch, 7], which a kernel gives, and labels [batch].
FUNCTIONS = {
    "sigmoid cross entropy": lambda h, y: tf.nn.sigmoid_cross_entropy_with_logits(labels=one_hot(y, 7), logits=h),
    "weighted sigmoid cross entropy": lambda h, y: tf.nn.weighted_cross_entropy_with_logits(one_hot(y, 7), h, 3.0),
    "softmax cross entropy": lambda h, y: tf.nn.softmax_cross_entropy_with_logits_v2(probabilities(y), h),
    "sparse softmax cross entropy": lambda h, y: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h),
    "log softmax": lambda h, y: tf.reduce_sum(tf.nn.log_softmax(h) * one_hot(y, 7), 1),
    "log sum exp": lambda h, y: tf.reduce_logsumexp(h, 1, keepdims=True) - h,
    "layer norm": lambda h, y: norm(h, "norm"),
    "batch norm": lambda h, y: batch_norm(h),
    "unit length": lambda h, y: tf.nn.l2_normalize(h, 1),
    "length": lambda h, y: tf.norm(h, axis=1) + tf.norm(h),
    "l1 length": lambda h, y: tf.norm(h, 1, axis=0),
    "clipped by length": lambda h, y: tf.clip_by_norm(h, 0.7, axes=[1]),
    "clipped by value": lambda h, y: tf.clip_by_value(h, -0.3, 0.4),
    "l2 loss": lambda h, y: h + tf.nn.l2_loss(h),
    "einsum of three": lambda h, y: tf.einsum("bi,ij,bj->b", h, weights("form", 7, 7), h),
    "tensordot": lambda h, y: tf.tensordot(h, weights("matrix", 7, 3), 1),
    "outer product": lambda h, y: tf.einsum("bi,bj->bij", h, tf.tanh(h)),
    "gelu": lambda h, y: 0.5 * h * (1 + tf.erf(h / np.sqrt(2))),
    "leaky relu": lambda h, y: tf.nn.leaky_relu(h, 0.1),
    "picked of classes": lambda h, y: tf.batch_gather(h, tf.expand_dims(y, 1)),
    "of the best three": lambda h, y: tf.nn.top_k(h, 3).values,
    "sorted": lambda h, y: tf.sort(h, 1),
    "right of two": lambda h, y: h * tf.cast(tf.expand_dims(tf.nn.in_top_k(tf.cast(h, tf.float32), y, 2), 1), FLOAT),
    "masked by length": lambda h, y: h * tf.sequence_mask(y + 1, 7, FLOAT),
    "chosen": lambda h, y: tf.where(tf.greater(h, 0.1), tf.square(h), tf.exp(h)),
    "sums so far": lambda h, y: tf.cumsum(h, 1, exclusive=True) * tf.cumsum(h, 1, reverse=True),
    "product": lambda h, y: tf.reduce_prod(1 + 0.1 * h, 1),
    "all and any": lambda h, y: tf.where(tf.reduce_any(h > 1, 1), tf.reduce_sum(h, 1), tf.reduce_max(h, 1)),
    "tiled": lambda h, y: tf.tile(h, [1, 3]) * weights("long", 21),
    "parts and back": lambda h, y: tf.concat([tf.square(part) for part in tf.split(h, [2, 4, 1], 1)[::-1]], 1),
    "padded": lambda h, y: tf.pad(h, [[0, 0], [2, 1]]) * weights("wide", 10),
    "images": lambda h, y: of_images(h),
    "a loop": lambda h, y: of_states(h),
    "a branch": lambda h, y: tf.cond(tf.reduce_mean(h) > 0, lambda: h * weights("yes", 7), lambda: tf.square(h)),
}


NAMES = sorted(FUNCTIONS)


def equal_unsplit(names, seed):
    """The sum of the losses of some functions, each with a kernel of its own."""

    def build():
        x, y = tf.placeholder(FLOAT, [None, 5], "x"), tf.placeholder(tf.int32, [None], "y")
        outputs = []
        for name in names:
            with tf.variable_scope(name.replace(" ", "_")):
                outputs.append(FUNCTIONS[name](tf.matmul(x, weights("kernel", 5, 7)) + weights("bias", 7), y))
        return Model(tf.add_n([tf.reduce_mean(tf.square(output + 0.5)) for output in outputs]), outputs)

    check(build, rows(COUNTS, seed, x=(5,), y=7), prepare=few_choices(seed))


@pytest.mark.parametrize("names", [
    pytest.param(NAMES[first::4], id="_".join(NAMES[first::4]), marks=[pytest.mark.long] * (first > 1))
    for first in range(4)])  # fmt: skip
def test_functions(names):
    equal_unsplit(names, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(1, 4))
def test_functions_in_other_placements(name, seed):
    equal_unsplit([name], seed)


def test_dropout_of_a_part_has_numbers_of_its_own_and_the_gradient_passes_where_the_value_did():
    kept = 0.75

    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        h = tf.nn.dropout(tf.matmul(x, weights("kernel", 6, 400)), rate=1 - kept)
        return Model(tf.reduce_sum(h), [h])

    feeds = rows((20, 20), x=(6,))
    plain = Plain(build, feeds)
    (first, second), splits = run_split(build, feeds, plain)
    assert splits[0].placements["kernel"].sizes == (200, 200)
    wholes = np.concatenate([one["x"] for one in feeds]).astype(np.float64)
    dropped = first[1][0]
    np.testing.assert_array_equal(dropped, second[1][0])
    mask = dropped != 0
    assert abs(mask.mean() - kept) < 0.02
    left, right = np.split(mask, 2, 1)
    assert abs((left == right).mean() - (kept**2 + (1 - kept) ** 2)) < 0.05  # as of numbers that have nothing in common
    np.testing.assert_allclose(dropped, mask * wholes.dot(plain.initial["kernel"]) / kept, rtol=1e-9)
    gradient = np.concatenate([first[2]["kernel"], second[2]["kernel"]], 1)
    np.testing.assert_allclose(gradient, wholes.T.dot(mask / kept), rtol=1e-9, atol=1e-9)
