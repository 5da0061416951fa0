"""Bridges between replicate code and a split: they rescale the gradients of the tensors that pass.

    replicate code    each of n ranks has the gradient of its own loss; training minimizes the mean of the losses
    split             all ranks have the gradient of that mean

A rank's share in the mean is 1/n, or its fraction of the rows. A gradient is divided by the share on its way from the
split into replicate code, and multiplied by it on its way back. A gradient that is differentiated again has passed the
bridge in the other direction: the factors of the chain rule and of the bridge cancel, and its own gradient is not
scaled.
"""

from typing import Callable

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import times
from epl.ir.graph import first_tensor
from epl.parallel.sharding.resharding import Factor, Resharder, with_gradient


def into_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """Passes the rows of a rank's own batch into the split."""
    return _scaled(tensor, resharder.inverse_share)


def out_of_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """Passes a rank's own rows, or an entered tensor (see `Form`), to replicate code."""
    return _scaled(tensor, resharder.share)


def objective_of_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """A rank's own rows of a tensor of the split that is differentiated; replicate code gives the initial gradient."""
    return with_gradient(tensor, tensor, lambda gradient: into_split(gradient, resharder))


def mean_into_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """The mean over the ranks of a tensor without rows, such as a loss, for the split."""
    mean = resharder.sum_partial(tf.stop_gradient(tensor) * resharder.share(tensor.dtype))
    return with_gradient(tensor, mean, lambda gradient: _common(gradient, resharder))


def common_into_split(tensor: tf.Tensor, resharder: Resharder) -> tf.Tensor:
    """Passes a tensor that is the same on all ranks into the split."""
    return with_gradient(tensor, tensor, lambda gradient: _common(gradient, resharder))


def _common(gradient: Gradient, resharder: Resharder) -> Gradient:
    """The full gradient, unscaled: it is the same on all ranks, and so it is its own mean over them."""
    return _with_values(gradient, gradient, lambda second: mean_into_split(tf.convert_to_tensor(second), resharder))


def _scaled(tensor: tf.Tensor, factor: Callable[[tf.DType], Factor]) -> tf.Tensor:
    """The tensor, with its gradient multiplied by `factor`; the gradient of that gradient is not scaled."""

    def scaled(gradient: Gradient) -> Gradient:
        product = times(gradient, factor(first_tensor(gradient).dtype))
        return _with_values(gradient, product, lambda second: _scaled(second, factor))

    return with_gradient(tensor, tensor, scaled)


def _with_values(source: Gradient, result: Gradient, function: Callable[[tf.Tensor], tf.Tensor]) -> Gradient:
    """`result` as a function of `source` with the given gradient; for IndexedSlices, of their values."""
    values = with_gradient(first_tensor(source), first_tensor(result), function)
    if isinstance(result, tf.IndexedSlices):
        return tf.IndexedSlices(values, result.indices, result.dense_shape)
    return values
