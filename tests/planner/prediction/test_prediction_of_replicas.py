"""Data parallelism by closed forms: times, exposed communication, uneven rows, classes, links."""

import pytest

from epl.config.config import Config
from epl.env import Env
from epl.planner.prediction.prediction import predict, predicted, prepare
from epl.utils.errors import MachineError, PlanError
from tests.planner.prediction.hand_made import HandCosts, Layer, device, machine, strategy


def test_one_device_computes_all_and_updates():
    costs = HandCosts([Layer(weight=100), Layer(3.0, 1.0, weight=200)], slots={"Momentum": 1.0})
    one = machine([["a"]], [device(bandwidth=50.0, overhead=0.5)])
    found = predict(strategy(costs), costs, one, 4)
    update = 300 * 5 / 50.0 + 2 * 0.5  # the gradient; the variable and its slot, read and written
    assert found.seconds == pytest.approx(4 * (3.0 + 4.0) + update)
    assert found.devices[0].busy == pytest.approx(found.seconds) and found.devices[0].bubble == 0
    assert not found.traffic and len(found.devices) == 1


def test_the_last_bucket_is_exposed():
    costs = HandCosts([Layer(weight=600), Layer(weight=600)])
    found = predict(strategy(costs, devices=2), costs, machine(bandwidth=100.0), 4)
    all_reduce = 2 * (600 / 2) / 100.0  # a ring of two: 2 (n - 1) messages of B / n
    compute = 2 * 6.0
    # The first bucket is reduced while the first layer is differentiated, which takes 4 s.
    assert found.seconds == pytest.approx(compute + (all_reduce - 4.0) + all_reduce)
    assert found.devices[0].exposed == pytest.approx(2 * all_reduce - 4.0)
    assert [(one.collective, one.times, one.bytes) for one in found.traffic] == [("all-reduce", 2, 1200.0)]


def test_communication_that_is_covered_costs_nothing():
    costs = HandCosts([Layer(backward=9.0), Layer(weight=600)])
    found = predict(strategy(costs, devices=2), costs, machine(bandwidth=100.0), 2)
    assert found.seconds == pytest.approx(2.0 + 2.0 + 9.0) and found.devices[0].exposed == 0


def test_a_slower_device_is_waited_for_and_a_class_of_its_own():
    costs = HandCosts([Layer(weight=600)], {"a": 1.0, "b": 0.5})
    found = predict(strategy(costs, devices=4), costs, machine([["a", "b", "a", "a"]], bandwidth=100.0), 4)
    fast, slow = found.devices
    assert fast.devices == (0, 2, 3) and slow.devices == (1,)
    assert found.seconds == pytest.approx(6.0 + 6 * 150 / 100.0)
    assert fast.bubble == pytest.approx(3.0) and slow.bubble == 0 and fast.exposed == pytest.approx(9.0)


def test_rows_in_proportion_to_the_speed_make_devices_end_together():
    costs = HandCosts([Layer(weight=6)], {"a": 3.0, "b": 1.0})
    two = machine([["a", "b"]], bandwidth=1.0)
    even = predict(strategy(costs, devices=2), costs, two, 8)
    uneven = predict(strategy(costs, devices=2, auto__balance="3:1"), costs, two, 8)
    assert even.seconds == pytest.approx(4 * 3.0 + 6.0)
    assert uneven.seconds == pytest.approx(2 * 3.0 + 6.0)
    assert [one.rows for one in uneven.devices] == [6, 2] and uneven.devices[0].bubble == 0


def test_rows_that_do_not_divide_make_two_classes():
    costs = HandCosts([Layer(weight=6)])
    found = predict(strategy(costs, devices=4), costs, machine([["a"] * 4]), 10)
    assert [(one.ranks, one.rows) for one in found.devices] == [((0, 1), 3), ((2, 3), 2)]
    assert found.devices[0].name == "ranks 0 to 1 (a)"


