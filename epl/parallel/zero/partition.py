"""Which variables ZeRO shards, and along which dimension. Pure planning: the graph is neither read nor changed.

The goal is that each rank holds 1/N of the state. Where shards differ by a row, the larger ones go to the ranks that
hold least so far: the totals of two ranks differ by at most one row of one variable. A variable that is shorter than N
in every dimension stays full (a [3, 2] weight on 4 ranks). So do the smallest variables, together at most `WHOLE_SHARE`
of the bytes, so that a rank communicates few tensors.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.sharding.placements import Placement, balanced_sizes, shard

WHOLE_SHARE = 0.02


class Candidate(NamedTuple):
    """A trained variable.

    Attributes:
      name: name of its op.
      shape: its shape.
      bytes: its size.
      by_rows: whether its gradient is sparse (rows of dimension 0); only dimension 0 can be cut then.
    """

    name: str
    shape: Tuple[int, ...]
    bytes: int
    by_rows: bool


def choose_placements(candidates: Sequence[Candidate], surplus: List[float]) -> Dict[str, Placement]:
    """The placements of the variables to shard, by name.

    Args:
      candidates: the trained variables.
      surplus: by rank, the bytes that it got so far from shards with one row more; those of `candidates` are added.
    """
    ranks = len(surplus)
    found = {}
    for one in candidates:
        placement = _best_placement(one, ranks)
        if placement is not None:
            found[one.name] = placement
    left = WHOLE_SHARE * sum(one.bytes for one in candidates)
    left -= sum(one.bytes for one in candidates if one.name not in found)
    for one in sorted(candidates, key=lambda one: one.bytes):
        if one.name in found and one.bytes <= left:
            left -= one.bytes
            del found[one.name]
    return _balanced([one for one in candidates if one.name in found], found, surplus)


def _balanced(cut: Sequence[Candidate], placements: Dict[str, Placement], surplus: List[float]) -> Dict[str, Placement]:
    """The placements, with each remaining row on a rank that has least; variables with the largest rows come first."""
    rows = {one.name: one.bytes / (placements[one.name].size or 1) for one in cut}
    ranks = len(surplus)
    found = dict(placements)
    for one in sorted(cut, key=lambda one: -rows[one.name]):
        placement = placements[one.name]
        least, further = divmod(placement.size or 0, ranks)
        sizes = [least] * ranks
        for rank in sorted(range(ranks), key=lambda rank: surplus[rank])[:further]:
            sizes[rank] += 1
            surplus[rank] += rows[one.name]
        found[one.name] = shard(placement.dim, sizes)
    return found


def _best_placement(one: Candidate, ranks: int) -> Optional[Placement]:
    """Cuts the dimension with the most equal shards, the first among equals; None if all are shorter than `ranks`."""
    best: Optional[Tuple[float, int]] = None
    shape = one.shape[: 1 if one.by_rows else None]
    for dim, size in enumerate(shape):
        sizes = balanced_sizes(size, ranks)
        if sizes is not None and (best is None or max(sizes) / size < best[0]):
            best = max(sizes) / size, dim
    return None if best is None else shard(best[1], balanced_sizes(shape[best[1]], ranks))
