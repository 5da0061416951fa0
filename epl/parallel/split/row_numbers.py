"""Numbers of rows that are written into a model: on each rank they are those of its rows among the rows of all.

offsets = tf.range(32) * 128      of batches of 32 rows, to gather from [32 * 128, width]
rank 0       0, 128, ... 3968
rank 1    4096, 4224, ... 8064    as one device with all rows has them, for whom the script would say 64
"""

from typing import Optional

import numpy as np
import tensorflow.compat.v1 as tf

from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line


def growth_over_batch(tensor: tf.Tensor, dim: int) -> Optional[np.ndarray]:
    """By how much the numbers of a fixed tensor grow from the batch of a rank to that of the next one.

    Args:
      tensor: depends on neither data nor variables, and has one number, or several, for each row of one rank's batch.
      dim: its dimension of the rows.

    Returns:
      An array of the shape of the tensor, with size 1 in dimension `dim`; None if all rows have the same, or fractions
      that may be anything of a row, such as its weight.

    Raises:
      PlanError: they are whole numbers that do not grow evenly from row to row.
    """
    value = tf_compat.evaluate_constant(tensor)
    if value is None or value.dtype.kind not in "iuf" or value.shape[dim] < 2:
        return None
    steps = np.diff(value, axis=dim)
    first = np.take(steps, [0], axis=dim)
    if not steps.any() or (value.dtype.kind == "f" and (value != np.floor(value)).any()):
        return None
    if (steps == first).all():
        return first * value.shape[dim]
    if value.dtype.kind == "f":
        return None
    raise PlanError(
        f"split: {tensor.op.name!r} ({user_line(tensor.op)}) has numbers for the {value.shape[dim]} rows of the batch "
        "of one device, and EPL cannot tell which ones the rows of the other devices have. Compute them from "
        "tf.shape() of the batch, or feed them."
    )
