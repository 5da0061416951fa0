"""Half precision on the wire."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.compression import agreed_scale, compress, decompress


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


def scale_of(session, tensors, wanted=128.0, terms=1, others=0.0):
    scale = agreed_scale(tensors, wanted, terms, lambda own: tf.maximum(own, tf.constant(others, tf.float64)))
    return session.run(tf.convert_to_tensor(scale, tf.float64))


def test_the_scale_is_the_wanted_one_where_it_fits(session):
    assert scale_of(session, [tf.constant([100.0, -250.0])]) == 128
    assert scale_of(session, [tf.zeros([3])]) == 128
    assert scale_of(session, [tf.zeros([0]), tf.constant([1e-30], tf.float64)]) == 128
    assert agreed_scale([tf.constant([1e6], tf.float16), tf.constant([10**6])], 128.0, 1, None) == 128


@pytest.mark.parametrize("value", [600.0, -600.0, 6e4, 1e9, 3e38, 2.0**15, 2.0**-120])
@pytest.mark.parametrize("terms", [1, 3])
def test_a_smaller_scale_keeps_large_values_and_their_sum_finite(session, value, terms):
    tensors = [tf.constant([1.0]), tf.IndexedSlices(tf.constant([value]), tf.constant([0]), tf.constant([5]))]
    scale = scale_of(session, tensors, 2.0**14, terms)
    largest = max(1.0, abs(value))
    if scale < 2.0**14:
        assert np.log2(scale) == np.floor(np.log2(scale))
        assert 2**14 / terms < largest * scale
    assert largest * scale * terms <= 2**15


def test_the_largest_value_of_all_ranks_counts(session):
    assert scale_of(session, [tf.constant([1.0])], others=2.0**10) == 32


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_stays_so(session, value):
    tensor = tf.constant([value, 1.0])
    scale = agreed_scale([tensor], 128.0, 1, tf.identity)
    back = session.run(decompress(compress(tensor, scale), tf.float32, scale))
    np.testing.assert_array_equal(back, [value, 1.0])
