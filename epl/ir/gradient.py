"""The type of a gradient: a tensor, or IndexedSlices if the variable is looked up by rows."""

from typing import Tuple, Union

import tensorflow.compat.v1 as tf

Gradient = Union[tf.Tensor, tf.IndexedSlices]

Boundary = Tuple[str, Gradient]  # (name of the variable op, identity after its gradient)
