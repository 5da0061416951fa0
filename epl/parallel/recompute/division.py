"""Which activations EPL keeps if the user names no checkpoints: the cuts of a chain of ops with the least peak memory.

    ops      0  1  2 | 3  4 | 5  6  7      cut before 3 and before 5
    kept           2'    4'                tensors that are produced before a cut and used after it
    peak     for each segment: all tensors kept up to its end + its own recomputed activations; the largest of these

When the backward pass reaches a segment, the tensors kept for later segments are free, so earlier segments may be
longer: on a chain of L equal layers the peak is about sqrt(2 L) activations. Dynamic programming finds the exact
optimum over the candidate cuts: of all divisions of the first ops that stay below a peak, the one that keeps the fewest
bytes is never worse than the others (dominance); bisection finds the least peak. With a budget of bytes a segment may
also keep all its activations, and the search follows the Pareto front of bytes kept and FLOPs recomputed.

The idea of checkpoints is from Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); this is not their
algorithm. `candidates.py` builds the chain.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

_LONGEST_FRONT = 256  # entries of a Pareto front; more are thinned out, which errs on the safe side


class Chain(NamedTuple):
    """Ops of a forward pass in the order in which they run, by position.

    Attributes:
      sizes: bytes of the op's outputs.
      last: position of the last op that reads them; its own position if none does.
      saved: whether the backward pass reads them.
      flops: FLOPs of the op.
    """

    sizes: Sequence[int]
    last: Sequence[int]
    saved: Sequence[bool]
    flops: Sequence[float]


class Division(NamedTuple):
    """A division of a chain into segments.

    Attributes:
      cuts: positions where segments begin, without the first.
      whole: numbers of the segments that are kept, not recomputed.
      peak: largest number of bytes alive at once.
      flops: FLOPs that are recomputed.
    """

    cuts: Tuple[int, ...]
    whole: Tuple[int, ...]
    peak: int
    flops: float


class _Table:
    """Bytes and FLOPs of every segment between two candidates: [a, b] is the segment from a up to b, without b."""

    def __init__(self, chain: Chain, candidates: Sequence[int]) -> None:
        self.points = [0] + [c for c in sorted(set(candidates)) if 0 < c < len(chain.sizes)] + [len(chain.sizes)]
        count = len(self.points)
        inner = np.asarray(self.points[1:-1])
        produced = np.searchsorted(inner, np.arange(len(chain.sizes)), side="right")
        used = np.searchsorted(inner, np.asarray(chain.last), side="right")
        size = np.asarray(chain.sizes, np.int64)
        saved = np.asarray(chain.saved, bool)
        everything = _by_pair(produced, used, size, count)  # [segment of the producer, of the last consumer]
        recomputed = _by_pair(produced, used, size * saved, count)
        self.kept = np.zeros([count, count], np.int64)
        self.own = np.zeros([count, count], np.int64)
        for end in range(1, count):
            crossing = everything[:end, end:].sum(axis=1)
            inside = recomputed[:end, :end].sum(axis=1)
            self.kept[:end, end] = crossing[::-1].cumsum()[::-1]
            self.own[:end, end] = inside[::-1].cumsum()[::-1]
        flops = np.concatenate([[0.0], np.cumsum(np.asarray(chain.flops, float))])[self.points]
        self.flops = flops[None, :] - flops[:, None]


def _by_pair(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    sums = np.zeros([count, count], np.int64)
    np.add.at(sums, (rows, columns), values)
    return sums


def least_peak(chain: Chain, candidates: Sequence[int], last_is_whole: bool = True) -> Division:
    """The division with the least peak; among equals, one that keeps the fewest bytes.

    Args:
      chain: the ops.
      candidates: positions before which the chain may be cut.
      last_is_whole: the last segment is not recomputed, as its own backward pass follows at once.
    """
    table = _Table(chain, candidates)
    low, high = 0, int(table.kept.max() + table.own.max())
    while low < high:
        starts, bound = _within(table, (low + high) // 2)
        if starts is None:
            low = bound
        else:
            high = bound
    starts, _ = _within(table, low)
    assert starts is not None
    ends = starts[1:] + [len(table.points) - 1]
    whole = (len(starts) - 1,) if last_is_whole else ()
    flops = sum(float(table.flops[a, b]) for at, (a, b) in enumerate(zip(starts, ends)) if at not in whole)
    return Division(tuple(table.points[start] for start in starts[1:]), whole, low, flops)


def _within(table: _Table, limit: int) -> Tuple[Optional[List[int]], int]:
    """Where segments begin so that the peak is at most `limit` and the fewest bytes are kept, or None.

    Returns:
      Also that peak; without segments the least limit that allows more of them than this one.
    """
    count = len(table.points)
    none = np.iinfo(np.int64).max // 4
    least = np.full([count], none, np.int64)  # bytes kept of the ops before each candidate
    least[0] = 0
    source = [0] * count
    peak, higher = [0] * count, none
    for end in range(1, count):
        kept = least[:end] + table.kept[:end, end]
        peaks = kept + table.own[:end, end]
        is_possible = peaks <= limit
        possible = np.where(is_possible, kept, none)
        start = int(possible.argmin())
        source[end], least[end] = start, possible[start]
        peak[end] = max(peak[start], int(peaks[start]))
        higher = min(higher, int(np.where(is_possible, none, peaks).min()))
    if least[-1] >= none:
        return None, higher
    starts = [source[-1]]
    while starts[0]:
        starts.insert(0, source[starts[0]])
    return starts, peak[-1]


class _State(NamedTuple):
    kept: int
    flops: float
    peak: int
    before: Optional["_State"]
    start: int
    whole: bool  # fmt: skip


def fewest_flops(
    chain: Chain, candidates: Sequence[int], budget: int, last_is_whole: bool = True
) -> Optional[Division]:
    """The division that recomputes the fewest FLOPs with a peak of at most `budget` bytes; None if there is none.

    Args:
      chain: the ops.
      candidates: positions before which the chain may be cut.
      budget: bytes.
      last_is_whole: the last segment is not recomputed, as its own backward pass follows at once.
    """
    table = _Table(chain, candidates)
    count = len(table.points)
    fronts: List[List[_State]] = [[_State(0, 0.0, 0, None, -1, True)]]
    for end in range(1, count):
        states = []
        for start in range(end):
            kept, own = int(table.kept[start, end]), int(table.own[start, end])
            for state in fronts[start]:
                peak = state.kept + kept + own
                if peak > budget:
                    break  # the front is sorted by bytes kept
                peak = max(peak, state.peak)
                states.append(_State(state.kept + kept + own, state.flops, peak, state, start, True))
                if not (last_is_whole and end == count - 1):
                    flops = state.flops + float(table.flops[start, end])
                    states.append(_State(state.kept + kept, flops, peak, state, start, False))
        fronts.append(_pareto(states))
    if not fronts[-1]:
        return None
    best = min(fronts[-1], key=lambda state: (state.flops, state.peak))
    return _division(table, best)


def _pareto(states: List[_State]) -> List[_State]:
    """The states that no other state beats in both bytes kept and FLOPs, sorted by bytes."""
    front: List[_State] = []
    for state in sorted(states, key=lambda one: (one.kept, one.flops, one.peak)):
        if not front or state.flops < front[-1].flops:
            front.append(state)
    if len(front) > _LONGEST_FRONT:
        step = (len(front) - 1) / (_LONGEST_FRONT - 1)
        front = [front[round(at * step)] for at in range(_LONGEST_FRONT)]
    return front


def _division(table: _Table, best: _State) -> Division:
    segments: List[_State] = []
    state = best
    while state.before is not None:
        segments.insert(0, state)
        state = state.before
    # Neighbouring segments that are kept become one.
    cuts, whole = [], []
    number = 0
    for at, segment in enumerate(segments):
        if at and not (segment.whole and segments[at - 1].whole):
            cuts.append(table.points[segment.start])
            number += 1
        if segment.whole and number not in whole:
            whole.append(number)
    return Division(tuple(cuts), tuple(whole), best.peak, best.flops)
