"""Devices that share cores: together they are as fast as one, and workers have equal parts."""

import pytest

from epl.planner.prediction.cores import cores_of_job
from epl.planner.prediction.prediction import predict
from tests.planner.prediction.hand_made import INSTANT, HandCosts, Layer, device, machine, stages, strategy

LAYERS = [Layer(weight=8, output=1.0)] * 2


def step(shared_by, workers, devices, nodes=(4,), **settings):
    """4 rows of 2 layers, whose work is 24 s on one device."""
    costs = HandCosts(LAYERS)
    kind = device()._replace(shared_by=shared_by)
    where = machine([["a"] * count for count in nodes], [kind], bandwidth=INSTANT, network=(0.0, INSTANT))
    return predict(strategy(costs, workers=workers, devices=devices, **settings), costs, where, 4)


@pytest.mark.parametrize(
    "shared_by, workers, devices, nodes, seconds",
    [
        (1, 1, 1, [4], 24.0),
        (1, 1, 4, [4], 6.0),
        (0, 1, 1, [4], 24.0),
        (0, 1, 2, [4], 24.0),
        (0, 1, 4, [4], 24.0),
        (0, 2, 1, [4], 24.0),
        (0, 2, 2, [4], 24.0),
        (0, 2, 2, [2, 2], 12.0),  # a computer for each worker
        (2, 1, 4, [4], 12.0),
        (2, 4, 1, [4], 12.0),
    ],
)
def test_devices_on_the_same_cores_are_as_fast_as_one(shared_by, workers, devices, nodes, seconds):
    found = step(shared_by, workers, devices, nodes)
    assert found.seconds == pytest.approx(seconds) and found.bound.compute == pytest.approx(seconds)
    assert found.bound.peak == 0.0  # the kind has no rate of matmuls


def test_a_stage_that_waits_leaves_its_cores_to_the_others_of_its_worker():
    settings = {**stages(HandCosts(LAYERS), 1), "pipeline__num_micro_batch": 2}
    with_own = step(1, 1, 2, **settings).seconds
    assert with_own == pytest.approx(18.0)  # a bubble of a third
    found = step(0, 1, 2, **settings)
    assert found.seconds == found.bound.seconds == pytest.approx(24.0)  # all of the time all cores compute
    assert step(0, 2, 1, **settings).seconds == pytest.approx(2 * with_own)  # each worker keeps its half


def test_the_assumption_is_told():
    def told(shared_by, workers, devices):
        return " ".join(step(shared_by, workers, devices).assumptions)

    assert "cores of its own" not in told(0, 1, 2) + told(1, 1, 1)
    assert "share cores" in told(0, 1, 2) and "share cores" not in told(1, 1, 2) + told(0, 1, 1) + told(0, 2, 1)
    assert "equal parts of its cores" in told(0, 2, 1) and "equal parts of its cores" not in told(0, 1, 2)


def test_kinds_of_devices_that_share_the_cores_of_a_node():
    kinds = [device()._replace(name=name, shared_by=0) for name in ("a", "b")]
    costs = HandCosts(LAYERS)
    found = predict(strategy(costs, workers=1, devices=2), costs, machine([["a", "b"]], kinds, bandwidth=INSTANT), 4)
    assert found.seconds == pytest.approx(24.0)


@pytest.mark.parametrize("shared_by", [0, 1])
def test_transfers_are_counted_once_for_all_classes(shared_by):
    settings = {**stages(HandCosts(LAYERS), 1), "pipeline__num_micro_batch": 2}
    found = {one.decision: one.times for one in step(shared_by, 2, 2, **settings).traffic if "point" in one.collective}
    assert found == {"stage 0 to 1": 2, "stage 1 to 0": 2}


def test_a_device_with_its_node_to_itself_shares_nothing():
    where = machine([["a"]] * 3, [device()._replace(shared_by=0)], bandwidth=INSTANT, network=(0.0, INSTANT))
    assert cores_of_job(where, 3, 1) == [None] * 3
