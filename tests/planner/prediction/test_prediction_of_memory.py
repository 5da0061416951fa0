"""Memory at the worst moment, recomputation and ZeRO, by hand."""

import pathlib

import pytest

from epl.config.config import Config
from epl.env import Env
from epl.planner.machine.collective_algorithms import NCCL_PACK_BYTES
from epl.planner.prediction.prediction import predict, predicted, prepare
from epl.utils.errors import NotAvailableError, PlanError
from tests.planner.prediction.hand_made import HandCosts, Layer, device, machine, stages, strategy

KEPT = [Layer(weight=1000, output=100.0, kept=True)] * 4


def test_replicas_hold_weights_slots_activations_and_gradients():
    costs = HandCosts(KEPT, slots={"m": 1.0, "v": 1.0})
    found = predict(strategy(costs, devices=2), costs, machine(bandwidth=1.0), 4)  # all wait for the first bucket
    memory = found.devices[0].memory
    assert memory.by_role["weights"] == 4000 and memory.by_role["slots"] == 8000
    # The backward pass of the first layer: its output, and the gradient of it; all gradients of weights are there.
    assert memory.by_role["gradients"] == 4000
    assert memory.by_role["activations"] == 200 + 200
    packs = 2 * NCCL_PACK_BYTES  # buckets go over two communicators
    assert memory.by_role["communication"] == packs
    assert memory.peak == sum(memory.by_role.values()) == 16_400 + packs and memory.at.startswith("0B0")
    assert found.fits and memory.lacks == 0 and memory.limit is None


def test_processors_keep_no_memory_for_packs():
    costs = HandCosts(KEPT)
    two = machine([["a"] * 2], [device()._replace(type="CPU")])
    assert "communication" not in predict(strategy(costs, devices=2), costs, two, 4).devices[0].memory.by_role


def test_the_memory_of_packs_is_that_of_the_core():
    core = pathlib.Path(__file__).parents[3] / "csrc" / "comm" / "nccl.cc"
    assert f"kPackBytes = {NCCL_PACK_BYTES >> 20} << 20;" in core.read_text()


def test_what_a_device_lacks_is_told():
    costs = HandCosts(KEPT)
    found = predict(strategy(costs), costs, machine([["a"]], [device(memory=5000)]), 2)
    assert found.devices[0].memory.lacks == found.devices[0].memory.peak - 5000 > 0 and not found.fits


def test_activations_are_freed_as_the_backward_pass_goes():
    costs = HandCosts([Layer(output=100.0, kept=True, weight=1)] * 8)
    memory = predict(strategy(costs), costs, machine([["a"]]), 1).devices[0].memory
    # All eight outputs, and the gradients of the output and of the input of the last.
    assert memory.by_role["activations"] == 1000 and memory.seconds == 8.0


def test_gradients_are_applied_as_they_come():
    costs = HandCosts([Layer(weight=1000)] * 8)
    alone, quick, slow = [
        predict(strategy(costs, devices=devices), costs, machine(bandwidth=bandwidth), 2).devices[0].memory.by_role
        for devices, bandwidth in ((1, 1.0), (2, 1e30), (2, 1.0))
    ]
    assert alone["gradients"] == 1000
    assert quick["gradients"] <= 4000  # two buckets of up to two layers
    assert slow["gradients"] == 8000


def test_what_is_not_kept_is_freed_by_its_last_use():
    costs = HandCosts([Layer(output=100.0, weight=1)] * 8)
    memory = predict(strategy(costs), costs, machine([["a"]]), 1).devices[0].memory
    assert memory.by_role["activations"] == 200  # input and output of an op, or their gradients


def test_a_reshape_uses_the_memory_of_its_input():
    costs = HandCosts([Layer(output=100.0), Layer(type="Reshape"), Layer(type="Reshape"), Layer(output=10.0)])
    memory = predict(strategy(costs), costs, machine([["a"]]), 1).devices[0].memory
    assert memory.by_role["activations"] == 110


def test_recomputation_keeps_less_and_computes_more():
    costs = HandCosts([Layer(1.0, 2.0, weight=1, output=100.0, kept=True)] * 9)
    one = machine([["a"]])
    plain = predict(strategy(costs), costs, one, 1)
    auto = predict(strategy(costs, gradient_checkpoint__type="auto"), costs, one, 1)
    again = [told for told in auto.lowered.ops if told.kind == "recompute"]
    seconds = sum(op.seconds for op, told in zip(auto.lowered.program.ops, auto.lowered.ops) if told in again)
    assert auto.seconds == pytest.approx(plain.seconds + seconds) and 0 < seconds < 9.0
    assert plain.devices[0].memory.by_role["activations"] == 1100
    # Nine equal layers: segments of 4, 3 and 2 layers, or as good.
    assert auto.devices[0].memory.by_role["activations"] <= 600


def test_checkpoints_of_the_script_are_kept():
    costs = HandCosts([Layer(1.0, 2.0, weight=1, output=100.0, kept=True)] * 9)
    checkpoints = {costs.first[layer] + 2 for layer in (2, 5)}
    costs.ops = tuple(op._replace(is_checkpoint=at in checkpoints) for at, op in enumerate(costs.ops))
    planned = strategy(costs, gradient_checkpoint__type="collection")
    found = predict(planned, costs, machine([["a"]]), 1)
    # Two segments of three layers, of which the last is a checkpoint; the three after it run once.
    assert found.seconds == pytest.approx(9 * 3.0 + 2 * 2.0)
    assert found.devices[0].memory.by_role["activations"] == 100 * (2 + 3 + 2)
    plain = HandCosts([Layer(1.0, 2.0, weight=1, output=100.0, kept=True)] * 9)
    assert predict(strategy(plain, gradient_checkpoint__type="collection"), plain, machine([["a"]]), 1).seconds == 27


