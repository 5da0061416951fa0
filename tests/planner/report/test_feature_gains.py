"""What each feature of a plan buys: the plan without it, simulated."""

import pytest

import epl
from epl.env import Env
from epl.planner.prediction import prediction
from epl.planner.prediction.prediction import predict
from epl.planner.report.feature_gains import FeatureGain, describe_gains, find_gains, peak_of, rows_of_gains
from epl.planner.search.planned_model import PlannedModel
from tests.planner.prediction import hand_made

COSTS = hand_made.HandCosts([hand_made.Layer(weight=1 << 20, output=1000.0, kept=True)] * 4, slots={"m": 1.0})


def _gains(strategy, memory=None, most_seconds=60.0):
    machine = hand_made.machine(devices=[hand_made.device(bandwidth=1e9, memory=memory)], bandwidth=1e6)
    model = PlannedModel(strategy, COSTS, machine, 8, None, ())
    step = predict(strategy, COSTS, machine, 8)
    found = {one.feature: one for one in find_gains(strategy, step, model, most_seconds)}
    return step, found, machine


def test_zero_and_checkpoint_buy_memory(monkeypatch):
    monkeypatch.setattr(prediction, "NCCL_PACK_BYTES", 0)  # the devices are smaller than what communicators keep
    strategy = hand_made.strategy(COSTS, devices=2, zero__level="v1", gradient_checkpoint__type="auto")
    step, found, machine = _gains(strategy, memory=9 << 20)
    without = predict(hand_made.strategy(COSTS, devices=2, gradient_checkpoint__type="auto"), COSTS, machine, 8)
    zero = found["ZeRO v1"]
    assert (zero.seconds, zero.peak) == (without.seconds, peak_of(without)) and zero.peak > peak_of(step)
    assert zero.lacks == zero.peak - (9 << 20)
    assert found["gradient checkpoint"].peak >= peak_of(step)
    assert set(found) == {"ZeRO v1", "gradient checkpoint", "gradients overlap backward"}


def test_overlap_buys_time():
    step, found, _ = _gains(hand_made.strategy(COSTS, devices=2))
    assert found["gradients overlap backward"].seconds > step.seconds
    (line,) = [one for one in describe_gains(list(found.values()), step) if one.startswith("gradients overlap")]
    assert "(+" in line and "in one bucket" in line and "gains time" in line


@pytest.mark.parametrize(
    "seconds, peak, words",
    [
        (12.0, 100, "gains time"),
        (8.0, 250, "gains memory, costs time"),
        (12.0, 90, "gains time, costs memory"),
        (10.0, 100, "no difference"),
        (None, None, ""),
    ],
)
def test_what_a_feature_gains_and_costs_is_told_in_words(seconds, peak, words):
    step = predict(hand_made.strategy(COSTS), COSTS, hand_made.machine([["a"]]), 1)
    (device,) = step.devices
    step = step._replace(seconds=10.0, devices=(device._replace(memory=device.memory._replace(peak=100)),))
    gain = FeatureGain("ZeRO v1", "without", seconds, peak, 0, "refused")
    assert rows_of_gains([gain], step)[2][-1] == words


def test_one_f_one_b_buys_memory_and_a_pipeline_is_compared_with_data_parallelism():
    strategy = hand_made.strategy(
        COSTS, devices=2, pipeline__num_micro_batch=4, pipeline__strategy="PreferBackward",
        **hand_made.stages(COSTS, 2),
    )  # fmt: skip
    step, found, machine = _gains(strategy)
    assert set(found) == {"pipeline of 2 stages", "4 micro batches", "schedule preferbackward"}
    assert found["schedule preferbackward"].peak > peak_of(step)
    assert found["4 micro batches"].seconds > step.seconds
    whole = predict(hand_made.strategy(COSTS, devices=2), COSTS, machine, 8)
    assert found["pipeline of 2 stages"].seconds == whole.seconds


def test_a_split_is_compared_with_data_parallelism():
    blocks = {"blocks": [hand_made.split(2)], "block_of": [0] * len(COSTS.ops)}
    step, found, machine = _gains(hand_made.strategy(COSTS, devices=2, **blocks))
    without = predict(hand_made.strategy(COSTS, devices=2), COSTS, machine, 8)
    assert found["epl.split(2)"].seconds == without.seconds


def test_what_cannot_be_simulated_or_takes_too_long_says_so():
    strategy = hand_made.strategy(COSTS, devices=2, zero__level="v1", auto__balance="5:3")
    _, found, _ = _gains(strategy, most_seconds=-1.0)
    assert all("took" in one.refusal and one.seconds is None for one in found.values()) and len(found) == 3
    # 8 rows are cut in 4 for one micro batch of a replica, and in no 3.
    stages = hand_made.stages(COSTS, 1, 2)
    machine = hand_made.machine([["a"] * 3], bandwidth=1e6)
    strategy = hand_made.strategy(COSTS, devices=3, **stages)
    model = PlannedModel(strategy, COSTS, machine, 2, None, ())
    step = predict(strategy, COSTS, machine, 2)
    (gain,) = find_gains(strategy, step, model)
    assert gain.seconds is None and "too few" in gain.refusal
    assert "not simulated" in describe_gains([gain], step)[2]


@pytest.fixture
def half():
    env = Env.get()
    before = env.config
    env.config = epl.Config({"communication.fp16": True})
    yield
    env.config = before


def test_float16_buys_time(half):
    step, found, _ = _gains(hand_made.strategy(COSTS, devices=2))
    assert found["gradients in float16"].seconds > step.seconds


def test_offload_buys_memory():
    step, found, machine = _gains(hand_made.strategy(COSTS, devices=2, offload__level="v0"))
    without = predict(hand_made.strategy(COSTS, devices=2), COSTS, machine, 8)
    assert found["offload v0"].peak == peak_of(without) > peak_of(step)
