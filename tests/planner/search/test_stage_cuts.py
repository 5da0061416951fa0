"""Cuts of a chain by dynamic programming: against all cuts, against schedules, and how long it takes."""

import itertools

import numpy as np
import pytest

from epl.parallel.plan import schedule_simulator
from epl.parallel.plan.schedule_generators import generate, in_flight_bound
from epl.planner.search.stage_cuts import StageTimes, best_cuts, step_seconds
from tests.yardstick import cpu_seconds


def a_chain(random, units, num_stages, fits=1.0, transfers=1.0):
    """Random stages over all points of a chain; `fits`: the share of possible stages that have memory."""
    points = np.arange(units + 1)
    bounds = [points[:1]] + [points[1:-1]] * (num_stages - 1) + [points[-1:]]
    forward = random.uniform(0.1, 1, units)
    backward = forward * random.uniform(1.5, 2.5, units)
    cuts = random.uniform(0, 0.3, units + 1) * transfers
    stages = []
    for stage, (starts, ends) in enumerate(zip(bounds, bounds[1:])):
        speed = random.choice([0.5, 1.0, 1.0, 2.0])
        inside = [np.concatenate([[0], np.cumsum(each)]) / speed for each in (forward, backward)]
        seconds = [each[ends][None, :] - each[starts][:, None] for each in inside]
        is_stage = (ends[None, :] > starts[:, None]) & (random.uniform(size=seconds[0].shape) <= fits)
        is_last = stage == num_stages - 1
        stages.append(
            StageTimes(
                np.where(is_stage, seconds[0], np.inf),
                seconds[1],
                random.uniform(0, 1, seconds[0].shape) * (random.uniform() < 0.5),
                random.uniform(0, 0.2, seconds[0].shape) * transfers,
                np.zeros(1) if is_last else cuts[ends],
                np.zeros(1) if is_last else 0.7 * cuts[ends],
                num_stages - stage,
            )
        )
    return stages


def chosen(stages, points):
    """(forward, backward, rest, once, sent, returned) of each stage."""
    ends = [*points[1:], 0]
    return [
        (one.forward[a, b], one.backward[a, b], one.rest[a, b], one.once[a, b], one.sent[b], one.returned[b])
        for one, a, b in zip(stages, points, ends)
    ]


def on_paper(stages, points, micro_batches):
    """The seconds of a step, as the module says."""
    each = chosen(stages, points)
    if any(np.isinf(one[0]) for one in each):
        return float("inf")
    through = [sum(f + b + s + r for f, b, _, _, s, r in each[stage:]) for stage in range(len(each))]
    period = max(max(f + b, s, r) for f, b, _, _, s, r in each)
    for stage, one in enumerate(stages):
        if one.in_flight < micro_batches:
            period = max(period, through[stage] / one.in_flight)
            if stage + 1 < len(each):
                pair = [f + b for f, b, _, _, _, _ in each[stage : stage + 2]]
                period = max(period, (sum(pair) + sum(each[stage][4:])) / 2)
    ends = []
    for stage in range(len(each)):
        before = sum(f + s for f, _, _, _, s, _ in each[:stage]) + sum(one[3] for one in each[: stage + 1])
        ends.append(before + through[stage] + each[stage][2])
    return (micro_batches - 1) * period + max(ends)


def all_points(stages, units):
    for cut in itertools.combinations(range(units - 1), len(stages) - 1):
        yield (0, *cut)


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_no_cuts_are_better(first):
    for seed in range(first, first + 20):
        _compare_with_all_cuts(seed)


def _compare_with_all_cuts(seed):
    random = np.random.RandomState(seed)
    units, num_stages = random.randint(4, 11), random.randint(2, 5)
    transfers = random.choice([0.0, 1.0, 5.0])
    stages = a_chain(random, units, num_stages, random.choice([1.0, 0.8, 0.5]), transfers)
    micro_batches = int(random.choice([1, 2, 4, 8, 16]))
    least = min(on_paper(stages, points, micro_batches) for points in all_points(stages, units))
    found = best_cuts(stages, micro_batches)
    if found is None:
        assert np.isinf(least)
    else:
        assert found.seconds == pytest.approx(least, rel=1e-8)
        assert on_paper(stages, found.points, micro_batches) == pytest.approx(found.seconds, rel=1e-12)
        assert step_seconds(stages, micro_batches, found.points) == pytest.approx(found.seconds, rel=1e-12)


@pytest.mark.parametrize("transfers", [0.0, 1.0])
def test_a_step_takes_about_as_long_as_its_schedule(transfers):
    ratios = []
    for seed in range(60):
        random = np.random.RandomState(seed)
        num_stages, micro_batches = random.randint(2, 5), int(random.choice([1, 4, 8, 16]))
        stages = a_chain(random, 8, num_stages, transfers=0.0)
        found = best_cuts(stages, micro_batches)
        transfer = 0.1 * transfers
        bare = [one._replace(rest=0 * one.rest, once=0 * one.once) for one in stages]
        stages = [one._replace(sent=one.sent + transfer, returned=one.returned + transfer) for one in bare[:-1]] + bare[
            -1:
        ]
        each = chosen(stages, found.points)
        ran = schedule_simulator.simulate(
            generate("PreferBackward", range(num_stages), micro_batches),
            [one[0] for one in each], [one[1] for one in each], transfer,
        )  # fmt: skip
        assert tuple(one.in_flight for one in stages) == in_flight_bound(num_stages, 0)
        ratios.append(ran.total_s / step_seconds(stages, micro_batches, found.points))
    print(f"schedule / step: {min(ratios):.3f} to {max(ratios):.3f}")
    assert 0.88 <= min(ratios) and max(ratios) <= 1.02 and abs(np.median(ratios) - 1) <= 0.02


def test_nothing_fits():
    stages = a_chain(np.random.RandomState(0), 6, 3)
    assert best_cuts([stages[0], stages[1]._replace(forward=stages[1].forward + np.inf), stages[2]], 4) is None


def test_many_points_and_stages():
    """As many as a search asks for, in random times: by far more different ones than those of a model."""
    stages = a_chain(np.random.RandomState(0), 128, 16)
    found = best_cuts(stages, 32)
    taken = cpu_seconds(lambda: best_cuts(stages, 32), rounds=1)
    print(f"{taken:.2f} s")
    assert found.seconds == pytest.approx(on_paper(stages, found.points, 32)) and taken <= 5.0
