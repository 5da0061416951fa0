"""Finds the dimension of a tensor that holds the batch: it grows when the batches of all ranks are concatenated.

The sharding rules say where the rows of a sharded batch go. Reshapes are traced by sizes: the batch b of [t, b, d] is
found again after [t, b, d] -> [t * b, d] -> [t, b, d]. Where no rule helps, the shapes decide (`guessed`).
"""

from typing import List, NamedTuple, Optional, Sequence

from epl.parallel.sharding.placements import REPLICATED, Placement, shard
from epl.parallel.sharding.rules.registry import OpInfo, Shape, TensorInfo, choices_of


class Batch(NamedTuple):
    """The position of the rows of a batch in a tensor.

    Attributes:
      dim: the dimension that holds them.
      outer: how often it runs through the batch: t for dimension 0 of [t * b, d]. Only with 1 it can be sharded.
    """

    dim: int
    outer: int


def batch_placement(info: TensorInfo) -> Placement:
    """The placement in which each rank holds the rows of its own batch; REPLICATED without a batch."""
    return REPLICATED if info.batch is None else shard(info.batch, None)


def traced(op: OpInfo) -> Optional[List[Optional[int]]]:
    """The batch dimension of each output by the rule of the op; None if the rule has no choice for such inputs."""
    placements = tuple(batch_placement(info) for info in op.inputs)
    for choice in choices_of(op):
        if choice.inputs == placements:
            return [placement.dim if placement.is_shard else None for placement in choice.outputs]
    return None


def reshaped(
    batch: Optional[Batch], rows: Optional[int], before: Optional[Shape], after: Optional[Shape]
) -> Optional[Batch]:
    """The position of the batch after a reshape, which keeps the number of runs through it: t in [t, b] -> [t * b].

    Args:
      batch: its position before the reshape.
      rows: of one rank's batch, if they are known.
      before: shape of the input, with one rank's batch.
      after: shape of the output, with one rank's batch.
    """
    if batch is None or before is None or after is None:
        return None
    outside = _product(before[: batch.dim], batch.outer)
    if outside is None:
        return None
    passed = 1
    for dim, size in enumerate(after):
        if size is None or (rows is not None and passed * size % (outside * rows) == 0):
            return Batch(dim, outside // passed) if outside % passed == 0 else None
        passed *= size
    return None


def _product(sizes: Sequence[Optional[int]], product: int) -> Optional[int]:
    for size in sizes:
        if size is None:
            return None
        product *= size
    return product


def guessed(op: OpInfo) -> List[Optional[int]]:
    """The batch dimension of each output by shapes alone: the first as large as an input's batch, or open like it."""
    found = [_candidates(op, info) for info in op.outputs]
    return [dims[0] if dims else None for dims in found]


def is_ambiguous(op: OpInfo, output: TensorInfo) -> bool:
    """Whether the batch may be in more than one dimension of an output."""
    return output.shape is None or len(_candidates(op, output)) > 1


def _candidates(op: OpInfo, output: TensorInfo) -> List[int]:
    sizes = set()
    for info in op.inputs:
        if info.batch is not None and info.shape is not None:
            size = info.shape[info.batch]
            sizes.add(None if size is None else size // op.ranks)
    return [dim for dim, size in enumerate(output.shape or ()) if size in sizes]
