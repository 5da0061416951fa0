"""Cuts a chain of costs into consecutive stages. Pure arithmetic; `partition.py` makes the chain."""

from collections import deque
from typing import Deque, List, NamedTuple, Optional, Sequence, Tuple

# Stages whose times differ by less than this are equally good: the cost model is not more exact.
BALANCE_SLACK = 0.05

_RESOLUTION = 1e-9  # of the time of the longest stage


class Cuts(NamedTuple):
    """Where a chain is cut.

    Attributes:
      starts: the first element of each stage; the first is 0.
      longest: time of the longest stage.
      cut: sum of the boundaries that were chosen.
    """

    starts: Tuple[int, ...]
    longest: float
    cut: int


def cut_chain(
    times: Sequence[float], boundaries: Sequence[int], num_stages: int, slack: float = BALANCE_SLACK
) -> Optional[Cuts]:
    """The best cuts of a chain: first the longest stage as short, then the boundaries as small as possible.

        times        3   1   2 | 2   2 | 4
        boundaries     9   9   1   9   1

    Exact: the shortest possible longest stage by dynamic programming (the linear partition problem), among the cuts
    within `slack` of it those with the smallest sum of boundaries, of those the ones with the shortest longest stage.

    Args:
      times: the time of each element, positive.
      boundaries: `boundaries[i]` is the cost of a cut before element i + 1; one fewer than `times`.
      num_stages: the number of stages.
      slack: how much longer than necessary, as a fraction, the longest stage may be.

    Returns:
      The cuts, or None when there are fewer elements than stages.
    """
    if len(times) < num_stages:
        return None
    ends = [0.0]
    for time in times:
        ends.append(ends[-1] + time)
    low = _shortest_longest(ends, num_stages)
    best = _least_cut(ends, boundaries, num_stages, low * (1 + slack))
    assert best is not None  # the cuts of `low` are among them
    while best.longest - low > _RESOLUTION * best.longest:
        middle = (low + best.longest) / 2
        shorter = _least_cut(ends, boundaries, num_stages, middle)
        if shorter is None or shorter.cut > best.cut:
            low = middle
        else:
            best = shorter
    return best


def _shortest_longest(ends: Sequence[float], num_stages: int) -> float:
    """The time of the longest stage, at best."""
    best = list(ends)  # of the first `end` elements in one stage
    for stage in range(1, num_stages):
        following = list(ends)
        for end in range(stage + 1, len(ends)):
            following[end] = _last_stage(ends, best, stage, end)
        best = following
    return best[-1]


def _last_stage(ends: Sequence[float], best: Sequence[float], first: int, end: int) -> float:
    """The least of max(best[start], time of start to end) over start from `first`.

    The former does not fall with start, the latter does: the least is where they cross.
    """
    low, high = first, end - 1
    while low < high:
        middle = (low + high) // 2
        if best[middle] >= ends[end] - ends[middle]:
            high = middle
        else:
            low = middle + 1
    return min(max(best[start], ends[end] - ends[start]) for start in (low - 1, low) if start >= first)


def _least_cut(ends: Sequence[float], boundaries: Sequence[int], num_stages: int, limit: float) -> Optional[Cuts]:
    """The cuts with the smallest sum of boundaries and no stage longer than `limit`: a sliding minimum per stage."""
    size = len(ends)
    least: List[Optional[int]] = [0] + [None] * (size - 1)  # sum of the first `end` elements in `stage` stages
    sources: List[List[int]] = []
    before = [0] + list(boundaries) + [0]  # the cost of a cut before each element
    for stage in range(num_stages):
        # The sum of boundaries before a stage that starts there.
        entry = [None if value is None else value + cut for value, cut in zip(least, before)]
        least = [None] * size
        source = [-1] * size
        window: Deque[int] = deque()  # starts that may be best, in order, their entries rising
        for end in range(stage + 1, size):
            added = entry[end - 1]
            if added is not None:
                while window and _of(entry, window[-1]) >= added:
                    window.pop()
                window.append(end - 1)
            while window and ends[end] - ends[window[0]] > limit:
                window.popleft()
            if window:
                source[end], least[end] = window[0], entry[window[0]]
        sources.append(source)
    total = least[-1]
    return None if total is None else _trace(ends, sources, total)


def _of(entry: Sequence[Optional[int]], start: int) -> int:
    value = entry[start]
    assert value is not None  # only starts with a value are in the window
    return value


def _trace(ends: Sequence[float], sources: Sequence[Sequence[int]], cut: int) -> Cuts:
    starts: List[int] = []
    longest = 0.0
    end = len(ends) - 1
    for source in reversed(sources):
        start = source[end]
        longest = max(longest, ends[end] - ends[start])
        starts.insert(0, start)
        end = start
    return Cuts(tuple(starts), longest, cut)
