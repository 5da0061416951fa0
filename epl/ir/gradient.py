"""What a gradient is: a tensor, or IndexedSlices where a variable is looked up by rows."""

from typing import Tuple, Union

import tensorflow.compat.v1 as tf

Gradient = Union[tf.Tensor, tf.IndexedSlices]

Boundary = Tuple[str, Gradient]  # the variable op by name; the identity that its gradient passes
