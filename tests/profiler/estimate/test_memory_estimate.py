"""The memory estimate against traced steps, and what it says would lower the peak against what does."""

import ctypes
import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.cluster import cluster
from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.costs import kernels
from epl.parallel.costs.shapes import TensorType
from epl.parallel.plan import communicators
from epl.planner.machine.collective_algorithms import NCCL_PACK_BYTES
from epl.profiler import memory, step_stats
from epl.profiler.estimate import estimate as estimates
from epl.profiler.estimate.report import describe
from epl.profiler.memory_estimate import MemoryEstimateHook, memory_estimate
from epl.utils import tf_compat
from tests.parity.fixtures import without_idle_workers  # noqa: F401
from tests.profiler.estimate.memory_models import Bert, Lstm, Mlp, Resnet, SplitHead

THREADS = 2
MODES = {
    "plain": {},
    "recomputed": {"gradient_checkpoint__type": "auto"},
    "1f1b": {"stages": 2, "pipeline__num_micro_batch": 4},
    "v0": {"devices": 2, "zero__level": "v0"},
    "v1": {"devices": 2, "zero__level": "v1"},
    "v2": {"devices": 2, "zero__level": "v2"},
}
WHOLE = ["plain", "recomputed", "1f1b"]  # modes in which a device has the variables of its stage
ZERO = ["v0", "v1", "v2"]


def each_of(modes, quick):
    """A test of some modes, of which `make test` runs the quick one and `make test-long` the others."""
    others = [pytest.param(mode, marks=pytest.mark.long) for mode in modes if mode != quick]
    return pytest.mark.parametrize("mode", [quick] + others)


@pytest.fixture(autouse=True)
def memory_is_given_back():
    """What large models have freed goes back to the system: malloc keeps gigabytes of it for its threads."""
    yield
    ctypes.CDLL(None).malloc_trim(0)


def begin(init, mode="plain", **config):
    """A fresh graph; the number of stages."""
    values = dict(MODES[mode], **config)
    stages = values.pop("stages", 1)
    init(values.pop("devices", stages), annotate=False, **values)
    return stages


def traced(model, steps=3):
    """Of some traced steps after the first one: the timelines of devices by name, and the bytes of variables in use.

    On a busy machine one thread may be held up while the other runs ahead, which holds more: of each device the least
    counts. (With four busy loops beside it, 8 of 100 steps of the small BERT held 4 MiB more, alone 1 of 100.)
    """
    config = tf.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=THREADS)
    with tf.Session(config=config) as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed)
        records = [step_stats.run(sess, model.train_op, model.feed)[1] for _ in range(steps)]
    ran = {stats.node_name for _, stats in step_stats.node_stats(records[0])}
    lines = {}
    for line in [line for record in records for line in memory.timelines(record, tf.get_default_graph())]:
        device = line.device[line.device.index("/device:") :]
        if device not in lines or peak_of(line) < peak_of(lines[device]):
            lines[device] = line
    return lines, variable_bytes(ran)


def variable_bytes(names=None):
    """By device, the bytes of all variables, or of those with some names."""
    found = {}
    for node in tf_compat.full_graph_def(tf.get_default_graph()).node:
        if node.op in op_types.VARIABLES and (names is None or node.name in names):
            size = tf.TensorShape(node.attr["shape"].shape).num_elements() * tf.as_dtype(node.attr["dtype"].type).size
            device = node.device or "/device:CPU:0"
            found[device] = found.get(device, 0) + size
    return found


def peak_of(timeline, variables=None):
    """Variables, and what ops allocate; by default the variables are what the step tells of them, with constants."""
    return max(change.live for change in timeline.changes) + (
        0 if variables is None else variables - timeline.persistent
    )


def assert_close(model, tolerance=0.1):
    estimated = memory_estimate(model.train_op, model.feed, THREADS, advise=False).devices
    lines, variables = traced(model)
    assert {device.device for device in estimated} == set(lines)
    for device in estimated:
        assert device.weights + device.slots == variables[device.device]
        peak = peak_of(lines[device.device], variables[device.device])
        assert device.peak == pytest.approx(peak, rel=tolerance), device