def test_accumulated_gradients_are_reduced_once():
    costs = HandCosts([Layer(weight=600)])
    found = predict(
        strategy(costs, devices=2, pipeline__num_micro_batch=4), costs, machine(bandwidth=100.0), 16
    )  # fmt: skip
    assert found.seconds == pytest.approx(8 * 3.0 + 6.0)
    assert [one.times for one in found.traffic] == [1]


@pytest.mark.parametrize("table", [10_000, 10])  # bytes; more or fewer than of the rows
def test_sparse_gradients_are_gathered(monkeypatch, table):
    costs = HandCosts([Layer(weight=table, output=3.0, type="GatherV2")])
    costs.ops = costs.ops[:-1] + (costs.ops[-1]._replace(inputs=((2, 0), (0, 0))),)  # of the table w0 the rows x
    (one,) = predict(strategy(costs, devices=2), costs, machine(), 8).traffic
    assert (one.collective, one.bytes) == ("all-gather", 2 * 4 * 3.0)  # the rows of both replicas
    monkeypatch.setattr(Env.get(), "config", Config({"communication.sparse_as_dense": True}))
    (one,) = predict(strategy(costs, devices=2), costs, machine(), 8).traffic
    assert (one.collective, one.bytes) == ("all-reduce", table)


@pytest.mark.parametrize("dtype, sent", [("float32", 300), ("float64", 150), ("float16", 600)])
def test_gradients_travel_as_float16(monkeypatch, dtype, sent):
    costs = HandCosts([Layer(weight=600)])
    planned = strategy(costs, devices=2)
    planned = planned._replace(ops=tuple(op._replace(outputs=(f"{dtype}[?]",)) for op in planned.ops))
    monkeypatch.setattr(Env.get(), "config", Config({"communication.fp16": True}))
    assert [one.bytes for one in predict(planned, costs, machine(), 8).traffic] == [sent]


def test_indices_do_not_travel_as_float16(monkeypatch):
    costs = HandCosts([Layer(weight=10_000, output=3.0, type="GatherV2")], inputs=8.0)
    costs.ops = costs.ops[:-1] + (costs.ops[-1]._replace(inputs=((2, 0), (0, 0))),)
    monkeypatch.setattr(Env.get(), "config", Config({"communication.fp16": True}))
    (one,) = predict(strategy(costs, devices=2), costs, machine(), 8).traffic
    assert one.bytes == 2 * 4 * (8.0 + 3.0 / 2)


def test_two_nodes_reduce_inside_first():
    costs = HandCosts([Layer(0.0, 0.0, weight=400)])
    two_nodes = machine([["a", "a"], ["a", "a"]], bandwidth=100.0, network=(0.0, 10.0))
    found = predict(strategy(costs, devices=2, workers=2), costs, two_nodes, 4)
    # reduce-scatter and all-gather inside, 200 B each; between them two pairs all-reduce 200 B over the nodes' links.
    hierarchical = 2 * 200 / 100.0 + 2 * 100 / (10.0 / 2)
    ring = 6 * 100 / 10.0
    assert found.seconds == pytest.approx(min(hierarchical, ring))


@pytest.mark.parametrize("balance, rows", [("even", 16), ("1:1:1:2:1:1:1:1", 18)])
def test_equal_replicas_are_simulated_once(balance, rows):
    costs = HandCosts([Layer(weight=600, output=5.0, kept=True), Layer(2.0, 3.0, weight=60)])
    of_eight = strategy(costs, devices=4, workers=2, auto__balance=balance)
    where = machine([["a"] * 4, ["a"] * 4], bandwidth=100.0, shared_by=2, network=(1.0, 20.0))
    folded, alone = [
        predicted(prepare(of_eight, costs, where, rows, fold), costs, where) for fold in (True, False)
    ]  # fmt: skip
    assert len(folded.devices) <= 2 and len(alone.devices) == 8
    assert folded.seconds == pytest.approx(alone.seconds, rel=1e-9)
    peaks = {rank: one.memory.peak for one in folded.devices for rank in one.ranks}
    assert [one.memory.peak for one in alone.devices] == [peaks[rank] for rank in range(8)]


