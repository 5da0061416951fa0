"""Pipelines against the simulator of schedules, transfers over links, micro batches in flight."""

import pytest

from epl.parallel.plan import schedule_simulator
from epl.parallel.plan.schedule_generators import GENERATORS, generate
from epl.planner.prediction.prediction import predict, predicted, prepare
from epl.utils.errors import PlanError
from tests.planner.prediction.hand_made import HandCosts, Layer, machine, stages, strategy


def a_pipeline(layers, num_stages, micro_batches, schedule="PreferBackward", replicas=1, **settings):
    """A strategy in which each layer is a stage, and its costs."""
    costs = HandCosts(layers)
    found = strategy(
        costs,
        devices=num_stages * replicas,
        **stages(costs, *range(1, num_stages)),
        pipeline__num_micro_batch=micro_batches,
        pipeline__strategy=schedule,
        **settings,
    )
    return found, costs


@pytest.mark.grid
@pytest.mark.parametrize("schedule", sorted(GENERATORS))
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_a_pipeline_takes_as_long_as_its_schedule(schedule, micro_batches):
    forward, backward = (1.0, 2.0, 0.5), (2.0, 1.5, 3.0)
    layers = [Layer(f, b, weight=8, output=1.0) for f, b in zip(forward, backward)]
    planned, costs = a_pipeline(layers, 3, micro_batches, schedule)
    found = predict(planned, costs, machine([["a"] * 3], latency=0.25, bandwidth=8.0), 2 * micro_batches)
    expected = schedule_simulator.simulate(
        generate(schedule, range(3), micro_batches), [2 * f for f in forward], [2 * b for b in backward], 0.25 + 2 / 8.0
    )
    assert found.seconds == pytest.approx(expected.total_s, rel=1e-9)
    busy = [micro_batches * 2 * (f + b) for f, b in zip(forward, backward)]
    assert [one.busy for one in found.devices] == pytest.approx(busy)


@pytest.mark.parametrize("schedule", ["PreferForward", "PreferBackward"])
def test_equal_stages_wait_for_the_bubble(schedule):
    planned, costs = a_pipeline([Layer(weight=8, output=1.0)] * 4, 4, 6, schedule)
    found = predict(planned, costs, machine([["a"] * 4], bandwidth=1e30), 6)
    assert found.seconds == pytest.approx((6 + 3) * 3.0)
    assert [one.bubble / found.seconds for one in found.devices] == pytest.approx([3 / (6 + 3)] * 4)
    assert found.bound.compute + found.bound.bubble == pytest.approx(found.seconds)


def test_messages_that_leave_by_one_link_follow_each_other():
    layers = [Layer(1.0, 1.0, weight=8, output=4.0)] * 3
    planned, costs = a_pipeline(layers, 3, 2, "PreferForward")
    apart, shared = [
        predict(planned, costs, machine([["a"] * 3], bandwidth=4.0, shared_by=shared), 2).seconds for shared in (1, 0)
    ]
    expected = schedule_simulator.simulate(generate("PreferForward", range(3), 2), 1.0, 1.0, 1.0)
    assert apart == pytest.approx(expected.total_s)
    # forward         stage 0: 0-1, 1-2    link: 1-2 (m0), 2-3 (m1)    stage 1: 2-3, 3-4    link: 3-4, 4-5 as before
    # With passes of 1 s and messages of 1 s the link is never asked for by both stages at once.
    assert shared == pytest.approx(apart)
    slow = [
        predict(planned, costs, machine([["a"] * 3], bandwidth=2.0, shared_by=shared), 2).seconds for shared in (1, 0)
    ]
    # Messages of 2 s. Apart: stage 2 gets micro batch 1 at 8. Shared: stage 0 1-3 and 3-5, stage 1 5-7 and 7-9.
    assert slow == pytest.approx([2 * 9.0, 2 * 10.0])


