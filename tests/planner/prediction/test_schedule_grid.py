"""The schedule of a simulated pipeline as a grid: it is that of the planner's own schedules, and shows what waits."""

import pytest

from epl.parallel.plan import schedule_simulator
from epl.parallel.plan.schedule_generators import generate
from epl.planner.prediction.prediction import predict
from epl.planner.prediction.schedule_grid import draw_grid, find_grid
from epl.planner.report import pictures
from tests.planner.prediction import hand_made


def _grid(micro_batches=4, layers=None, begins=(2,), rows=8, **settings):
    costs = hand_made.HandCosts(layers or [hand_made.Layer(weight=8, output=1.0, kept=True)] * 4)
    devices = len(begins) + 1
    strategy = hand_made.strategy(
        costs, devices=devices, pipeline__num_micro_batch=micro_batches, **hand_made.stages(costs, *begins), **settings
    )
    machine = hand_made.machine([["a"] * devices], bandwidth=hand_made.INSTANT)
    return find_grid(predict(strategy, costs, machine, rows))


@pytest.mark.parametrize("name", ["PreferForward", "PreferBackward", "PreferBackwardOptimizer"])
def test_equal_stages_have_the_grid_of_their_schedule(name):
    lines = draw_grid(_grid(pipeline__strategy=name))
    expected = schedule_simulator.draw(generate(name, range(2), 4)).splitlines()
    assert lines == [line.replace("device", "stage") for line in expected]


def test_a_slow_stage_has_wide_passes_and_the_other_waits():
    layers = [hand_made.Layer(weight=8, output=1.0)] * 2 + [hand_made.Layer(3.0, 6.0, weight=8, output=1.0)] * 2
    assert draw_grid(_grid(2, layers)) == [
        "stage 0 |F0|F1|..|..|..|..|..|..|..|..|B0:::|..|..|..|..|..|..|..|B1:::|",
        "stage 1 |..|F0::::::|B0:::::::::::::::|F1::::::|B1:::::::::::::::|..|..|",
    ]


def test_recomputation_belongs_to_the_backward_pass():
    layers = [hand_made.Layer(weight=8, output=1.0, kept=True)] * 8
    grid = _grid(2, layers, (4,), gradient_checkpoint__type="auto")
    plain = _grid(2, layers, (4,))
    spans = [{one.text(): one.end - one.start for one in found.passes if one.stage == 0} for found in (grid, plain)]
    assert spans[0]["F0"] == spans[1]["F0"] and spans[0]["B1"] > spans[1]["B1"]


def test_no_grid_without_stages_or_with_too_many_passes_and_long_lines_are_cut():
    assert _grid(begins=()) is None
    assert _grid(1001, rows=1001) is None
    long = _grid(200, rows=200)
    assert all(len(line) == 120 and line.endswith("...") for line in draw_grid(long))
    assert "F199" in pictures.schedule(long)
