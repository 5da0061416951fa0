"""Times of work on a GPU: by events of the GPU, the median of several, after a warm-up."""

import statistics
from typing import Any, Callable, Sequence

import torch

_RUNS = 15
_SECONDS = 0.02  # one measurement takes at least so long: an event counts microseconds


def seconds(work: Sequence[Callable[[], Any]]) -> float:
    """How long one call takes.

    Args:
      work: does the same on data of its own each, so that caches do not hold what it reads; called in turn.
    """
    for call in work:
        call()
    repeats = max(1, round(_SECONDS / max(_once(work, len(work)), 1e-7)))
    return statistics.median(_once(work, repeats) for _ in range(_RUNS))


def _once(work: Sequence[Callable[[], Any]], repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for number in range(repeats):
        work[number % len(work)]()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats
