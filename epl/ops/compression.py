"""Half precision on the wire: floats travel as float16, times a scale, and are converted back afterwards.

float16 ends at 65504. A scale that all ranks agree on, from the largest value of all of them, keeps what is finite
finite.
"""

import math
from typing import Callable, Sequence, Union, overload

import tensorflow.compat.v1 as tf

Compressible = Union[tf.Tensor, tf.IndexedSlices]
Scale = Union[float, tf.Tensor]  # a tensor: float64, scalar

_LARGEST = 2.0**15  # of the scaled values and their sum; float16 ends at 65504, and a sum may be rounded up
_SMALLEST = 1e-300  # that of zeros: infinity over them has a logarithm that is no number on TensorFlow 2


def compressible(dtype: tf.DType) -> bool:
    """Whether tensors of this dtype get smaller: float32, float64."""
    return dtype in (tf.float32, tf.float64)


def agreed_scale(
    tensors: Sequence[Compressible], wanted: float, terms: int, all_max: Callable[[tf.Tensor], tf.Tensor]
) -> Scale:
    """The scale with which all ranks send `tensors`: `wanted`, or a power of two below it where that would overflow.

    Args:
      tensors: that are sent together; IndexedSlices count with their values.
      wanted: the scale where the values are small enough.
      terms: how many ranks' values may add up in the result: 1 for a mean, or if nothing is summed.
      all_max: the collective that gives the largest float64 scalar of all ranks.

    Returns:
      A float64 scalar that is equal on all ranks; `wanted` as it is, without a collective, if no tensor gets smaller.
      Values that are no finite numbers stay so: they do not change the scale.
    """
    values = [one.values if isinstance(one, tf.IndexedSlices) else one for one in tensors]
    values = [one for one in values if compressible(one.dtype)]
    if not values:
        return wanted
    # Two reductions and no copy of the tensor, as abs would make one. Those of an empty tensor are -inf.
    extremes = [tf.cast(end, tf.float64) for one in values for end in (tf.reduce_max(one), -tf.reduce_min(one))]
    largest = all_max(tf.reduce_max(tf.stack([tf.constant(_SMALLEST, tf.float64), *extremes])))
    doublings = tf.floor(tf.math.log(_LARGEST / terms / largest) / math.log(2.0))
    fitting = tf.minimum(tf.constant(wanted, tf.float64), tf.pow(tf.constant(2.0, tf.float64), doublings))
    return tf.where_v2(tf.math.is_finite(largest), fitting, tf.constant(wanted, tf.float64))


@overload
def compress(tensor: tf.Tensor, scale: Scale) -> tf.Tensor: ...


@overload
def compress(tensor: tf.IndexedSlices, scale: Scale) -> tf.IndexedSlices: ...


def compress(tensor: Compressible, scale: Scale) -> Compressible:
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
    return tf.cast(tensor * tf.cast(scale, tensor.dtype), tf.float16)


@overload
def decompress(tensor: tf.Tensor, dtype: tf.DType, scale: Scale) -> tf.Tensor: ...


@overload
def decompress(tensor: tf.IndexedSlices, dtype: tf.DType, scale: Scale) -> tf.IndexedSlices: ...


def decompress(tensor: Compressible, dtype: tf.DType, scale: Scale) -> Compressible:
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
    return tf.cast(tensor, dtype) * tf.cast(1.0 / scale, dtype)
