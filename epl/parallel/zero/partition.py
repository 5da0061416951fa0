"""Which variables ZeRO cuts into parts, and along which dimension. Pure planning: nothing of the graph is touched.

State per rank is to be 1/N of all. Where parts differ by a row, the larger ones go to the ranks that have least so far:
no rank has more of them than another by more than one row of one. A variable that has fewer than N rows in each
dimension stays full. So do the smallest variables, together at most `WHOLE_SHARE` of the bytes, so that a rank moves
few tensors.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.sharding.placements import Placement, balanced_sizes, shard

WHOLE_SHARE = 0.02


class Candidate(NamedTuple):
    """A trained variable.

    Attributes:
      name: of its op.
      shape: its shape.
      bytes: its size.
      by_rows: whether its gradient is sparse: rows of dimension 0.
    """

    name: str
    shape: Tuple[int, ...]
    bytes: int
    by_rows: bool


def choose_parts(candidates: Sequence[Candidate], surplus: List[float]) -> Dict[str, Placement]:
    """Name -> how it is cut, of the variables that become parts.

    Args:
      candidates: the trained variables.
      surplus: by rank, bytes that larger parts of what was cut before have given it; those of these are added.
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
    """The placements, with further rows on the ranks that have least; largest rows first."""
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
    """Along the dimension whose parts differ least, the first among equals; None if all are short."""
    best: Optional[Tuple[float, int]] = None
    shape = one.shape[: 1 if one.by_rows else None]
    for dim, size in enumerate(shape):
        sizes = balanced_sizes(size, ranks)
        if sizes is not None and (best is None or max(sizes) / size < best[0]):
            best = max(sizes) / size, dim
    return None if best is None else shard(best[1], balanced_sizes(shape[best[1]], ranks))
