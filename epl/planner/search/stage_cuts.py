"""The cuts of a chain into the stages of a pipeline with which a step takes least time, by dynamic programming.

    point          0         1         2         3      between two neighbours the chain may be cut
    stage 0        [ forward, backward ]                on its own devices, with their speed
    transfer                 |                          over the link to the devices of stage 1
    stage 1                  [ forward,    backward ]

    a step      (micro batches - 1) x period            the slowest stage or transfer; or what 1F1B waits for, below
                + the first micro batch to the end      forward passes and transfers
                + the last one back                     backward passes and transfers; each stage ends with what is
                                                        left to do then, such as its all-reduce, while others go on

That is the model of DAPPLE (Fan et al., PPoPP 2021, section 4) with the period of PipeDream (Narayanan et al., SOSP
2019, section 3.1), in which stages have devices of their own. What does not fit the memory of a stage has no time.

A stage of 1F1B begins a micro batch when it has done another one, which has been to the end and back: with w of them in
flight the period is at least that way / w. Two neighbours that pass micro batches to and fro have, in two periods, the
work of both and both transfers to do, one after the other. So transfers cost time even where links are idle.

Four numbers say how good cuts of the stages from some stage on to the last are. All cuts are kept that no others equal
or beat in all four, from the last stage to the first. Those that cannot become better than the best cuts known so far
are left out; lower bounds for the stages before them say which.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

# How much longer than the shortest period is allowed where first cuts are looked for.
_FIRST_PERIODS = (1.0, 1.01, 1.03, 1.1, 1.3, 2.0)
_ROUNDING = 1e-9  # cuts that are better by less than this part of a step are not better
_MOST_KEPT = 2000  # for each point; far more than tests have seen, so that no model takes hours


class StageTimes(NamedTuple):
    """What a stage takes, by the point where it starts and the point where it ends; the points may differ by stage.

    Attributes:
      forward, backward: seconds of a micro batch, [starts, ends]; infinite where the stage would not fit its devices.
      rest: seconds after its last backward pass, [starts, ends].
      once: seconds once in a step, before its first micro batch is sent on, [starts, ends].
      sent, returned: seconds of a transfer to the next stage, and of that of the gradients back, [ends].
      in_flight: micro batches between their forward and the end of their backward pass here, at most.
    """

    forward: np.ndarray
    backward: np.ndarray
    rest: np.ndarray
    once: np.ndarray
    sent: np.ndarray
    returned: np.ndarray
    in_flight: int


class ChainCuts(NamedTuple):
    """The cuts of a chain.

    Attributes:
      seconds: of a step.
      points: of each stage, the index of the point where it starts among its starts.
    """

    seconds: float
    points: Tuple[int, ...]


class _Ends(NamedTuple):
    """Cuts of all stages from one on, each a column.

    Attributes:
      at: index of the point where the first of them starts.
      period: seconds between two micro batches.
      through: of a micro batch to the end and back.
      end: until all of these stages have done all, if there is one micro batch.
      first: forward and backward pass of the first of them.
      after: the column of the next stage that it goes on with.
    """

    at: np.ndarray
    period: np.ndarray
    through: np.ndarray
    end: np.ndarray
    first: np.ndarray
    after: np.ndarray


_END = _Ends(np.zeros(1, int), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1, int))  # no stages at all


class _Bounds(NamedTuple):
    """Lower bounds for the stages before one, by the point where that starts; infinite if none fit.

    Attributes:
      period, through, ahead: between two micro batches; of one through them and back; of one through them.
    """

    period: np.ndarray
    through: np.ndarray
    ahead: np.ndarray


def best_cuts(stages: Sequence[StageTimes], micro_batches: int) -> Optional[ChainCuts]:
    """The cuts with the shortest step; None if no cuts fit the memory of all stages.

    Args:
      stages: the first starts at one point alone, and the last ends at one; the ends of a stage are the starts of the
        next one.
      micro_batches: of a step.
    """
    with np.errstate(invalid="ignore"):  # infinite x 0: no number, which is below no bound
        best = _first_cuts(stages, micro_batches)
        if best is None:
            return None
        bounds = _bounds(stages)
        kept = [_END]
        for stage, bound in zip(reversed(stages), reversed(bounds[:-1])):
            limit = best.seconds * (1 - _ROUNDING)
            kept.append(_stage_before(stage, kept[-1], bound, micro_batches, limit))
            if not len(kept[-1].at):
                return best
    steps = (micro_batches - 1) * kept[-1].period + kept[-1].end
    column = int(np.argmin(steps))
    seconds = float(steps[column])
    points = []
    for ends in reversed(kept[1:]):
        points.append(int(ends.at[column]))
        column = int(ends.after[column])
    return ChainCuts(seconds, tuple(points))


def step_seconds(stages: Sequence[StageTimes], micro_batches: int, points: Sequence[int]) -> float:
    """The seconds of a step with given cuts.

    Args:
      stages, micro_batches: as for `best_cuts`.
      points: as `ChainCuts.points`.
    """
    found = _END
    nothing = _Bounds(np.zeros(1), np.zeros(1), np.zeros(1))
    with np.errstate(invalid="ignore"):
        for stage, point in zip(reversed(stages), reversed(list(points))):
            only = stage._replace(
                forward=stage.forward[[point]],
                backward=stage.backward[[point]],
                rest=stage.rest[[point]],
                once=stage.once[[point]],
            )
            found = _stage_before(only, found, nothing, micro_batches, np.inf)
            if not len(found.at):
                return float("inf")
            found = found._replace(at=np.asarray([point]))
    return float(((micro_batches - 1) * found.period + found.end)[0])


def _stage_before(stage: StageTimes, following: _Ends, bound: _Bounds, micro_batches: int, limit: float) -> _Ends:
    """The cuts with one more stage before them that may become shorter than a limit and that no other ones beat."""
    at = following.at
    forward, passes = stage.forward[:, at], stage.forward[:, at] + stage.backward[:, at]
    sent, returned = stage.sent[at], stage.returned[at]
    through = passes + sent + returned + following.through
    end = np.maximum(forward + sent + following.end, through + stage.rest[:, at]) + stage.once[:, at]
    period = np.maximum(passes, np.maximum(following.period, np.maximum(sent, returned)))
    if stage.in_flight < micro_batches:
        neighbours = passes + sent + returned + following.first
        period = np.maximum(period, np.maximum(through / stage.in_flight, neighbours / 2))
    least = (micro_batches - 1) * np.maximum(period, bound.period[:, None]) + np.maximum(
        through + bound.through[:, None], end + bound.ahead[:, None]
    )
    starts, columns = np.nonzero(least < limit)
    order = np.lexsort((least[starts, columns], starts))
    starts, columns = starts[order], columns[order]
    values = np.stack([each[starts, columns] for each in (period, through, end, passes)], axis=1)
    chosen = _unbeaten(starts, values)
    period, through, end, first = values[chosen].T
    return _Ends(starts[chosen], period, through, end, first, columns[chosen])


def _unbeaten(starts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The rows that none before with the same start equals or beats; rows with the same start are together."""
    chosen: List[int] = []
    begins = np.flatnonzero(np.diff(starts, prepend=-1))
    for begin, end in zip(begins, [*begins[1:], len(starts)]):
        rows, left = np.arange(begin, end), values[begin:end].T
        kept = 0
        while len(rows) and kept < _MOST_KEPT:
            chosen.append(int(rows[0]))
            kept += 1
            beaten = np.logical_and.reduce([row >= row[0] for row in left])
            beaten[0] = True
            rows, left = rows[~beaten], left[:, ~beaten]
    return np.asarray(chosen, int)


