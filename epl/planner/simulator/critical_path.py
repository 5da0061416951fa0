"""What makes a step as long as it is: the ops of a run that follow each other without a gap, from its begin to its end.

    device 0   | F0 |       | B0 |          F0, the transfer, F1, B1, the other transfer, B0: to make any of these
    link            | |   | |               shorter makes the step shorter, until another path is the longest
    device 1          |F1 B1|

The engine records the cause of each start; here the path is followed back from the op that ends last.
"""

from typing import List, NamedTuple, Sequence

from epl.planner.simulator.engine import SimulatedRun
from epl.planner.simulator.program import SimulatedOp, SimulatedProgram


class StartReason:
    """Why an op started when the op before it on the path ended."""

    BEGIN = "begin"  # of the step: there is no op before it
    INPUT = "input"  # it takes an output of that op
    AFTER = "after"  # it waits for that op, by `after`
    RANK = "rank"  # another rank of its collective waited for that op
    POOL = "pool"  # a pool that it, or its collective, needs was busy with that op


class PathStep(NamedTuple):
    """An op of a critical path.

    Attributes:
      op: its number.
      reason: why it started then, a constant of StartReason.
      rank: the rank of its collective that waited, if the reason is RANK; -1 for other reasons.
    """

    op: int
    reason: str
    rank: int


def critical_path(program: SimulatedProgram, run: SimulatedRun) -> List[PathStep]:
    """The critical path of a run, from the first op to the last.

    The times of its ops add up to that of the step. Of several ops that end last it leads to the one with the lowest
    number.

    Args:
      program: the program.
      run: what `simulate` returned for it.
    """
    ranks_of = {rank: ranks for ranks in program.collectives for rank in ranks}
    path = []
    op = run.ends.index(run.seconds) if run.ends else -1
    while op >= 0:
        path.append(_step(program, op, run.causes[op], ranks_of.get(op, ())))
        op = run.causes[op]
    return path[::-1]


def _step(program: SimulatedProgram, number: int, cause: int, ranks: Sequence[int]) -> PathStep:
    if cause < 0:
        return PathStep(number, StartReason.BEGIN, -1)
    op = program.ops[number]
    if _takes(op, cause):
        return PathStep(number, StartReason.INPUT, -1)
    if cause in op.after:
        return PathStep(number, StartReason.AFTER, -1)
    for rank in ranks:
        if _takes(program.ops[rank], cause) or cause in program.ops[rank].after:
            return PathStep(number, StartReason.RANK, rank)
    return PathStep(number, StartReason.POOL, -1)


def _takes(op: SimulatedOp, producer: int) -> bool:
    return any(source == producer for source, _ in op.inputs)
