"""The network: what may be looked at, and how far apart positions are."""

import model_options
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import translation_model
from translation_model import Sizes

SIZES = Sizes(30, width=16, heads=2, hidden=24, layers=2, experts=3, capacity_factor=9.0, dropout=0.0)


def scores(sources, previous):
    """The scores of a model with weights of a seed, by row of `sources` and of `previous`."""
    with tf.Graph().as_default():
        return _scores(sources, previous)


def _scores(sources, previous):
    tf.set_random_seed(1)
    source = tf.placeholder(tf.int32, [None, len(sources[0])])
    known = tf.placeholder(tf.int32, [None, len(previous[0])])
    found, balances = translation_model.logits(SIZES, source, known, tf.ones_like(known, tf.float32))
    assert len(balances) == 2  # of one mixture in the encoder and one in the decoder
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(found, {source: sources, known: previous})


def test_a_piece_depends_on_those_before_and_on_the_source_alone():
    rows = scores([[5, 6, 7]] * 2 + [[5, 9, 7]], [[0, 3, 4, 8], [0, 3, 4, 9], [0, 3, 4, 8]])
    np.testing.assert_allclose(rows[0, :3], rows[1, :3], rtol=1e-5)
    assert np.abs(rows[0, 3] - rows[1, 3]).max() > 1e-3
    assert np.abs(rows[0, 0] - rows[2, 0]).max() > 1e-3


def test_padding_changes_nothing():
    short = scores([[5, 6, 7]], [[0, 3, 4]])
    np.testing.assert_allclose(scores([[5, 6, 7, 0, 0]], [[0, 3, 4]]), short, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_mean_over_the_pieces_that_are_there():
    target = tf.constant([[4, 5, 3, 0, 0], [6, 3, 0, 0, 0]])
    loss, entropy = translation_model.loss(SIZES, tf.constant([[5, 6], [7, 8]]), target, balance=0.0)
    previous = tf.constant([[0, 4, 5, 3, 0], [0, 6, 3, 0, 0]])
    with tf.variable_scope("", reuse=True):
        found, _ = translation_model.logits(
            SIZES, tf.constant([[5, 6], [7, 8]]), previous, tf.cast(target > 0, tf.float32)
        )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run([loss, entropy, tf.nn.log_softmax(found), target])
    log, ids = values[2:]
    wanted = -np.mean([log[row, place, ids[row, place]] for row in range(2) for place in range(5) if ids[row, place]])
    np.testing.assert_allclose(values[:2], [wanted, wanted], rtol=1e-5)


def test_buckets_are_single_near_by_and_grow():
    after = translation_model.bucket(-np.arange(200), causal=True)
    assert list(after[:17]) == list(range(17)) and after[18] == after[17] and after[127] == after[199] == 31
    assert (np.diff(after) >= 0).all() and (translation_model.bucket(np.arange(5), causal=True) == 0).all()
    both = translation_model.bucket(np.array([-3, 0, 3]), causal=False)
    assert list(both) == [3, 0, 19]


def test_widths_that_heads_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="width 16 cannot be divided into 3 heads"):
        translation_model.logits(SIZES._replace(heads=3), tf.zeros([1, 2], tf.int32), tf.zeros([1, 2], tf.int32), None)


def test_options_are_sizes():
    import argparse

    parser = argparse.ArgumentParser()
    model_options.add(parser)
    sizes = model_options.sizes_of(parser.parse_args(["--experts", "3", "--gate", "switch"]), 77)
    assert sizes == Sizes(77)._replace(experts=3, gate="switch", dropout=0.0)