@each_of(WHOLE, "plain")
def test_the_peak_of_dense_layers_is_within_a_tenth_of_a_traced_step(init, mode):
    assert_close(Mlp(begin(init, mode)))


@pytest.mark.long
@pytest.mark.parametrize("mode", WHOLE)
def test_the_peak_of_convolutions_is_near_that_of_a_traced_step(init, mode):
    # Two gradients of convolutions that run at the same time have two workspaces, of up to 30 MB each.
    stages = begin(init, mode)
    assert_close(Resnet(stages, rows=32 * stages), tolerance=0.15 if stages > 1 else 0.1)


@each_of(WHOLE, "recomputed")
def test_the_peak_of_a_small_bert_is_within_a_tenth_of_a_traced_step(init, mode):
    assert_close(Bert(begin(init, mode)))


@pytest.mark.parametrize("mode", ZERO)
@pytest.mark.parametrize("devices, width", [(2, 512), (3, 500)], ids=["even", "uneven"])
def test_the_peak_of_dense_layers_in_parts(init, mode, devices, width):
    begin(init, mode, devices=devices)
    assert_close(Mlp(layers=8, width=width, rows=2048))


@pytest.mark.long
@pytest.mark.parametrize("mode", ZERO)
def test_the_peak_of_a_small_bert_in_parts(init, mode):
    begin(init, mode)
    assert_close(Bert(rows=4, optimizer=tf.train.AdamOptimizer(0.01)))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("without_idle_workers")
@pytest.mark.parametrize("size", [64, 224])
@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_peak_of_resnet_50(init, mode, size):
    # 16 rows in each pass: with fewer, whether two gradients of convolutions run at once says more than activations do.
    passes = MODES[mode].get("devices", 1) * MODES[mode].get("pipeline__num_micro_batch", 1)
    stages = begin(init, mode)
    assert_close(Resnet(stages, (3, 4, 6, 3), size=size, rows=16 * passes))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("without_idle_workers")
@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_peak_of_bert_base(init, mode):
    stages = begin(init, mode)
    assert_close(Bert(stages, "base", rows=4, optimizer=tf.train.AdamOptimizer(0.01) if mode in ZERO else None))


def test_replicas_share_the_rows_that_are_fed(init):
    begin(init, devices=2)
    assert_close(Mlp(layers=8))


@pytest.mark.parametrize("stages", [1, 2])
def test_what_is_offloaded_counts_for_the_host(init, stages):
    begin(init, devices=stages, offload__level="v0", pipeline__num_micro_batch=4 if stages > 1 else 1)
    model = Mlp(stages, layers=8, width=512, rows=4096)  # activations decide: the order of ops does not matter
    found = {d.device: d for d in memory_estimate(model.train_op, model.feed, THREADS, advise=False).devices}
    assert sorted(found) == ["/device:CPU:0", "/device:CPU:0 (host)", "/device:CPU:1"][: stages + 1]
    host = found.pop("/device:CPU:0 (host)")
    assert host.weights + host.slots == sum(variable_bytes().values())
    for device in found.values():
        assert device.weights == device.slots == 0 and device.activations > 0
    lines, variables = traced(model)
    assert list(variables) == ["/device:CPU:0"]
    both = host.peak + found["/device:CPU:0"].peak  # the memory of a CPU is that of its host
    assert both == pytest.approx(peak_of(lines["/device:CPU:0"], host.weights + host.slots), rel=0.1)
    if stages > 1:
        assert found["/device:CPU:1"].peak == pytest.approx(peak_of(lines["/device:CPU:1"]), rel=0.1)


@pytest.mark.parametrize("devices", [2, 4])
def test_the_peak_of_a_split_head(init, devices):
    begin(init, devices=devices, cluster__colocate_split_and_replicate=True)
    assert_close(SplitHead(), tolerance=0.02)


