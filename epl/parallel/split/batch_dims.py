"""Which dimension of a tensor holds the batch, which grows when those of all ranks are concatenated.

The rules say where the rows of a cut batch go. Reshapes are followed by their sizes, so that a batch is found again
that stood inside of another dimension for a while; and where no rule helps, the shapes have to tell.
"""

from typing import List, NamedTuple, Optional, Sequence

from epl.parallel.sharding.placements import REPLICATED, Placement, shard
from epl.parallel.sharding.rules.registry import OpInfo, Shape, TensorInfo, choices_of


class Batch(NamedTuple):
    """Where the rows of a batch are in a tensor.

    Attributes:
      dim: the dimension that holds them.
      outer: how often they stand there one after the other; only with 1 they can be cut.
    """

    dim: int
    outer: int


def batch_placement(info: TensorInfo) -> Placement:
    """How a tensor lies when each rank has the rows of its own batch."""
    return REPLICATED if info.batch is None else shard(info.batch, None)


def traced(op: OpInfo) -> Optional[List[Optional[int]]]:
    """Which dimension of each output holds the batch, by the rule of the op; None if the rule does not say."""
    placements = tuple(batch_placement(info) for info in op.inputs)
    for choice in choices_of(op):
        if choice.inputs == placements:
            return [placement.dim if placement.is_shard else None for placement in choice.outputs]
    return None


def reshaped(
    batch: Optional[Batch], rows: Optional[int], before: Optional[Shape], after: Optional[Shape]
) -> Optional[Batch]:
    """Where a reshape leads the batch of so many rows: there as here, as many elements are outside of a row.

    Args:
      batch: where it is.
      rows: of one rank, if they are known.
      before: shape that is reshaped.
      after: shape that it gets, with one rank's batch.
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
    """The same by the shapes: the first dimension that is as open, or as large, as a batch of the inputs."""
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
