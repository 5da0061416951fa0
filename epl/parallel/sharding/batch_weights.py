"""The weight of a rank's batch in the mean over its split group, where ranks may have different numbers of rows.

    rows of the ranks    5  3  3        values computed outside of the split weigh 5/11, 3/11 and 3/11 in the mean

The rows are those that the ranks are fed, as in data parallelism; without feeds all weights are equal. A collective
sums the rows once a step, when the first gradient needs the sum.
"""

from typing import Callable, Dict

import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import DEFAULT_ATTR
from epl.utils import tf_compat


class BatchWeights:
    """The numbers of rows of one rank and of its group, as tensors.

    Attributes:
      own: float64, is fed the number of rows of this rank where the numbers differ.
    """

    def __init__(self, sum_of_ranks: Callable[[tf.Tensor], tf.Tensor], current_stage: Callable[[], int]) -> None:
        """Makes `own`, which is 1 unless it is fed.

        Args:
          sum_of_ranks: builds a collective that runs once a step.
          current_stage: gives the stage of the ops that are being built; each stage has a sum of its own.
        """
        self._sum_of_ranks = sum_of_ranks
        self._current_stage = current_stage
        self._sums: Dict[int, tf.Tensor] = {}
        with tf.control_dependencies(None):
            self.own = tf.placeholder_with_default(tf.constant(1.0, tf.float64), [], "rows")
        tf_compat.set_attr(self.own.op, DEFAULT_ATTR, tf.AttrValue(b=True))

    def of_group(self) -> tf.Tensor:
        """The number of rows of all ranks of the group, for the stage whose ops are being built."""
        stage = self._current_stage()
        if stage not in self._sums:
            with tf.control_dependencies(None):
                self._sums[stage] = self._sum_of_ranks(self.own)
        return self._sums[stage]

    def of_group_in(self, stage: int) -> tf.Tensor:
        """The number that `of_group` has made for a stage."""
        return self._sums[stage]

    def share(self, dtype: tf.DType) -> tf.Tensor:
        """The weight of this rank's batch in the mean over the group."""
        return self._quotient(self.own, self.of_group(), dtype)

    def inverse_share(self, dtype: tf.DType) -> tf.Tensor:
        """1 / `share`; 0 where this rank has no rows."""
        return self._quotient(self.of_group(), self.own, dtype)

    def _quotient(self, dividend: tf.Tensor, divisor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        with tf.control_dependencies(None):
            return tf.cast(tf.div_no_nan(dividend, divisor), dtype)