# ---- Bounds, and first cuts.


def _bounds(stages: Sequence[StageTimes]) -> List[_Bounds]:
    """Of the stages before each one, and of all."""
    tables = [
        _least([_passes(stage) + stage.sent + stage.returned for stage in stages], np.add)[0],
        _least([stage.forward + stage.sent for stage in stages], np.add)[0],
    ]
    periods = _least([_period(stage) for stage in stages], np.maximum)[0]
    return [_Bounds(*each) for each in zip(periods, *tables)]


def _passes(stage: StageTimes) -> np.ndarray:
    return stage.forward + stage.backward


def _period(stage: StageTimes) -> np.ndarray:
    return np.maximum(_passes(stage), np.maximum(stage.sent, stage.returned))


def _first_cuts(stages: Sequence[StageTimes], micro_batches: int) -> Optional[ChainCuts]:
    """The best of those that pass a micro batch through as fast as it goes with a period that is about the shortest."""
    periods = [_period(stage) for stage in stages]
    shortest = float(_least(periods, np.maximum)[0][-1][0])
    if not np.isfinite(shortest):
        return None
    found = []
    for factor in _FIRST_PERIODS:
        through = [
            np.where(period <= factor * shortest, _passes(stage) + stage.sent + stage.returned, np.inf)
            for stage, period in zip(stages, periods)
        ]
        points = _traced(_least(through, np.add)[1])
        found.append(ChainCuts(step_seconds(stages, micro_batches, points), points))
    return min(found, key=lambda cuts: cuts.seconds)


def _least(costs: Sequence[np.ndarray], combine: np.ufunc) -> Tuple[List[np.ndarray], List[np.ndarray]]:
    """For each stage and after the last, by point: the least combined cost of all stages before; where the one before
    starts.
    """
    tables, sources = [np.zeros(1)], []
    for cost in costs:
        combined = combine(tables[-1][:, None], cost)
        sources.append(np.argmin(combined, axis=0))
        tables.append(np.min(combined, axis=0))
    return tables, sources


def _traced(sources: Sequence[np.ndarray]) -> Tuple[int, ...]:
    point, points = 0, []
    for source in reversed(sources):
        point = int(source[point])
        points.append(point)
    return tuple(reversed(points))
