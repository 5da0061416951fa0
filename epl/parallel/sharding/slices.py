"""Slices of a tensor along one of its dimensions, and rows around it."""

from typing import Any, Mapping, Tuple

import tensorflow.compat.v1 as tf


def known_ndims(tensor: tf.Tensor) -> int:
    """The number of dimensions of a tensor whose rank is known."""
    ndims = tensor.shape.ndims
    assert ndims is not None, tensor
    return ndims


def slice_along(tensor: tf.Tensor, dim: int, begin: Any, size: Any) -> tf.Tensor:
    """The `size` rows of dimension `dim` from row `begin` on, and all of the other dimensions."""
    before, after = dim, (tensor.shape.ndims or 0) - dim - 1
    begins = [0] * before + [tf.cast(begin, tf.int32)] + [0] * after
    return tf.slice(tensor, begins, [-1] * before + [tf.cast(size, tf.int32)] + [-1] * after)


def pad_along(tensor: tf.Tensor, around: Mapping[int, Tuple[Any, Any]], value: float = 0.0) -> tf.Tensor:
    """The tensor with so many rows of `value` before and after it, by dimension; itself without any."""
    if not around:
        return tensor
    sizes = [list(around.get(dim, (0, 0))) for dim in range(known_ndims(tensor))]
    return tf.pad(tensor, sizes, constant_values=tf.constant(value, tensor.dtype))