def test_replicas_share_the_link_of_their_node():
    planned, costs = a_pipeline([Layer(1.0, 1.0, weight=1, output=4.0), Layer(1.0, 1.0)], 2, 1, replicas=2)
    alone, together = [
        predict(planned, costs, machine([["a"] * 4], bandwidth=4.0, shared_by=shared), 2) for shared in (1, 0)
    ]
    all_reduce = (0.25, 0.5)  # of one byte by two ranks; the link of the node carries both of their messages
    assert alone.seconds == pytest.approx(4.0 + 2 * 1.0 + all_reduce[0])
    assert together.seconds == pytest.approx(4.0 + 2 * 2.0 + all_reduce[1])
    assert [one.ranks for one in together.devices] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("shared_by", [0, 1, 2])
def test_replicas_of_a_pipeline_are_simulated_once(shared_by):
    layers = [Layer(weight=40, output=4.0, kept=True), Layer(0.5, 2.0, weight=24, output=2.0), Layer(weight=8)]
    planned, costs = a_pipeline(layers, 3, 4, replicas=4)
    where = machine([["a"] * 12], bandwidth=8.0, latency=0.1, shared_by=shared_by)
    folded, alone = [predicted(prepare(planned, costs, where, 32, fold), costs, where) for fold in (True, False)]
    assert len(alone.devices) == 12 and len(folded.devices) < 12
    assert folded.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert folded.seconds >= folded.bound.seconds == pytest.approx(alone.bound.seconds)
    peaks = {(one.stage, rank): one.memory.peak for one in folded.devices for rank in one.ranks}
    assert [one.memory.peak for one in alone.devices] == [peaks[one.stage, one.ranks[0]] for one in alone.devices]


def test_gradients_of_a_stage_are_reduced_while_earlier_stages_compute():
    planned, costs = a_pipeline([Layer(weight=0.001, output=0.001), Layer(weight=100)], 2, 1, replicas=2)
    found = predict(planned, costs, machine([["a"] * 4], bandwidth=100.0), 2)
    assert found.seconds == pytest.approx(6.0, abs=1e-3)  # the all-reduce takes 1 s, the backward pass of stage 0 2 s
    assert {one.decision for one in found.traffic} == {
        "gradients of stage 0", "gradients of stage 1", "stage 0 to 1", "stage 1 to 0",
    }  # fmt: skip


@pytest.mark.parametrize("schedule, in_flight", [("PreferForward", (4, 4)), ("PreferBackward", (2, 1))])
def test_a_stage_keeps_the_activations_of_micro_batches_in_flight(schedule, in_flight):
    layers = [Layer(weight=8, output=100.0, kept=True), Layer(backward=4.0, weight=8, output=10.0, kept=True)]
    planned, costs = a_pipeline(layers, 2, 4, schedule)
    found = predict(planned, costs, machine([["a"] * 2], bandwidth=1e30), 4)
    first, second = [one.memory.by_role for one in found.devices]
    # Stage 0 keeps its output; while its backward pass runs it holds the gradient of it, received and its own.
    fresh = 0 if schedule == "PreferForward" else 8  # the gradient of the second micro batch, before it is added
    assert first["activations"] == 100 * in_flight[0] + 100 and first["communication"] == 100
    # Stage 1 keeps what it received, and its own output; the next micro batch has come meanwhile.
    assert second["communication"] == 100 * (4 if schedule == "PreferForward" else 2)
    assert second["activations"] == 10 * in_flight[1] + 110
    assert first["gradients"] == 8 + fresh and first["weights"] == 8


def test_data_that_flows_back_is_refused():
    costs = HandCosts([Layer(), Layer()])
    where = stages(costs, 1)
    where["block_of"] = [1] * len(costs.ops)
    where["block_of"][-1] = 0
    with pytest.raises(PlanError, match="Stages follow the data flow"):
        predict(strategy(costs, devices=2, **where), costs, machine(), 2)
