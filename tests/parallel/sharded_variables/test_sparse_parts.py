"""Tables of which devices have parts of different sizes: their gradients stay sparse, and other rows as they were."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl

IDS = np.random.RandomState(0).randint(0, 40, [4, 6, 3])


def trained(split, rows, width):
    """The table after four steps of Momentum, which moves none of the rows that are in no batch."""
    tf.set_random_seed(4)
    ids = tf.placeholder(tf.int32, [None, 3])
    with split:
        table = tf.get_variable("table", [rows, width])
        words = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, 3 * width])
        loss = tf.reduce_mean(tf.square(tf.layers.dense(words, 4)))
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    gradients = optimizer.compute_gradients(loss)
    train_op = optimizer.apply_gradients(gradients)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in IDS:
            sess.run(train_op, {ids: step})
        return isinstance(gradients[0][0], tf.IndexedSlices), sess.run(table)


@pytest.mark.parametrize("rows, width", [(4003, 5), pytest.param(4003, 4, marks=pytest.mark.long)])
def test_gradients_of_tables_stay_sparse(init, rows, width):
    with tf.Graph().as_default():
        _, expected = trained(contextlib.ExitStack(), rows, width)
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    is_sparse, found = trained(epl.split(2), rows, width)
    assert is_sparse
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
