"""Replicated rows of a batch: in a run that trains nothing, each rank of a process has all rows that are fed there.

    rows on each of three ranks      a b c | a b c | a b c
    cut along the batch              unchanged: each rank computes on all of them
    full, or cut otherwise           a b c: the rows of the first rank of each process, its primary rank

So a sum over rows that are cut adds the partial sums of the primary ranks alone, and ops on the full batch compute what
one device computes. In a training step each rank is its own primary rank; a run that trains nothing feeds the primary
ranks.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import DEFAULT_ATTR, TASKGRAPH_ATTR
from epl.parallel.sharding.slices import slice_along
from epl.utils import tf_compat


class _Primaries(NamedTuple):
    primaries: tf.Tensor
    is_primary: tf.Tensor


def primary_ranks_of(owners: Sequence[int]) -> Tuple[int, ...]:
    """By rank of a group, the first rank of the same process: (0, 0, 2, 2) for the processes (0, 0, 1, 1)."""
    return tuple(owners.index(owner) for owner in owners)


class ReplicatedRows:
    """Which ranks have copies of the same rows in a run, for the ops of one rank.

    Attributes:
      in_one_process: whether one process has all ranks of a group, in each group.
      switches: the tensors that are fed the primary ranks, by rank of the group.
    """

    def __init__(self, ranks: int, in_one_process: bool) -> None:
        """Builds nothing yet.

        Args:
          ranks: of a group.
          in_one_process: whether one process has all ranks of a group, in each group.
        """
        self._ranks = ranks
        self.in_one_process = in_one_process
        self._of_taskgraphs: Dict[Optional[int], _Primaries] = {}
        self.switches: List[tf.Tensor] = []

    def kept(self, rows: tf.Tensor) -> tf.Tensor:
        """The number of rows that each rank adds to the full batch, given the number that it has; int64, by rank."""
        return rows * self._get().is_primary

    def begin(self, rows: tf.Tensor, rank: Union[int, tf.Tensor]) -> tf.Tensor:
        """Where the rows of a rank begin in the full batch; int64."""
        return tf.cumsum(self.kept(rows), exclusive=True)[self._get().primaries[rank]]

    def of_primary(self, tensor: tf.Tensor, rank: tf.Tensor) -> tf.Tensor:
        """The partial sum `tensor` over the rows of a rank; zeros on a rank that is not primary."""
        return tf.where_v2(tf.equal(self._get().is_primary[rank], 1), tensor, tf.zeros_like(tensor))

    def drop(self, tensor: tf.Tensor, dim: int, rows: tf.Tensor) -> tf.Tensor:
        """The rows of all ranks, one after the other in dimension `dim` -> the full batch."""
        kept = self.kept(rows)
        if self.in_one_process:
            return slice_along(tensor, dim, 0, tf.reduce_sum(kept))
        pieces = tf.split(tensor, rows, axis=dim, num=self._ranks)
        return tf.concat([slice_along(piece, dim, 0, kept[rank]) for rank, piece in enumerate(pieces)], dim)

    def repeat(self, tensor: tf.Tensor, dim: int, rows: tf.Tensor) -> tf.Tensor:
        """The full batch -> the rows of all ranks, one after the other in dimension `dim`."""
        if not self.in_one_process:
            pieces = [slice_along(tensor, dim, self.begin(rows, rank), rows[rank]) for rank in range(self._ranks)]
            return tf.concat(pieces, dim)
        copies = tf.reduce_sum(rows) // tf.maximum(tf.reduce_sum(self.kept(rows)), 1)
        multiples: List[Any] = [1] * (tensor.shape.ndims or 0)
        multiples[dim] = tf.cast(copies, tf.int32)
        return tf.tile(tensor, tf.stack(multiples))

    def _get(self) -> _Primaries:
        mark = tf_compat.attr_scope(tf.get_default_graph(), TASKGRAPH_ATTR)
        taskgraph = None if mark is None else mark.i
        if taskgraph not in self._of_taskgraphs:
            with tf.control_dependencies(None):
                ranks = tf.range(self._ranks, dtype=tf.int64)
                switch = tf.placeholder_with_default(ranks, [self._ranks])
                tf_compat.set_attr(switch.op, DEFAULT_ATTR, tf.AttrValue(b=True))
                self._of_taskgraphs[taskgraph] = self._with(switch)
            self.switches.append(switch)
        return self._of_taskgraphs[taskgraph]

    def _with(self, primaries: tf.Tensor) -> _Primaries:
        return _Primaries(primaries, tf.cast(tf.equal(primaries, tf.range(self._ranks, dtype=tf.int64)), tf.int64))


class GivenCopies(ReplicatedRows):
    """ReplicatedRows whose primary ranks are given in a tensor."""

    def __init__(self, ranks: int, in_one_process: bool, primaries: tf.Tensor) -> None:
        """Takes the primary ranks, by rank."""
        super().__init__(ranks, in_one_process)
        self._given = primaries

    def _get(self) -> _Primaries:
        return self._with(self._given)
