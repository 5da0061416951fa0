"""Half precision on the wire."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.compression import compress, decompress


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_floats_travel_as_float16_and_come_back_in_their_dtype(session, dtype):
    tensor = tf.constant([1.0, -2.5, 0.125], dtype)
    wire = compress(tensor, 8.0)
    assert wire.dtype == tf.float16
    back = decompress(wire, dtype, 8.0)
    assert back.dtype == dtype
    np.testing.assert_array_equal(*session.run([back, tensor]))


@pytest.mark.parametrize("dtype", [tf.float16, tf.int32])
def test_what_would_not_get_smaller_is_left_alone(dtype):
    tensor = tf.constant([1, 2], dtype)
    assert compress(tensor, 128.0) is tensor
    assert decompress(tensor, dtype, 128.0) is tensor


def test_scale_keeps_small_gradients(session):
    tensor = tf.constant([1e-9])
    assert session.run(compress(tensor, 1.0)) == 0
    back = decompress(compress(tensor, 2.0**15), tf.float32, 2.0**15)
    np.testing.assert_allclose(session.run(back), [1e-9], rtol=1e-2)


def test_slices_keep_their_indices(session):
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([4, 0]), tf.constant([5, 1]))
    wire = compress(slices, 2.0)
    assert wire.values.dtype == tf.float16
    back = decompress(wire, tf.float32, 2.0)
    assert back.indices is slices.indices
    np.testing.assert_array_equal(session.run(back.values), [[1.0], [2.0]])
