"""The benchmarks' models are real: they have the right size and they learn."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.models import bert

_SIZES = bert.config(layers=1, hidden=16, heads=2, vocabulary=11, dropout=0.0)
_SEQUENCE = 8


@pytest.fixture(autouse=True)
def fresh_graph():
    """Every test builds in a graph of its own."""
    with tf.Graph().as_default():
        yield


def _batch(sizes, rows=4):
    random = np.random.RandomState(0)
    tokens = random.randint(0, sizes.vocab_size, [rows, _SEQUENCE])
    positions = random.randint(0, _SEQUENCE, [rows, 3])
    return bert.Batch(
        tf.constant(tokens, tf.int32),
        tf.ones(tokens.shape),
        tf.zeros(tokens.shape, tf.int32),
        tf.constant(positions, tf.int32),
        tf.constant(np.take_along_axis(tokens, positions, axis=1), tf.int32),
    )


def _losses(loss, train, steps=30):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return [session.run([loss, train])[0] for _ in range(steps)]


def test_base_has_the_published_number_of_weights():
    bert.masked_lm_loss(bert.BASE, _batch(bert.BASE))
    weights = sum(variable.shape.num_elements() for variable in tf.trainable_variables())
    assert 108e6 < weights < 111e6


def test_heads_that_do_not_divide_the_hidden_size_are_refused():
    with pytest.raises(ValueError, match="10 cannot be divided into 3 heads"):
        bert.config(layers=1, hidden=10, heads=3)


def test_masked_lm_learns_its_batch():
    tf.set_random_seed(1)
    loss = bert.masked_lm_loss(_SIZES, _batch(_SIZES))
    losses = _losses(loss, tf.train.AdamOptimizer(0.01).minimize(loss))
    assert losses[-1] < 0.3 * losses[0]


def test_classifier_learns_its_batch():
    tf.set_random_seed(1)
    loss = bert.classification_loss(_SIZES, _batch(_SIZES), tf.constant([0, 1, 2, 0]), classes=3)
    losses = _losses(loss, tf.train.AdamOptimizer(0.01).minimize(loss))
    assert losses[-1] < 0.3 * losses[0]


def test_padding_does_not_change_the_loss():
    tokens = np.random.RandomState(0).randint(0, _SIZES.vocab_size, [1, 8])
    mask = np.array([[1, 1, 1, 1, 1, 0, 0, 0]], np.float32)
    losses = []
    for padding in (3, 9):
        tokens[0, 5:] = padding
        batch = bert.Batch(
            tf.constant(tokens, tf.int32),
            tf.constant(mask),
            tf.zeros([1, 8], tf.int32),
            tf.constant([[0, 2]]),
            tf.constant([[4, 5]]),
        )
        losses.append(bert.masked_lm_loss(_SIZES, batch))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        first, second = session.run(losses)
    assert first == pytest.approx(second, rel=1e-6)
