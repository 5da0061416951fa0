"""Where tensors pass between replicate code and a split, each of which has gradients of its own kind.

    replicate code    each of n ranks has the gradient of its own loss; what is trained is the mean of the losses
    split             all ranks have the gradient of that mean

A rank's share in the mean is 1/n, or that of its rows. So a gradient is divided by the share on its way from the split
into replicate code, and multiplied by it on its way back. Where it is differentiated again it is a tensor like others,
which has passed the other way, and its own gradient does so as well.
"""

from typing import Callable

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import times
from epl.ir.graph import first_tensor
from epl.parallel.sharding.resharding import Factor, Resharder, with_gradient


def into_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """The rows of a rank's own batch, for the split."""
    return _scaled(tensor, resharder.inverse_share)


def out_of_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """A rank's own rows, or what has entered, for replicate code."""
    return _scaled(tensor, resharder.share)


def objective_of_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """A rank's own rows of what is differentiated in the split; what their gradients begin with is replicate code's."""
    return with_gradient(tensor, tensor, lambda gradient: into_split(gradient, resharder))


def mean_into_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """The mean of what the ranks have, for the split: of a batch without rows, such as a loss."""
    mean = resharder.sum_partial(tf.stop_gradient(tensor) * resharder.share(tensor.dtype))
    return with_gradient(tensor, mean, lambda gradient: _common(gradient, resharder))


def common_into_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """What all ranks have alike, for the split."""
    return with_gradient(tensor, tensor, lambda gradient: _common(gradient, resharder))


def _common(gradient: Gradient, resharder: Resharder) -> Gradient:
    """The whole gradient, as each rank has it for its own loss: as it is."""
    return _with_values(gradient, gradient, lambda second: mean_into_split(tf.convert_to_tensor(second), resharder))


def _scaled(tensor: tf.Tensor, factor: Callable[[tf.DType], Factor]) -> tf.Tensor:
    """The tensor, whose gradient is `factor` times as large; that of the gradient is not."""

    def scaled(gradient: Gradient) -> Gradient:
        product = times(gradient, factor(first_tensor(gradient).dtype))
        return _with_values(gradient, product, lambda second: _scaled(second, factor))

    return with_gradient(tensor, tensor, scaled)


def _with_values(source: Gradient, result: Gradient, function: Callable[[tf.Tensor], tf.Tensor]) -> Gradient:
    """`result` as a function of `source`, row by row if that is sparse, with the given gradient."""
    values = with_gradient(first_tensor(source), first_tensor(result), function)
    if isinstance(result, tf.IndexedSlices):
        return tf.IndexedSlices(values, result.indices, result.dense_shape)
    return values
