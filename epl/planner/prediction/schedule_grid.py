"""The schedule of a simulated pipeline as a grid: a row for each stage, a slot for each pass, time to the right.

    stage 0 |F0|F1|..|..|B0:::|..|B1:::|
    stage 1 |..|F0|B0:::|F1|B1:::|..|..|

A slot is as long as the shortest pass, unless that is much shorter than others. Passes are placed where they begin and
end in the simulation, so that unequal stages and slow links show.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

from epl.parallel.plan.schedule import BACKWARD, FORWARD
from epl.planner.prediction.prediction import Prediction
from epl.planner.prediction.program_builder import LoweredKind

_WIDTH = 120  # columns of the text
_SLOTS_OF_PASS = 8  # at most, on average
_MOST_PASSES = 4000  # more than a person looks at
_KINDS = {LoweredKind.FORWARD: FORWARD, LoweredKind.BACKWARD: BACKWARD, LoweredKind.RECOMPUTE: BACKWARD}


class GridPass(NamedTuple):
    """A pass of a stage over a micro batch.

    Attributes:
      stage, micro_batch: their numbers.
      kind: "F" or "B".
      start, end: in seconds from the begin of the step; a backward pass begins with what it recomputes.
    """

    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float

    def text(self) -> str:
        """Kind and micro batch, such as "F0"."""
        return f"{self.kind}{self.micro_batch}"


class ScheduleGrid(NamedTuple):
    """The passes of one replica of a pipeline.

    Attributes:
      stages: how many.
      seconds: of the step.
      passes: in the order of stages, and of time.
    """

    stages: int
    seconds: float
    passes: Tuple[GridPass, ...]

    @property
    def slot(self) -> float:
        """Seconds of a slot; 0 if passes take no time."""
        shortest = min(one.end - one.start for one in self.passes)
        return max(shortest, self.seconds * self.stages / (_SLOTS_OF_PASS * len(self.passes)))


def find_grid(prediction: Prediction) -> Optional[ScheduleGrid]:
    """The grid of the first class of ranks; None without a pipeline, or if it has too many passes to be looked at."""
    stages = 1 + max(one.stage for one in prediction.devices)
    if stages == 1:
        return None
    spans: Dict[Tuple[int, str, int], Tuple[float, float]] = {}
    run = prediction.run
    for number, (op, told) in enumerate(zip(prediction.lowered.program.ops, prediction.lowered.ops)):
        if op.device < stages and told.kind in _KINDS and told.micro_batch >= 0:
            key = op.device, _KINDS[told.kind], told.micro_batch
            start, end = spans.get(key, (run.starts[number], run.ends[number]))
            spans[key] = min(start, run.starts[number]), max(end, run.ends[number])
    if len(spans) > _MOST_PASSES:
        return None
    passes = [GridPass(*key, start, end) for key, (start, end) in spans.items()]
    passes.sort(key=lambda one: (one.stage, one.start))
    return ScheduleGrid(stages, prediction.seconds, tuple(passes))


def draw_grid(grid: ScheduleGrid) -> List[str]:
    """The grid in lines for a person: the first columns. A pass has a slot at least."""
    slot = grid.slot or 1.0
    slots = max(1, round(grid.seconds / slot))
    width = max(len(one.text()) for one in grid.passes)
    lines = []
    for stage in range(grid.stages):
        cells, now = [], 0
        for one in [found for found in grid.passes if found.stage == stage]:
            start = max(now, round(one.start / slot))
            end = max(start + 1, round(one.end / slot))
            cells += ["." * width] * (start - now)
            cells.append(one.text().ljust(width).ljust((width + 1) * (end - start) - 1, ":"))
            now = end
        cells += ["." * width] * (slots - now)
        line = f"stage {stage} |{'|'.join(cells)}|"
        lines.append(line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "...")
    return lines