def test_the_critical_path_leads_from_the_begin_to_the_end():
    costs = HandCosts([Layer(weight=600), Layer(weight=600)])
    found = predict(strategy(costs, devices=2), costs, machine(bandwidth=100.0), 4)
    path = found.critical_path
    assert path[0].start == 0 and path[-1].end == found.seconds
    assert all(one.end == pytest.approx(after.start) for one, after in zip(path, path[1:]))
    assert [one.kind for one in path][-3:] == ["backward", "collective", "collective"]


def test_the_bound_is_the_work_over_the_speeds():
    costs = HandCosts([Layer(weight=600)], {"a": 1.0, "b": 2.0})
    found = predict(strategy(costs, devices=2), costs, machine([["a", "b"]], bandwidth=100.0), 12)
    assert found.bound.compute == pytest.approx(12 * 3.0 / (1.0 + 2.0)) and found.bound.bubble == 0
    assert found.bound.traffic == pytest.approx(6.0) and found.bound.seconds == pytest.approx(12.0)
    assert found.seconds >= found.bound.seconds
    assert found.bound.flops == 12 * 3.0 and found.bound.peak == 0  # these devices have no rate of matmuls


def test_ops_of_several_threads_run_next_to_each_other():
    costs = HandCosts([Layer(), Layer(), Layer()])
    costs.ops = (*costs.ops[:2], *(one._replace(inputs=((0, 0),)) for one in costs.ops[2:]))  # all take x
    times = [
        predict(strategy(costs), costs, machine([["a"]], [device(threads=threads)]), 1).seconds for threads in (1, 2, 8)
    ]
    assert times == pytest.approx([9.0, 4.5, 3.0])


@pytest.mark.parametrize(
    "settings, rows, error",
    [
        ({"auto__balance": "speed"}, 4, "speed"),
        ({"auto__balance": "1:2:3"}, 4, "proportions for 3 replica"),
        ({}, 1, "replica 1 has none"),
        ({"pipeline__num_micro_batch": 3}, 4, "multiple of 6 rows"),
    ],
)
def test_what_cannot_be_predicted_is_refused(settings, rows, error):
    costs = HandCosts([Layer(weight=6)])
    with pytest.raises(PlanError, match=error):
        predict(strategy(costs, devices=2, **settings), costs, machine(), rows)


def test_a_machine_must_fit_the_job():
    costs = HandCosts([Layer(weight=6)])
    with pytest.raises(MachineError, match="has 2 device"):
        predict(strategy(costs, devices=4), costs, machine(), 4)
    with pytest.raises(MachineError, match="which are on the nodes 0, 1"):
        predict(strategy(costs, devices=4), costs, machine([["a", "a"], ["a", "a"]]), 4)


def test_the_costs_must_be_of_the_same_model():
    costs = HandCosts([Layer(weight=6)])
    with pytest.raises(ValueError, match="another model"):
        predict(strategy(costs), HandCosts([Layer()]), machine([["a"]]), 4)


def test_a_dynamic_loss_scale_applies_gradients_when_all_are_there(monkeypatch):
    costs = HandCosts([Layer(weight=600), Layer(weight=600)])
    planned, where = strategy(costs, devices=2), machine(bandwidth=100.0)
    updates = []
    for settings in ({}, {"amp.level": "O1", "amp.loss_scale": 8}, {"amp.level": "O1"}):
        monkeypatch.setattr(Env.get(), "config", Config(settings))
        found = predict(planned, costs, where, 4)
        reduced = [end for end, told in zip(found.run.ends, found.lowered.ops) if told.decision.startswith("gradients")]
        begins = [start for start, told in zip(found.run.starts, found.lowered.ops) if told.kind == "update"]
        updates.append((max(reduced), begins))
    for last, begins in updates[:2]:
        assert min(begins) < last
    last, begins = updates[2]
    assert min(begins) >= last and len(begins) == 2
