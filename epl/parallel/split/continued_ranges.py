"""Numbers of rows that are written into a model: on each rank they are those of its rows among the rows of all.

    offsets = tf.range(32) * 128      of batches of 32 rows, to gather from [32 * 128, width]
    rank 0       0, 128, ... 3968
    rank 1    4096, 4224, ... 8064    as one device with all rows has them, for whom the script would say 64

Only what is computed from such a `tf.range` by sums and products counts as numbers of rows: other constants, such as
labels or weights of rows, may be anything.
"""

from typing import Optional, Set

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.split.region import computed_from
from epl.utils import tf_compat

# Of a number of a row they make one of the same row.
_KEEPING = frozenset(
    "Add AddV2 BroadcastTo Cast ConcatV2 ExpandDims Identity Mul Pack Reshape Squeeze Sub Tile".split()
)
_DTYPES = frozenset([tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.bfloat16, tf.half, tf.float32, tf.float64])


def growth_over_batch(tensor: tf.Tensor, dim: int) -> Optional[np.ndarray]:
    """By how much numbers of rows grow from the batch of a rank to that of the next one.

    Args:
      tensor: depends on neither data nor variables, and has a number, or several, for each row of one rank's batch.
      dim: its dimension of the rows.

    Returns:
      An array of the shape of the tensor, with size 1 in dimension `dim`; None if it has no numbers of rows.
    """
    if tensor.dtype not in _DTYPES or tensor.shape[dim].value not in lengths_of_ranges(tensor):
        return None
    value = tf_compat.evaluate_constant(tensor)
    if value is None:
        return None
    steps = np.diff(value, axis=dim)
    first = np.take(steps, [0], axis=dim)
    is_even = (steps == first).all() and (first >= 0).all() and first.any()
    return first * value.shape[dim] if is_even else None


def lengths_of_ranges(tensor: tf.Tensor) -> Set[int]:
    """The lengths of the ranges from which a tensor is computed by sums, products and changes of shape."""
    ops = computed_from(tensor, lambda op: op.inputs if op.type in _KEEPING else ())
    return {op.outputs[0].shape.num_elements() or 0 for op in ops if op.type == "Range"}
