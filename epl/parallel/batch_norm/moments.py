"""Moments over the rows of a batch, as batch norms without the fused kernel take them: `tf.nn.moments`."""

import inspect
from typing import Any, Callable, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.batch_norm.sums import are_of_all_rows, of_all_rows, rows_over, statistics_dtype
from epl.utils import tf_compat


def batch_moments(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Tuple[tf.Tensor, tf.Tensor]:
    """`tf.nn.moments`; with `batch_norm.sync`, moments over all dimensions but that of the channels are of all rows."""
    if not are_of_all_rows():
        return original(*args, **kwargs)
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    x = tf.convert_to_tensor(given["x"])
    axes = _axes_of_batch_norm(x, given["axes"])
    if axes is None:
        return original(*args, **kwargs)
    keepdims = given.get("keep_dims") or given.get("keepdims")
    with tf.name_scope(given.get("name"), "moments", [x]):
        return _moments_of_all_rows(x, axes, bool(keepdims))


def _axes_of_batch_norm(x: tf.Tensor, axes: Any) -> Optional[List[int]]:
    """The axes, if they are all but one other than the first, or all; else None: of a layer norm, for example."""
    constant = tf_compat.static_value(axes) if tf.is_tensor(axes) else axes
    if constant is None or not x.shape.ndims or not x.dtype.is_floating:
        return None
    taken = sorted({int(axis) % x.shape.ndims for axis in ([constant] if isinstance(constant, int) else constant)})
    return taken if 0 in taken and len(taken) >= x.shape.ndims - 1 else None


def _moments_of_all_rows(x: tf.Tensor, axes: List[int], keepdims: bool) -> Tuple[tf.Tensor, tf.Tensor]:
    y = tf.cast(x, statistics_dtype(x))
    rows = rows_over(y, axes)
    total = tf.reduce_sum(y, axes, keepdims=True)
    mean = tf.stop_gradient(total / tf.cast(tf.maximum(rows, 1.0), y.dtype))
    squares = tf.reduce_sum(tf.math.squared_difference(y, mean), axes, keepdims=True)
    of_all = of_all_rows(total, squares, rows)
    shape = [1 if dim in axes else size for dim, size in enumerate(_sizes(x))]
    shape = shape if keepdims else [size for dim, size in enumerate(shape) if dim not in axes]
    mean_of_all, variance = (tf.cast(tf.reshape(one, shape), x.dtype) for one in (of_all.mean, of_all.variance))
    # A sum over nothing: mixed precision computes what follows a sum in float32, as it does after TensorFlow's moments.
    return tf.reduce_sum(mean_of_all, [], name="mean"), tf.reduce_sum(variance, [], name="variance")


def _sizes(x: tf.Tensor) -> List[Any]:
    """The sizes of the dimensions: numbers where they are known."""
    return [tf.shape(x)[dim] if size is None else size for dim, size in enumerate(x.shape.as_list())]