def test_sparse_feeds_are_divided_by_their_rows(init):
    begin(init, devices=2)
    sparse, y = tf.sparse_placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 3])
    with epl.replicate(1):
        weights = tf.get_variable("w", [5, 3])
        loss = tf.reduce_mean(tf.square(tf.sparse_tensor_dense_matmul(sparse, weights) - y))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    values = tf.SparseTensorValue([[row, 0] for row in range(8)] + [[7, 4]], np.ones(9, "f"), [8, 5])
    found = memory_estimate(train_op, {sparse: values, y: np.ones([8, 3], "f")}, THREADS, advise=False)
    assert [device.weights for device in found.devices] == [60, 60]


def test_copies_of_equal_sizes_count_as_if_each_was_inferred(init, monkeypatch):
    begin(init, devices=4, cluster__colocate_split_and_replicate=True)
    model = SplitHead(classes=1002, width=16, layers=1, parts=4)  # shards of 251, 251, 250 and 250 classes
    found = memory_estimate(model.train_op, model.feed, THREADS, advise=False)
    graph = estimates.StepGraph(tf.get_default_graph())
    of_replica = {copy: node for copy, node in graph.alike.items() if graph.view.types[copy] == "MatMul"}
    assert {graph.view.nodes[node].name.partition("/")[0] for node in of_replica.values()} >= {"EPL_REPLICA_2", "l0"}
    monkeypatch.setattr(estimates, "_alike", lambda view, by_replica: {})
    assert memory_estimate(model.train_op, model.feed, THREADS, advise=False) == found
    assert len({device.weights for device in found.devices}) == 2


@pytest.mark.parametrize("devices, width, share", [(2, 512, 0.95), (3, 500, 0.8)])
def test_a_rank_holds_its_part_of_the_state_in_a_traced_step(init, devices, width, share):
    held = {}
    for mode in ("plain", "v1"):
        begin(init, mode, devices=devices)
        lines, _ = traced(Mlp(layers=8, width=width, rows=256), steps=1)
        assert len(lines) == devices
        held[mode] = lines.values()
    whole = min(line.persistent for line in held["plain"])
    assert max(line.persistent for line in held["v1"]) <= (1.0 / devices + 0.05) * whole
    # The wholes are there for a time, and gradients in buckets.
    assert max(peak_of(line) for line in held["v1"]) <= share * min(peak_of(line) for line in held["plain"])


def test_accumulation_counts_the_sums_of_gradients(init):
    begin(init, pipeline__num_micro_batch=2)
    model = Mlp(layers=8)
    (device,) = memory_estimate(model.train_op, model.feed, THREADS, advise=False).devices
    assert device.slots >= 3 * device.weights  # two moments and the sum


def test_a_loop_counts_what_all_its_iterations_keep(init):
    peaks = []
    for steps in (10, 40):
        begin(init)
        model = Lstm(steps)
        peaks.append(memory_estimate(model.train_op, model.feed, 1, advise=False).devices[0].activations)
    assert peaks[1] > 3 * peaks[0]


def test_the_peak_of_a_recurrent_layer_is_near_that_of_a_traced_step(init):
    begin(init)
    assert_close(Lstm(), tolerance=0.15)


def test_a_shape_may_stand_for_an_array(init):
    begin(init)
    model = Mlp(layers=4)
    shape = tf.TensorShape(model.feed[model.x].shape)
    assert memory_estimate(model.train_op, {model.x: shape}) == memory_estimate(model.train_op, model.feed)


def test_a_fetched_activation_of_half_precision_is_computed_once(init):
    begin(init, amp__level="O1")
    model = Mlp(layers=4)
    (copy,) = [copy for copy in Graph.get().replacements.values() if copy.original.op.name.endswith("3/MatMul")]
    users, computed = (memory_estimate([model.train_op, one], model.feed) for one in (copy.original, copy.restored))
    assert users == computed


