"""How long each pool of a run is busy: devices, whose idle time is the bubble, and links, which may limit a step."""

from typing import List, Tuple

from epl.planner.simulator.engine import SimulatedRun
from epl.planner.simulator.program import SimulatedProgram


def busy(program: SimulatedProgram, run: SimulatedRun) -> List[float]:
    """Seconds of each pool in which at least one of its threads runs an op.

    A collective counts for the pools that its ranks name. A rank that names none holds no thread, and counts for none.

    Args:
      program: the program.
      run: what `simulate` returned for it.
    """
    ranks = {rank for ranks in program.collectives for rank in ranks}
    intervals: List[List[Tuple[float, float]]] = [[] for _ in program.threads]
    for number, op in enumerate(program.ops):
        if op.pool >= 0:
            intervals[op.pool].append((run.starts[number], run.ends[number]))
        elif number not in ranks:
            intervals[program.pools[op.device]].append((run.starts[number], run.ends[number]))
    return [_covered(one) for one in intervals]


def _covered(intervals: List[Tuple[float, float]]) -> float:
    """The length of the time that lies in at least one interval."""
    length = until = 0.0
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, until))
        until = max(until, end)
    return length
