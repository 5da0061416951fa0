"""How long code takes, on a machine of any speed: its CPU time beside that of a fixed piece of Python.

What other processes do to this one's CPU time, they do to both. Take the lowest of some rounds of each, in turn. As in
timeit, no garbage is collected meanwhile: that takes as long as the process has objects.
"""

import gc
import time
from typing import Any, Callable, Dict, List

# CPU seconds of the yardstick on a quiet core of the machine that EPL is developed on.
_QUIET = 0.037


def cpu_seconds(work: Callable[[], Any], rounds: int = 3) -> float:
    """The CPU time of a piece of work, as it would be on the quiet core: the ratio to the yardstick tells it."""
    taken, yard = [], []
    for _ in range(rounds):
        yard.append(_timed(_yardstick))
        taken.append(_timed(work))
    return _QUIET * min(taken) / min(yard)


def quiet_seconds(rounds: int = 5) -> float:
    """CPU seconds on the quiet core for each CPU second here and now: of work that cannot be run several times."""
    return _QUIET / min(_timed(_yardstick) for _ in range(rounds))


def _timed(work: Callable[[], Any]) -> float:
    gc.collect()
    gc.disable()
    try:
        begin = time.process_time()
        work()
        return time.process_time() - begin
    finally:
        gc.enable()


def _yardstick() -> None:
    table: Dict[Any, List[int]] = {}
    for number in range(60000):
        table.setdefault((number % 997, f"op{number % 101}"), []).append(number)
    sorted(table.values(), key=len)
