"""Times of work on a GPU: by events of the GPU, the median of several, after a warm-up. Scripts beside it import it."""

import statistics
from typing import Any, Callable, Sequence

import torch

_RUNS = 15
_SECONDS = 0.02  # one measurement takes at least so long: an event counts microseconds


def seconds(calls: Sequence[Callable[[], Any]]) -> float:
    """How long one call takes.

    Args:
      calls: they do the same, each on its own data; called in turn.
    """
    for call in calls:
        call()
    repeats = max(1, round(_SECONDS / max(_once(calls, len(calls)), 1e-7)))
    return statistics.median(_once(calls, repeats) for _ in range(_RUNS))


def _once(calls: Sequence[Callable[[], Any]], repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for number in range(repeats):
        calls[number % len(calls)]()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats
