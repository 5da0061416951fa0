"""Weights in host memory: what a device copies and holds, by hand and against the rewritten graph."""

import logging
import re

import pytest

from epl.ir.taskgraph import HOST_ATTR
from epl.parallel.plan.sections import ZeroSection
from epl.planner.machine.collective_algorithms import NCCL_PACK_BYTES
from epl.planner.machine.presets import LINKS
from epl.planner.prediction.host_memory import copy_seconds
from epl.planner.prediction.prediction import predict, predicted, prepare
from epl.utils import tf_compat
from epl.utils.errors import NotAvailableError
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.prediction.hand_made import HandCosts, Layer, machine, stages, strategy
from tests.planner.prediction.recorded_models import MOMENTUM, ROWS, mean_square, on_cpus, recorded

MB = 1_000_000
FROM_HOST, TO_HOST = ("offload", "copy from the host"), ("offload", "copy to the host")
GATHERS = ("weights (ZeRO)", "all-gather")


def moved(found):
    """(decision, collective) -> (how many, bytes)."""
    return {(one.decision, one.collective): (one.times, one.bytes) for one in found.traffic}


def test_the_device_holds_two_blocks_and_no_state():
    costs = HandCosts([Layer(weight=MB)] * 6, slots={"m": 1.0})
    found = predict(strategy(costs, offload__level="v0"), costs, machine([["a"]]), 1)
    memory = found.devices[0].memory.by_role
    assert "weights" not in memory and "slots" not in memory
    assert memory["communication"] == 2 * MB


def test_weights_are_copied_for_both_passes_and_gradients_once():
    costs = HandCosts([Layer(weight=MB)] * 6)
    found = predict(strategy(costs, offload__level="v0"), costs, machine([["a"]]), 1)
    # The last block serves both passes; the first layer has no gradient to compute with its weight.
    assert moved(found) == {FROM_HOST: (6 + 4, 10.0 * MB), TO_HOST: (6, 6.0 * MB)}


def test_copies_run_while_the_device_computes():
    costs = HandCosts([Layer(weight=MB)] * 6)
    found = predict(strategy(costs, offload__level="v0"), costs, machine([["a"]]), 1)
    compute, first, last = 6 * 3.0, copy_seconds(MB, 1), copy_seconds(MB, 1)
    (update,) = {op.seconds for op, told in pairs(found) if told.kind == "host update"}
    assert found.seconds == pytest.approx(compute + first + last + update, rel=1e-6)
    assert found.devices[0].busy == pytest.approx(compute)


def pairs(found):
    return list(zip(found.lowered.program.ops, found.lowered.ops))


def test_slow_copies_are_exposed():
    costs = HandCosts([Layer(0.0, 0.0, weight=MB)] * 6)
    found = predict(strategy(costs, offload__level="v0"), costs, machine([["a"]]), 1)
    # All weights come one after the other; only then go the gradients of the first two layers.
    assert found.devices[0].exposed == pytest.approx((10 + 2) * copy_seconds(MB, 1), rel=0.01)


def test_a_host_updates_the_weights_of_all_devices_of_a_worker():
    costs = HandCosts([Layer(weight=MB)])
    times = []
    for workers, devices in ((1, 4), (4, 1)):
        nodes = [["a"] * devices] * workers
        planned = strategy(costs, devices=devices, workers=workers, offload__level="v0")
        found = predict(planned, costs, machine(nodes), 4)
        times.append(sum(op.seconds for op, told in pairs(found) if told.kind == "host update"))
    assert times[0] == pytest.approx(4 * times[1])


def test_each_pass_of_a_pipeline_copies():
    costs = HandCosts([Layer(weight=MB)] * 4)
    planned = strategy(
        costs, devices=2, pipeline__num_micro_batch=3, offload__level="v0", **stages(costs, 2)
    )  # fmt: skip
    found = predict(planned, costs, machine(bandwidth=1e30), 3)
    # 3 micro batches; 4 weights forward, 3 backward.
    assert moved(found)[FROM_HOST][1] == 3 * (4 + 3) * MB and moved(found)[TO_HOST][1] == 4 * MB


def with_checkpoints(layers, places):
    """Layers with a weight each, of which some are checkpoints of the script."""
    costs = HandCosts([Layer(weight=MB, output=10.0, kept=True)] * layers)
    checkpoints = {costs.first[layer] + 2 for layer in places}
    costs.ops = tuple(op._replace(is_checkpoint=at in checkpoints) for at, op in enumerate(costs.ops))
    return costs, {"gradient_checkpoint__type": "collection"}


def test_weights_come_again_for_a_recomputation():
    costs, settings = with_checkpoints(12, (3, 7))
    found = predict(strategy(costs, offload__level="v0", **settings), costs, machine([["a"]]), 1)
    # 12 forward and 10 backward, as above. Layers 0 to 2, and 4 to 6, run again: 2 and 6 need their weights once.
    assert moved(found)[FROM_HOST] == (12 + 10 + 2 + 2, 26.0 * MB)
    assert found.devices[0].memory.by_role["communication"] <= 3 * MB
    again = [op for op, told in pairs(found) if told.kind == "recompute"]
    assert len(again) == 6 and sum(op.seconds for op in again) == 6.0


def test_the_copies_of_a_recomputation_run_while_the_device_computes():
    costs, settings = with_checkpoints(12, (3, 7))
    found = predict(strategy(costs, offload__level="v0", **settings), costs, machine([["a"]]), 1)
    (update,) = {op.seconds for op, told in pairs(found) if told.kind == "host update"}
    assert found.seconds == pytest.approx((12 * 3 + 6) + 2 * copy_seconds(MB, 1) + update, rel=1e-6)


def test_shards_are_gathered_again_for_a_recomputation():
    costs, settings = with_checkpoints(12, (3, 7))
    found = predict(strategy(costs, devices=2, zero__level="v2", **settings), costs, machine([["a"] * 2]), 2)
    assert moved(found)["weights (ZeRO)", "all-gather"] == (12 + 11 + 2 + 2, 27.0 * MB)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_each_pass_of_a_pipeline_copies_for_its_recomputation(micro_batches):
    costs, settings = with_checkpoints(8, (1, 5))
    planned = strategy(
        costs, devices=2, offload__level="v0", pipeline__num_micro_batch=micro_batches, **settings, **stages(costs, 4)
    )  # fmt: skip
    found = predict(planned, costs, machine(bandwidth=1e30), micro_batches)
    # Of stage 0 layers 0 and 2 run again, of stage 1 layer 4; each of them needs its weight once.
    assert moved(found)[FROM_HOST][1] == micro_batches * (8 + 7 + 1) * MB


def test_looked_up_rows_alone_are_copied():
    costs = HandCosts([Layer(weight=100 * MB, output=8.0, type="GatherV2"), Layer(weight=MB)])
    costs.ops = tuple(
        op._replace(inputs=(op.inputs[1], op.inputs[0])) if op.type == "GatherV2" else op for op in costs.ops
    )
    found = predict(strategy(costs, offload__level="v0"), costs, machine([["a"]]), 1000)
    assert MB < moved(found)[FROM_HOST][1] < 2 * MB and moved(found)[TO_HOST][1] < 2 * MB


@pytest.mark.parametrize("level", ["v0", "v1"])
def test_shards_are_gathered_on_the_hosts_once_and_copied_for_both_passes(level):
    costs = HandCosts([Layer(weight=MB)] * 6)
    settings = {"offload__level": "v0", "zero__level": level}
    found = predict(strategy(costs, devices=2, **settings), costs, machine(bandwidth=1e30), 2)
    sent = moved(found)
    assert sent[GATHERS] == (6, 6.0 * MB) and sent[FROM_HOST] == (6 + 4, 10.0 * MB)
    # v0 reduces on the device and cuts on the host.
    assert sent[TO_HOST][1] == (6.0 * MB if level == "v0" else 3.0 * MB)
    memory = found.devices[0].memory.by_role
    # Weights are gathered on the hosts, gradients are reduced on the GPU.
    assert memory["communication"] == 2 * MB + 2 * NCCL_PACK_BYTES and "weights" not in memory
    assert any("gathered in the memory of the computers" in text for text in found.assumptions)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_copy_waits_until_its_weights_are_gathered(workers):
    costs = HandCosts([Layer(0.0, 0.0, weight=MB)] * 6)
    where = machine([["a"] * (2 // workers)] * workers, bandwidth=1e30, network=(1e-3, 1e9))
    settings = {"offload__level": "v0", "zero__level": "v1"}
    found = predict(strategy(costs, workers=workers, devices=2 // workers, **settings), costs, where, 2)
    shared = LINKS["shm"]
    gather = shared.latency + MB / 2 / shared.bandwidth.reached if workers == 1 else 1e-3 + MB / 2 / 1e9
    forward = [at for at, told in enumerate(found.lowered.ops) if told.kind == "forward"]
    assert found.run.starts[forward[-1]] == pytest.approx(6 * gather + copy_seconds(MB, 1))


def test_runs_of_accumulation_gather_on_the_hosts_each_and_a_pipeline_once():
    costs = HandCosts([Layer(weight=MB)] * 6)
    settings = {"offload__level": "v0", "zero__level": "v1"}
    runs = strategy(costs, devices=2, pipeline__num_micro_batch=3, **settings)
    assert moved(predict(runs, costs, machine(bandwidth=1e30), 6))[GATHERS] == (3 * 6, 18.0 * MB)
    staged = strategy(costs, devices=4, pipeline__num_micro_batch=3, **settings, **stages(costs, 3))
    sent = moved(predict(staged, costs, machine([["a"] * 4], bandwidth=1e30), 6))
    assert [sent[f"weights of stage {stage} (ZeRO)", "all-gather"] for stage in (0, 1)] == [(3, 3.0 * MB)] * 2
    assert sent[FROM_HOST][1] == 3 * (6 + 5) * MB


def test_what_the_library_refuses_is_refused_in_its_words():
    costs = HandCosts([Layer(weight=MB)] * 6)
    with pytest.raises(NotAvailableError, match="does not go together with offload.level: weights in host memory are"):
        predict(strategy(costs, devices=2, offload__level="v0", zero__level="v2"), costs, machine(), 2)


@pytest.mark.parametrize("level", ["", "v1"])
def test_equal_replicas_are_simulated_once(level):
    costs = HandCosts([Layer(weight=MB, output=10.0, kept=True)] * 3)
    planned = strategy(costs, devices=4, offload__level="v0", zero__level=level, gradient_checkpoint__type="auto")
    where = machine([["a"] * 4], bandwidth=1e6)
    folded, alone = [predicted(prepare(planned, costs, where, 8, fold), costs, where) for fold in (True, False)]
    assert len(folded.devices) == 1 and folded.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert {one.memory.peak for one in alone.devices} == {folded.devices[0].memory.peak}


@pytest.mark.parametrize(
    "kind, devices, settings, tolerance",
    [
        ("replicas", 1, {}, 0.15),
        ("replicas", 2, {"gradient_checkpoint__type": "auto"}, 0.15),
        ("stages", 2, {"pipeline__num_micro_batch": 2}, 0.25),
        ("replicas", 2, {"zero__level": "v0"}, 0.15),
        ("replicas", 2, {"zero__level": "v1"}, 0.15),
        ("stages", 4, {"zero__level": "v1", "pipeline__num_micro_batch": 2}, 0.25),
    ],
)
def test_a_prediction_agrees_with_the_rewritten_graph(init, caplog, kind, devices, settings, tolerance):  # noqa: F811
    caplog.set_level(logging.INFO, "epl")
    init(devices, annotate=False, offload__level="v0", **settings)
    fed = ROWS * devices // (2 if kind == "stages" else 1)
    graph, planned, costs, estimate = recorded(mean_square(kind), fed, MOMENTUM)
    found = predict(planned, costs, on_cpus(devices), fed)
    # With the state on the host, which the two agree on: devices of one worker have one host.
    state = sum(one.peak for one in estimate.devices if one.device.endswith("(host)")) / devices
    peaks = [one.peak for one in estimate.devices if not one.device.endswith("(host)")]
    mine = {device: one.memory.peak for one in found.devices for device in one.devices}
    assert [mine[at] + state for at in range(devices)] == pytest.approx([peak + state for peak in peaks], rel=tolerance)
    # Megabytes that a stage copies for one micro batch, and that it holds of them at a time.
    copied, held = zip(
        *re.findall(r"copies ([0-9.]+) MB of weights .* of which ([0-9.]+) MB", "\n".join(caplog.messages))
    )
    micro_batches = settings.get("pipeline__num_micro_batch", 1)
    in_all = micro_batches * sum(map(float, copied)) * MB
    assert moved(found)[FROM_HOST][1] == pytest.approx(in_all, rel=0.2)
    largest = max(op.outputs[0].bytes for op, told in pairs(found) if told.collective == FROM_HOST[1])
    assert 2 * largest == pytest.approx(float(held[0]) * MB, rel=0.1)
    gathers = [moved(found)[key] for key in moved(found) if "ZeRO" in key[0]]
    assert sum(times for times, _ in gathers) == gathers_on_host(graph)
    sections = [one for one in graph.rewritten.plan.features if isinstance(one, ZeroSection)]
    in_shards = [one.bytes for section in sections for one in section.variables if one.sizes]
    assert sum(size for _, size in gathers) == sum(in_shards)
    assert moved(found)[TO_HOST][1] == bytes_to_host(graph)


def first_replica(graph):
    """The nodes of the first replica, by name."""
    nodes = tf_compat.full_graph_def(graph.tf_graph).node
    return {node.name: node for node in nodes if not node.name.startswith("EPL_REPLICA_")}


def gathers_on_host(graph):
    """How many gathers a replica has on its host."""
    return sum(node.op == "EplAllGather" and HOST_ATTR in node.attr for node in first_replica(graph).values())


def bytes_to_host(graph):
    """Bytes that the host of a replica takes from its devices for the updates."""
    nodes = first_replica(graph)
    needed = [name for name, node in nodes.items() if node.op == "ApplyMomentum"]
    seen, taken = set(needed), {}
    for name in needed:
        for text in nodes[name].input:
            producer, _, output = text.lstrip("^").partition(":")
            if producer not in nodes:
                continue
            if producer not in seen:
                seen.add(producer)
                needed.append(producer)
            if HOST_ATTR in nodes[name].attr and HOST_ATTR not in nodes[producer].attr and text[0] != "^":
                taken[text] = graph.tf_graph.get_operation_by_name(producer).outputs[int(output or 0)]
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in taken.values())
