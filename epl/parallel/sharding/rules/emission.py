"""The Emission that rules build with: copies of ops on other tensors, and the resharding of one rank."""

from typing import Any, Callable, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ir.clone import copy_op
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.rules.registry import Emission


class RankEmission(Emission):
    """Builds the ops that replace one op of the unsplit program, for one rank, in the default graph."""

    def __init__(
        self,
        op: tf.Operation,
        resharder: Resharder,
        rows: Optional[Callable[[], tf.Tensor]] = None,
        over_rows: bool = False,
    ) -> None:
        """Builds nothing yet.

        Args:
          op: of the unsplit program.
          resharder: of the rank.
          rows: gives the number of rows of each rank, as an int64 vector; needed if the op has a batch.
          over_rows: whether partial sums are over rows that are cut along the batch.
        """
        self._op = op
        self._resharder = resharder
        self._rows = rows
        self._over_rows = over_rows
        self.rank = resharder.rank
        self.ranks = resharder.ranks

    def same(self, inputs: Sequence[tf.Tensor], **attrs: Any) -> List[tf.Tensor]:
        """The op with other inputs, and with other attributes where given; its outputs."""
        return list(copy_op(self._op, inputs, attrs).outputs)

    def own(self, values: Sequence[Any], dtype: tf.DType) -> tf.Tensor:
        """A constant that differs between ranks: `values` by rank. Nothing else may depend on the rank."""
        return self._resharder.own(values, dtype)

    def local_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """The size of a dimension that holds the batches of all ranks -> the size of this rank's shard."""
        if self._rows is None:
            raise ValueError(f"{self._op.name}: how many rows of a batch each rank has is not known.")
        return self._resharder.own_share(rows, self._rows())

    def enter(self, tensor: tf.Tensor) -> tf.Tensor:
        """REPLICATED, entered by an op that computes a shard: identity forward, all-reduce backward."""
        return self._resharder.enter(tensor)

    def sum_partial(self, tensor: tf.Tensor) -> tf.Tensor:
        """PARTIAL -> REPLICATED."""
        return self._resharder.sum_partial(self._resharder.partial_sum(tensor) if self._over_rows else tensor)

    def gather(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """shard -> REPLICATED."""
        return self._resharder.gather(tensor, placement)

    def cut(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """REPLICATED -> shard, by a placement with sizes."""
        return self._resharder.cut(tensor, placement)

    def with_halos(self, tensor: tf.Tensor, dim: int, before: int, after: int, value: float) -> tf.Tensor:
        """An equal shard along `dim`, between the edge rows of its neighbours; rows of `value` at both ends."""
        return self._resharder.with_halos(tensor, dim, before, after, value)

    def all_max(self, tensor: tf.Tensor) -> tf.Tensor:
        """The element-wise maximum over the ranks."""
        return self._resharder.all_max(tensor)

    def all_min(self, tensor: tf.Tensor) -> tf.Tensor:
        """The element-wise minimum over the ranks."""
        return self._resharder.all_min(tensor)
