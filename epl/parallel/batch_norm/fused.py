"""Batch norms with the fused kernel, `tf.nn.fused_batch_norm`, by the statistics of the rows of all replicas.

With `batch_norm.sync` one op becomes two, with the statistics of all rows (sums.py) between them:

    x --> FusedBatchNorm, training --> mean, variance of own rows --> sums, marker --> mean, variance of all
    x, scale, offset, mean, variance of all --> FusedBatchNorm, inference --> y

The gradient of the second is that of given statistics, which the fused kernel computes, and theirs too: they follow
from its gradients by scale and offset. So one pass over x and the gradient gives all sums:

    d offset = sum of dy                                d mean     = -d offset * scale / sqrt(variance + epsilon)
    d scale  = sum of dy * (x - mean) / deviation       d variance = -d scale * scale / (2 * (variance + epsilon))

Source: Ioffe and Szegedy, Batch Normalization, section 3.
"""

import inspect
from typing import Any, Callable, List, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.batch_norm.sums import Statistics, are_of_all_rows, of_all_rows, rows_over

_FUSED = "FusedBatchNormV3"
# The gradients of the two ops; by them they are known in a graph.
OWN_STATISTICS, _NORMALIZE = "EplBatchNormOwnStatistics", "EplBatchNormNormalize"

FusedResult = Tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def fused_batch_norm(original: Callable[..., Any], *args: Any, **kwargs: Any) -> FusedResult:
    """`tf.nn.fused_batch_norm`; with `batch_norm.sync`, the statistics of a batch are of all rows."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    if not given["is_training"] or not are_of_all_rows():
        return original(*args, **kwargs)
    with tf.name_scope(given["name"], "FusedBatchNorm"):
        return _of_all_rows(original, **dict(given, name=None))


def _of_all_rows(original: Callable[..., Any], x: Any, scale: Any, offset: Any, **given: Any) -> FusedResult:
    x, scale, offset = (tf.convert_to_tensor(one) for one in (x, scale, offset))
    factor = given.pop("exponential_avg_factor", None)  # TensorFlow 2 has it; None of a Keras layer means 1
    moving = [given.pop(name) for name in ("mean", "variance")]
    graph = tf.get_default_graph()
    with graph.gradient_override_map({_FUSED: OWN_STATISTICS}):
        _, own_mean, own_variance = original(x, scale, offset, **given)
    statistics = _statistics(x, own_mean, own_variance, given["data_format"])
    mean, variance = (tf.cast(one, own_mean.dtype) for one in statistics[:2])
    with graph.gradient_override_map({_FUSED: _NORMALIZE}):
        y, _, _ = original(x, scale, offset, mean, variance, **dict(given, is_training=False))
    unbiased = statistics.variance * (statistics.rows / tf.maximum(statistics.rows - 1, 1.0))
    batch = [tf.stop_gradient(one) for one in (mean, tf.cast(unbiased, own_mean.dtype))]
    if factor not in (None, 1.0):
        batch = [before * (1 - factor) + value * factor for before, value in zip(moving, batch)]
    return y, batch[0], batch[1]


def _statistics(x: tf.Tensor, mean: tf.Tensor, unbiased: tf.Tensor, data_format: str) -> Statistics:
    """Statistics of all rows, from those of the rows of this replica, which may be none."""
    rows = rows_over(x, _axes(x, data_format))
    total = _times(mean, rows)
    return of_all_rows(total, _times(unbiased, rows - 1), rows)


def _times(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Values times a count; 0 for none, of which the kernel takes statistics that are no numbers."""
    return tf.math.multiply_no_nan(tf.cast(values, tf.float64), tf.maximum(count, 0.0))


def _axes(x: tf.Tensor, data_format: Any) -> List[int]:
    """The dimensions that statistics are taken over."""
    channels = _channels(x, data_format)
    return [dim for dim in range(len(x.shape)) if dim != channels]


def _channels(x: tf.Tensor, data_format: Any) -> int:
    return 1 if tf.compat.as_str(data_format).startswith("NC") else len(x.shape) - 1


@tf.RegisterGradient(OWN_STATISTICS)
def _own_grad(op: tf.Operation, y: Any, mean: tf.Tensor, unbiased: tf.Tensor, *reserved: Any) -> List[Any]:
    """Gradient of the statistics of a replica by x; scale and offset have none."""
    x = op.inputs[0]
    data_format = op.get_attr("data_format")
    shape = [-1 if dim == _channels(x, data_format) else 1 for dim in range(len(x.shape))]
    rows = tf.cast(rows_over(x, _axes(x, data_format)), mean.dtype)
    by_mean = mean / tf.maximum(rows, 1.0)
    by_value = unbiased * (2 / tf.maximum(rows - 1, 1.0))
    means, by_mean, by_value = (tf.reshape(one, shape) for one in (op.outputs[1], by_mean, by_value))
    gradient = by_mean + by_value * (tf.cast(x, mean.dtype) - means)
    return [tf.cast(gradient, x.dtype), None, None, None, None]


@tf.RegisterGradient(_NORMALIZE)
def _normalize_grad(op: tf.Operation, y: tf.Tensor, *others: Any) -> List[tf.Tensor]:
    """Gradients by x, scale, offset, and by the statistics that are given."""
    x, scale, _, mean, variance = op.inputs
    epsilon, data_format = op.get_attr("epsilon"), tf.compat.as_str(op.get_attr("data_format"))
    channels, dims = _channels(x, data_format), list(range(len(x.shape)))
    last = [dim for dim in dims if dim != channels] + [channels]  # as TensorFlow: the kernel knows no other order here
    is_last = last == dims
    made = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=y if is_last else tf.transpose(y, last),
        x=x if is_last else tf.transpose(x, last),
        scale=scale,
        reserve_space_1=mean,
        reserve_space_2=variance,
        reserve_space_3=op.outputs[5],
        epsilon=epsilon,
        data_format="NHWC" if len(dims) == 4 else "NDHWC",
        is_training=False,
    )
    by_x, by_scale, by_offset = made[:3]
    if not is_last:
        by_x = tf.transpose(by_x, [last.index(dim) for dim in dims])
    deviation = tf.sqrt(variance + epsilon)
    by_mean = -by_offset * scale / deviation
    by_variance = -by_scale * scale / (2 * (variance + epsilon))
    return [by_x, by_scale, by_offset, by_mean, by_variance]
