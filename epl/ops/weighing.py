"""Tensors times the weight of a replica in a mean: 0 where its batch has no rows, and its values may be no numbers."""

import tensorflow.compat.v1 as tf

from epl.ops.collectives import Weight


def weighed(tensor: tf.Tensor, weight: Weight) -> tf.Tensor:
    """The product; zeros where the weight is 0, also of what is no number. Of bfloat16 that stays no number.

    Args:
      tensor: floating, of any shape.
      weight: a number, or a scalar tensor of any floating dtype.
    """
    scale = tf.cast(weight, tensor.dtype)
    if tensor.dtype == tf.bfloat16:  # TensorFlow has no kernel of the other for it
        return tensor * scale
    return tf.math.multiply_no_nan(tensor, scale)
