"""Half precision on the wire: floats travel as float16 and are converted back afterwards."""

from typing import Union, overload

import tensorflow.compat.v1 as tf

Compressible = Union[tf.Tensor, tf.IndexedSlices]


def compressible(dtype: tf.DType) -> bool:
    """Whether tensors of this dtype get smaller: float32, float64."""
    return dtype in (tf.float32, tf.float64)


@overload
def compress(tensor: tf.Tensor, scale: float) -> tf.Tensor: ...


@overload
def compress(tensor: tf.IndexedSlices, scale: float) -> tf.IndexedSlices: ...


def compress(tensor: Compressible, scale: float) -> Compressible:
    """`tensor * scale` as float16; a tensor that would not get smaller is returned as it is.

    Args:
        tensor: a tensor or IndexedSlices (whose values are compressed).
        scale: multiplies before the cast, to keep small gradients above float16's smallest number, 6e-8.

    Returns:
        The tensor to send.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(compress(tensor.values, scale), tensor.indices, tensor.dense_shape)
    if not compressible(tensor.dtype):
        return tensor
    return tf.cast(tensor if scale == 1 else tensor * tf.cast(scale, tensor.dtype), tf.float16)


@overload
def decompress(tensor: tf.Tensor, dtype: tf.DType, scale: float) -> tf.Tensor: ...


@overload
def decompress(tensor: tf.IndexedSlices, dtype: tf.DType, scale: float) -> tf.IndexedSlices: ...


def decompress(tensor: Compressible, dtype: tf.DType, scale: float) -> Compressible:
    """Undoes `compress`.

    Args:
        tensor: the result of the collective.
        dtype: the dtype before `compress`.
        scale: the scale given to `compress`.

    Returns:
        The tensor, in `dtype`.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(decompress(tensor.values, dtype, scale), tensor.indices, tensor.dense_shape)
    if not compressible(dtype):
        return tensor
    restored = tf.cast(tensor, dtype)
    return restored if scale == 1 else restored * tf.cast(1.0 / scale, dtype)
