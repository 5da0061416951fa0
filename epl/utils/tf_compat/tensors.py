"""What is known of a tensor while a graph is built."""

from typing import Optional, Tuple

import tensorflow.compat.v1 as tf

# Sizes, None for one that is open; None: not even the rank is known. And the dtype.
OutputType = Tuple[Optional[Tuple[Optional[int], ...]], tf.DType]


def output_type(tensor: tf.Tensor) -> OutputType:
    """Sizes and dtype of a tensor."""
    shape = tensor.shape
    return None if shape.ndims is None else tuple(shape.as_list()), tensor.dtype