def test_all_stages_but_the_end_of_the_last_are_computed_twice():
    costs = HandCosts([Layer(1.0, 1.0, weight=1, output=100.0, kept=True)] * 8)
    found = predict(
        strategy(costs, devices=2, **stages(costs, 4), gradient_checkpoint__type="auto"),
        costs,
        machine(bandwidth=1e30),
        1,
    )
    first, second = found.devices
    # What the other stage takes is kept, and one layer between two segments.
    assert first.busy == pytest.approx(4 + 4 + 2) and 8 <= second.busy < 12
    only_first = strategy(
        costs, devices=2, **stages(costs, 4), gradient_checkpoint__type="auto", gradient_checkpoint__end_taskgraph=0
    )
    assert predict(only_first, costs, machine(bandwidth=1e30), 1).devices[1].busy == pytest.approx(8)


@pytest.mark.parametrize("level", ["v0", "v1"])
def test_zero_divides_state_and_gathers_weights(level):
    costs = HandCosts([Layer(weight=1_000_000)] * 4, slots={"m": 1.0})
    where = machine([["a"] * 4], bandwidth=1e30)
    found = predict(strategy(costs, devices=4, zero__level=level), costs, where, 4)
    memory = found.devices[0].memory.by_role
    assert memory["weights"] == 1_000_000 and memory["slots"] == 1_000_000
    moved = {(one.decision, one.collective): (one.times, one.bytes) for one in found.traffic}
    assert moved["weights (ZeRO)", "all-gather"] == (4, 4e6)
    gradients = moved["gradients of the model", "all-reduce" if level == "v0" else "reduce-scatter"]
    assert gradients == (4, 4e6)


def test_zero_sends_as_much_as_an_all_reduce():
    costs = HandCosts([Layer(0.0, 0.0, weight=1_000_000)] * 4)
    where = machine([["a"] * 4], bandwidth=1e6)
    plain = predict(strategy(costs, devices=4), costs, where, 4)
    sharded = predict(strategy(costs, devices=4, zero__level="v1"), costs, where, 4)
    assert plain.seconds == pytest.approx(4 * 2 * 3 / 4) and sharded.seconds == pytest.approx(plain.seconds)


def test_small_weights_of_zero_stay_whole():
    costs = HandCosts([Layer(weight=1_000_000), Layer(weight=1000)])
    found = predict(strategy(costs, devices=2, zero__level="v1"), costs, machine(bandwidth=1e30), 2)
    assert found.devices[0].memory.by_role["weights"] == 500_000 + 1000
    assert {one.collective for one in found.traffic} == {"all-gather", "reduce-scatter", "all-reduce"}


def test_v2_holds_two_blocks_of_weights_and_gathers_twice():
    costs = HandCosts([Layer(weight=1_000_000)] * 8)
    where = machine([["a"] * 2], bandwidth=1e30)
    packs = 4 * NCCL_PACK_BYTES  # two communicators for gradients, two for weights
    v1, v2 = [predict(strategy(costs, devices=2, zero__level=level), costs, where, 2) for level in ("v1", "v2")]
    assert v1.devices[0].memory.by_role["communication"] - packs >= 7_000_000
    assert v2.devices[0].memory.by_role["communication"] - packs <= 2_000_000
    gathers = [sum(one.times for one in found.traffic if one.collective == "all-gather") for found in (v1, v2)]
    assert gathers == [8, 15]  # the last layer is gathered once for both passes


def test_runs_of_accumulation_gather_each():
    costs = HandCosts([Layer(weight=1_000_000)])
    planned = strategy(costs, devices=2, zero__level="v1", pipeline__num_micro_batch=3)
    found = predict(planned, costs, machine(bandwidth=1e6), 6)
    moved = {one.collective: one.times for one in found.traffic}
    assert moved == {"all-gather": 3, "reduce-scatter": 1}
    assert found.seconds == pytest.approx(3 * (0.5 + 3.0) + 0.5)


@pytest.mark.parametrize("level", ["v1", "v2"])
def test_replicas_with_zero_are_simulated_once(level):
    costs = HandCosts([Layer(weight=1_000_000, output=10.0, kept=True)] * 3)
    planned = strategy(costs, devices=8, zero__level=level, gradient_checkpoint__type="auto")
    where = machine([["a"] * 8], bandwidth=1e6)
    folded, alone = [predicted(prepare(planned, costs, where, 16, fold), costs, where) for fold in (True, False)]
    assert len(folded.devices) == 1 and folded.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert {one.memory.peak for one in alone.devices} == {folded.devices[0].memory.peak}


def test_v2_in_stages_is_refused():
    costs = HandCosts(KEPT)
    with pytest.raises(NotAvailableError, match="'v2', which does not go together"):
        planned = strategy(costs, devices=4, zero__level="v2", **stages(costs, 2))
        predict(planned, costs, machine([["a"] * 4]), 4)


def test_a_budget_that_is_too_small_is_refused(monkeypatch):
    config = Config({"gradient_checkpoint.memory_budget": 10})
    monkeypatch.setattr(Env.get(), "config", config)
    costs = HandCosts(KEPT)
    with pytest.raises(PlanError, match="take at least"):
        predict(strategy(costs, gradient_checkpoint__type="auto"), costs, machine([["a"]]), 1)
