"""What ZeRO decides, from sizes and keys alone: the feature changes a graph by it, and the planner costs it.

    choose_placements      which variables are cut, and along which dimension
    scatters_gradients     whether their gradients are reduced to shards (v1, v2)
    packs                  which weights one collective gathers (v0, v1)
    block_bytes            how many bytes of weights come at a time (v2)

The goal is that each rank holds 1/N of the state. Where shards differ by a row, the larger ones go to the ranks that
hold least so far: the totals of two ranks differ by at most one row of one variable. A variable that is shorter than N
in every dimension stays full (a [3, 2] weight on 4 ranks). So do the smallest variables, together at most `WHOLE_SHARE`
of the bytes, so that a rank communicates few tensors.
"""

from typing import Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.sharding.placements import Placement, balanced_sizes, shard

NO_LEVEL, REDUCES, SCATTERS, DROPS = "", "v0", "v1", "v2"  # values of zero.level
WHOLE_SHARE = 0.02
SMALL = 128 << 10  # bytes of a weight that goes into a pack
PACK = 4 << 20  # bytes of a full pack
_BLOCKS = 100  # of weights per step, if all weights are small


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


def scatters_gradients(level: str, clip_after_allreduce: bool) -> bool:
    """Whether dense gradients of variables in shards are reduced to their shards; else each rank gets all of the mean.

    Args:
      level: `zero.level`.
      clip_after_allreduce: `communication.clip_after_allreduce`: the code of the user gets the mean.
    """
    return level in (SCATTERS, DROPS) and not clip_after_allreduce


def packs(sizes: Sequence[float], kinds: Sequence[Hashable]) -> List[List[int]]:
    """The weights of each collective, in the order of the first weight of each.

    Args:
      sizes: of the full weights in bytes, in the order of their first use.
      kinds: of the weights; those of different kinds are in different packs.
    """
    found: List[List[int]] = []
    open_packs: Dict[Hashable, List[int]] = {}
    for number, (size, kind) in enumerate(zip(sizes, kinds)):
        pack = open_packs.get(kind)
        if size > SMALL:
            found.append([number])
        elif pack and sum(sizes[one] for one in pack) + size <= PACK:
            pack.append(number)
        else:
            open_packs[kind] = [number]
            found.append(open_packs[kind])
    return found


def block_bytes(total: int) -> int:
    """Bytes of the weights of a block, given those of all uses in the forward and in the backward pass."""
    return total // _BLOCKS


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