def test_twice_the_rows_take_twice_the_activations(init):
    begin(init)
    model = Mlp(layers=4)
    one, two = (
        memory_estimate(model.train_op, {model.x: tf.TensorShape([rows, 64])}, 1, advise=False).devices[0]
        for rows in (1000, 2000)
    )
    assert two.activations == pytest.approx(2 * one.activations, rel=0.02)
    assert (one.weights, one.slots) == (two.weights, two.slots)


def test_what_is_not_fed_is_assumed_and_said(init):
    begin(init)
    with epl.replicate(1):
        data = tf.data.Dataset.from_tensors(np.ones([64, 8], "f")).repeat().batch(2).make_one_shot_iterator()
        loss = tf.reduce_mean(tf.layers.dense(data.get_next(), 8))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert "count as 32" in describe(memory_estimate(train_op))


# ---- What would lower the peak


def change(estimate, key):
    (found,) = [change for change in estimate.changes if change.config.startswith(key)]
    return found


@pytest.mark.parametrize("stages", [1, 2])
def test_recomputation_is_tried_before_it_is_on(init, stages):
    peaks = []
    for kind in ("", "auto"):
        begin(init, devices=stages, pipeline__num_micro_batch=4 if stages > 1 else 1, gradient_checkpoint__type=kind)
        model = Mlp(stages, layers=16)
        estimate = memory_estimate(model.train_op, model.feed, 1)
        peaks.append(max(device.peak for device in estimate.devices))
        if not kind:
            found = change(estimate, "gradient_checkpoint")
    assert found.peak == pytest.approx(peaks[1], rel=0.05) and peaks[1] < 0.7 * peaks[0]
    assert 0.1 < found.time < 0.4
    assert not [c for c in estimate.changes if c.config.startswith("gradient_checkpoint")]


def test_more_micro_batches_and_1f1b_are_told_for_gpipe(init):
    peaks = []
    for strategy in ("PreferForward", "PreferBackward"):
        begin(init, devices=2, pipeline__num_micro_batch=8, pipeline__strategy=strategy)
        model = Mlp(2, layers=16)
        estimate = memory_estimate(model.train_op, model.feed, 1)
        peaks.append(max(device.peak for device in estimate.devices))
        if strategy == "PreferForward":
            assert not [c for c in estimate.changes if "num_micro_batch" in c.config]
            assert change(estimate, "pipeline.strategy").time == 0
            told = change(estimate, "pipeline.strategy").peak
    assert told == pytest.approx(peaks[1], rel=0.15)
    assert change(estimate, "pipeline.num_micro_batch = 16").peak < peaks[1]


@pytest.mark.long
def test_groups_of_updates_are_told_where_updates_hold_memory(init):
    peaks = []
    for groups in (1, 4):
        begin(init, optimizer__num_apply_group=groups)
        model = Bert(rows=2)
        estimate = memory_estimate(model.train_op, model.feed, THREADS)
        peaks.append(estimate.devices[0].peak)
        if groups == 1:
            told = change(estimate, "optimizer.num_apply_group = 4").peak
    assert told == pytest.approx(peaks[1], rel=0.1) and peaks[1] < 0.9 * peaks[0]


def held_by(init, mode, model, **config):
    """The estimate of a step of a model."""
    begin(init, mode, **config)
    made = model()
    return memory_estimate(made.train_op, made.feed, THREADS)


def test_zero_is_tried_before_it_is_on(init):
    def model():
        return Mlp(layers=8, width=512, rows=2048)

    plain, *parts = (held_by(init, mode, model, devices=2) for mode in ("plain", "v1", "v2"))
    told = [change(plain, "zero.level = " + level) for level in ("v1", "v2")]
    for one, estimate in zip(told, parts):
        assert one.peak == pytest.approx(max(device.peak for device in estimate.devices), rel=0.1)
        assert not [c for c in estimate.changes if c.config.startswith(("zero", "offload"))]
    assert told[0].time < told[1].time and told[0].peak > told[1].peak


