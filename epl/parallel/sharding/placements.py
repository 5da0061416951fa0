"""How a tensor of a split TaskGraph lies on the ranks of its group, and what its gradient then is.

| placement | on each rank | gradient with respect to it, on each rank |
| --- | --- | --- |
| REPLICATED | the whole tensor, the same everywhere | the whole gradient, the same everywhere |
| shard(d) | a part along dimension d | that part of the gradient |
| PARTIAL | an addend; the tensor is the sum over ranks | the whole gradient, the same everywhere |

A sharded op that takes a REPLICATED tensor has a part of its gradient only. Such an op takes the tensor through
`Emission.enter`, which changes nothing on the way forward and sums the parts on the way back.
"""

import itertools
from functools import lru_cache
from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np

_REPLICATED = "full"
_SHARD = "shard"
_PARTIAL = "partial"


class Placement(NamedTuple):
    """One of REPLICATED, PARTIAL and what `shard` makes.

    Attributes:
      kind: "full", "shard" or "partial".
      dim: the dimension that is cut, -1 if none is.
      sizes: of the parts, by rank; None: rows of a batch, of which each rank knows its own number alone.
    """

    kind: str
    dim: int = -1
    sizes: Optional[Tuple[int, ...]] = None

    @property
    def is_shard(self) -> bool:
        """Whether each rank has a part."""
        return self.kind == _SHARD

    @property
    def size(self) -> Optional[int]:
        """Of the dimension that is cut; None: not known."""
        return None if self.sizes is None else sum(self.sizes)

    def __str__(self) -> str:
        if not self.is_shard:
            return self.kind
        sizes = () if self.sizes is None else self.sizes
        return "shard({}{})".format(self.dim, ": " + "+".join(map(str, sizes)) if sizes else "")


REPLICATED = Placement(_REPLICATED)
PARTIAL = Placement(_PARTIAL)


def shard(dim: int, sizes: Optional[Sequence[int]] = None) -> Placement:
    """The placement of a tensor cut along dimension `dim` (from 0) into parts of the given sizes."""
    return Placement(_SHARD, dim, None if sizes is None else tuple(sizes))


def balanced_sizes(size: int, ranks: int, granularity: int = 1) -> Optional[Tuple[int, ...]]:
    """Sizes of parts that differ by `granularity` at most, the larger ones first.

    Args:
      size: of the dimension.
      ranks: the number of parts.
      granularity: every part is a multiple of it.

    Returns:
      The sizes; None if `size` is not a multiple of `granularity`, or some rank would have nothing.
    """
    units, rest = divmod(size, granularity)
    if rest or units < ranks:
        return None
    least, larger = divmod(units, ranks)
    return tuple((least + (rank < larger)) * granularity for rank in range(ranks))


def proportional_sizes(size: int, ratios: Sequence[int], granularity: int = 1) -> Optional[Tuple[int, ...]]:
    """Sizes of parts as near to the given ratios as they come, by the largest remainders; no part is empty.

    Args:
      size: of the dimension.
      ratios: positive, by rank.
      granularity: every part is a multiple of it.

    Returns:
      The sizes; None if `size` is not a multiple of `granularity`, or some rank would have nothing.
    """
    units, rest = divmod(size, granularity)
    if rest or units < len(ratios):
        return None
    counts = [ratio * units // sum(ratios) for ratio in ratios]
    by_remainder = sorted(range(len(ratios)), key=lambda rank: -(ratios[rank] * units % sum(ratios)))
    for rank in by_remainder[: units - sum(counts)]:
        counts[rank] += 1
    while 0 in counts:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    return tuple(count * granularity for count in counts)


@lru_cache(maxsize=None)
def shares(placement: Placement, ranks: int) -> Tuple[float, ...]:
    """How much of a cut tensor each rank has, for costs: batches, and parts that are balanced, count as equal."""
    sizes = placement.sizes
    if sizes is None or sizes == balanced_sizes(sum(sizes), ranks, int(np.gcd.reduce(sizes))):
        return (1 / ranks,) * ranks
    return tuple(size / sum(sizes) for size in sizes)


def offsets(sizes: Sequence[int]) -> Tuple[int, ...]:
    """Where each part begins."""
    return tuple(itertools.accumulate((0,) + tuple(sizes)))[:-1]
