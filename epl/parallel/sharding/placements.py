"""Placements: how a tensor of a split TaskGraph is distributed over the ranks of its group, and how its gradient is.

| placement | on each rank | its gradient, on each rank |
| --- | --- | --- |
| REPLICATED | the full tensor, the same everywhere | the full gradient, the same everywhere |
| shard(d) | a shard along dimension d | the same shard of the gradient |
| PARTIAL | a partial sum; the tensor is the sum over ranks | the full gradient, the same everywhere |

An op that computes a shard from a REPLICATED tensor gives only a partial sum of the tensor's gradient. Such an op takes
the tensor through `Emission.enter`: identity forward, all-reduce of the gradient backward (Megatron-LM's f).
"""

import itertools
from functools import lru_cache
from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np

_REPLICATED = "full"
_SHARD = "shard"
_PARTIAL = "partial"


class Placement(NamedTuple):
    """REPLICATED, PARTIAL, or a placement made by `shard`.

    Attributes:
      kind: "full", "shard" or "partial".
      dim: the dimension that is cut, -1 if none is.
      sizes: of the shards, by rank; 0 for an empty one. None for the rows of a batch, where each rank knows only its
        own number of rows.
    """

    kind: str
    dim: int = -1
    sizes: Optional[Tuple[int, ...]] = None

    @property
    def is_shard(self) -> bool:
        """Whether each rank has a shard."""
        return self.kind == _SHARD

    @property
    def has_empty(self) -> bool:
        """Whether some rank has a shard of size 0, whatever the batch."""
        return 0 in (self.sizes or ())

    @property
    def size(self) -> Optional[int]:
        """The size of the dimension that is cut; None if it is unknown."""
        return None if self.sizes is None else sum(self.sizes)

    def __str__(self) -> str:
        if not self.is_shard:
            return self.kind
        sizes = () if self.sizes is None else self.sizes
        return "shard({}{})".format(self.dim, ": " + "+".join(map(str, sizes)) if sizes else "")


REPLICATED = Placement(_REPLICATED)
PARTIAL = Placement(_PARTIAL)


def shard(dim: int, sizes: Optional[Sequence[int]] = None) -> Placement:
    """The placement of a tensor that is cut along dimension `dim` (from 0) into shards of the given sizes."""
    return Placement(_SHARD, dim, None if sizes is None else tuple(sizes))


def balanced_sizes(size: int, ranks: int, granularity: int = 1) -> Optional[Tuple[int, ...]]:
    """Sizes of shards that differ by `granularity` at most, the larger ones first: (3, 3, 2, 2) for 10 on 4 ranks.

    Args:
      size: of the dimension.
      ranks: the number of shards.
      granularity: the size of every shard is a multiple of it.

    Returns:
      The sizes; None if `size` is not a multiple of `granularity`, or some shard would be empty.
    """
    units, rest = divmod(size, granularity)
    if rest or units < ranks:
        return None
    least, larger = divmod(units, ranks)
    return tuple((least + (rank < larger)) * granularity for rank in range(ranks))


def proportional_sizes(size: int, ratios: Sequence[int], granularity: int = 1) -> Optional[Tuple[int, ...]]:
    """Sizes of shards in about the given ratios, by the largest remainders: (8, 2) for size 10 and ratios (3, 1).

    Args:
      size: of the dimension.
      ratios: by rank, 0 for an empty shard; one at least is positive.
      granularity: the size of every shard is a multiple of it.

    Returns:
      The sizes, 0 exactly where the ratio is; None if `size` is not a multiple of `granularity`, or a shard of a
      positive ratio would be empty.
    """
    if 0 in ratios:
        found = proportional_sizes(size, [ratio for ratio in ratios if ratio], granularity)
        shards = iter(found or ())
        return None if found is None else tuple(next(shards) if ratio else 0 for ratio in ratios)
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
    """The fraction of a cut tensor that each rank has, for costs: batches and balanced shards count as equal."""
    sizes = placement.sizes
    if sizes is None or sizes == balanced_sizes(sum(sizes), ranks, int(np.gcd.reduce(sizes))):
        return (1 / ranks,) * ranks
    return tuple(size / sum(sizes) for size in sizes)


def offsets(sizes: Sequence[int]) -> Tuple[int, ...]:
    """Where each shard begins: (0, 3, 6, 8) for the sizes (3, 3, 2, 2)."""
    return tuple(itertools.accumulate((0,) + tuple(sizes)))[:-1]