def test_offload_is_told_on_gpus_alone(init, monkeypatch):
    def model():
        return Mlp(layers=16, width=512, rows=256)

    assert not [c for c in held_by(init, "plain", model).changes if c.config.startswith("offload")]
    monkeypatch.setattr(cluster, "_local_devices", lambda config: ("GPU", 1))
    told = change(held_by(init, "plain", model), "offload.level = v0")
    found = {device.device: device for device in held_by(init, "plain", model, offload__level="v0").devices}
    assert told.peak == pytest.approx(found["/device:GPU:0"].peak, rel=0.1) and told.time > 0


def test_communicators_of_gpus_keep_memory_for_packs(init, monkeypatch):
    def communication():
        (first, _) = held_by(init, "plain", lambda: Mlp(layers=2), devices=2).devices
        return first.communication

    on_cpus = communication()
    monkeypatch.setattr(cluster, "_local_devices", lambda config: ("GPU", 2))
    monkeypatch.setattr(communicators, "transport_between", lambda device_type, hierarchical: "auto")  # nothing runs
    assert communication() - on_cpus - 2 * NCCL_PACK_BYTES < 100  # two communicators; the sizes of the batches


def test_what_costs_least_is_told_first(init):
    begin(init)
    model = Mlp(layers=16)
    estimate = memory_estimate(model.train_op, model.feed, 1)
    assert [c.config.split(" ")[0] for c in estimate.changes] == [
        "pipeline.num_micro_batch",
        "gradient_checkpoint.type",
    ]
    lines = describe(estimate).splitlines()
    assert lines[1].split()[:3] == ["device", "weights", "slots"]
    assert lines[2].split()[0] == "/device:CPU:0"
    assert "MB (-" in lines[3] and "num_micro_batch = 2" in lines[3]


def test_the_hook_logs_before_the_first_run(init, caplog):
    begin(init)
    model = Mlp(layers=2)
    hook = MemoryEstimateHook()
    with caplog.at_level(logging.INFO, "epl"):
        with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(2):
                session.run(model.train_op, model.feed)
    assert caplog.text.count("Memory of a step") == 1
    assert hook.estimate.devices[0].peak > 0


# ---- Kernels


def tensor(*shape):
    return TensorType(shape, tf.float32)


def test_rows_of_a_tensor_are_an_alias_where_they_are_aligned():
    assert kernels.aliased_input("StridedSlice", 0, [tensor(9, 8)], [tensor(3, 8)]) == 0
    assert kernels.aliased_input("StridedSlice", 0, [tensor(9, 7)], [tensor(3, 7)]) == -1
    assert kernels.aliased_input("StridedSlice", 0, [tensor(9, 8)], [tensor(9, 4)]) == -1
    assert kernels.aliased_input("Unpack", 1, [tensor(9, 8)], [tensor(8)] * 9) == 0


def test_a_sum_over_nothing_is_an_alias():
    assert kernels.aliased_input("Sum", 0, [tensor(9, 8), tensor(0)], [tensor(9, 8)]) == 0
    assert kernels.aliased_input("Sum", 0, [tensor(9, 8), tensor(1)], [tensor(8)]) == -1


def test_gradients_of_a_convolution_unroll_images():
    gradient, weights = tensor(16, 2, 2, 2048), tensor(1, 1, 512, 2048)
    inputs = [tensor(16, 2, 2, 512), tensor(4), gradient]
    assert kernels.temporary_bytes("Conv2DBackpropFilter", inputs, [weights], False, 4) == 65536  # as traced
    inputs = [tensor(4), weights, gradient]
    assert kernels.temporary_bytes("Conv2DBackpropInput", inputs, [tensor(16, 2, 2, 512)], False, 4) == 8192
    assert kernels.temporary_bytes("Conv2DBackpropInput", inputs, [tensor(16, 2, 2, 512)], True, 4) == 0
