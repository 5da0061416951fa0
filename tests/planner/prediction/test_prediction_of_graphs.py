"""Predictions of recorded models against what EPL makes of their graphs: buckets, gathers, memory of the estimate."""

from collections import Counter

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.sections import RecomputeSection, ZeroSection
from epl.parallel.strategy import record
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.prediction.prediction import predict, prepare
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.prediction.recorded_models import (
    LAYERS,
    MOMENTUM,
    ROWS,
    WIDTH,
    mean_square,
    on_cpus,
    recorded,
)
from tests.profiler.estimate.memory_models import Resnet

NAMES_OF_COLLECTIVES = {
    "EplAllGather": "all-gather",
    "EplAllReduce": "all-reduce",
    "EplAllToAll": "all-to-all",
    "EplAllToAllV": "reduce-scatter",  # and a sum: where ranks have any numbers of rows
    "EplReduceScatter": "reduce-scatter",
}


@pytest.mark.parametrize(
    "kind, devices, settings, tolerance",
    [
        ("replicas", 1, {}, 0.1),
        ("replicas", 2, {}, 0.1),
        ("replicas", 2, {"zero__level": "v1"}, 0.1),
        ("replicas", 2, {"zero__level": "v2"}, 0.1),
        ("replicas", 2, {"gradient_checkpoint__type": "auto"}, 0.15),
        ("stages", 2, {"pipeline__num_micro_batch": 2}, 0.15),
        ("split", 2, {}, 0.25),
        ("replicas", 2, {"gradient_checkpoint__type": "collection"}, 0.15),
        ("replicas", 1, {"amp__level": "O1", "amp__loss_scale": 128.0}, 0.1),
        ("replicas", 2, {"amp__level": "O1"}, 0.1),
        ("stages", 2, {"amp__level": "O1", "pipeline__num_micro_batch": 2}, 0.15),
        ("split", 2, {"amp__level": "O1"}, 0.25),
    ],
)
def test_a_prediction_agrees_with_the_rewritten_graph(init, kind, devices, settings, tolerance):  # noqa: F811
    init(devices, annotate=False, **settings)
    fed = ROWS if kind == "stages" else ROWS * devices
    graph, planned, costs, estimate = recorded(mean_square(kind), fed, MOMENTUM)
    found = predict(planned, costs, on_cpus(devices), fed)
    peaks = {device: one.memory.peak for one in found.devices for device in one.devices}
    assert [peaks[number] for number in range(devices)] == pytest.approx(
        [one.peak for one in estimate.devices], rel=tolerance
    )  # fmt: skip
    assert sum(one.by_role["weights"] for one in [each.memory for each in found.devices]) == pytest.approx(
        sum(one.weights for one in estimate.devices) / (1 if kind == "stages" else devices), rel=0.02
    )
    plan = graph.rewritten.plan
    transfers = sum(len(group.transfers) for group in plan.groups)
    reductions = [one for one in found.traffic if one.decision.startswith("gradients")]
    assert sum(one.times for one in reductions) == (transfers if devices > 1 and kind != "stages" else 0)
    if any(isinstance(one, ZeroSection) for one in plan.features):
        assert "all-gather" in {one.collective for one in found.traffic}


@pytest.mark.parametrize("kind, micro_batches", [("apart", 1), ("apart", 2), ("inside", 1), ("inside", 2)])
def test_stages_with_splits_agree_with_the_rewritten_graph(init, kind, micro_batches):  # noqa: F811
    init(4, annotate=False, pipeline__num_micro_batch=micro_batches)
    graph, planned, costs, estimate = recorded(mean_square(kind), 2 * ROWS, MOMENTUM)
    found = predict(planned, costs, on_cpus(4), 2 * ROWS)
    peaks = {device: one.memory.peak for one in found.devices for device in one.devices}
    weights = {device: one.memory.by_role["weights"] for one in found.devices for device in one.devices}
    assert [weights[at] for at in range(4)] == pytest.approx([one.weights for one in estimate.devices], rel=0.02)
    # Which of the last ops runs first, and so whether one more gradient of 0.26 MB is there, differs between runs.
    assert [peaks[at] for at in range(4)] == pytest.approx([one.peak for one in estimate.devices], rel=0.1, abs=0.4e6)
    transfers = Counter()
    for group in graph.rewritten.plan.groups:
        transfers[f"gradients of stage {group.stage}"] += len(group.transfers)
    assert transfers == {one.decision: one.times for one in found.traffic if one.decision.startswith("gradients")}
    exchanged = [told.collective for told in found.lowered.ops if told.decision == "split" and told.bytes > 4 * WIDTH]
    assert Counter(exchanged) == exchanges_of_rank_0(graph)


def head_of_classes(x):
    """Classes are cut: the maximum and two sums of each row are all-reduced."""
    with epl.split(2):
        logits = tf.layers.dense(x, 4096, use_bias=False)
        labels = tf.cast(tf.argmax(x, 1), tf.int32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def parts_of_pictures(x):
    """The height of pictures is cut, as no number of rows is divided: halos go to the neighbour, and back."""
    pictures = tf.tile(tf.reshape(x[:1], [1, 16, 16, 1]), [1, 16, 16, 8])
    with epl.split(2):
        for _ in range(2):
            pictures = tf.layers.conv2d(pictures, 8, 3, padding="same", use_bias=False)
        return tf.reduce_mean(tf.square(pictures))


def test_a_branch_reads_what_was_gathered_for_it(init):  # noqa: F811
    """TensorFlow's conditionals have ops in an order in which readers may come before what they read."""

    def branch(x):
        with epl.split(2, choices={"d/MatMul": "shard(1)"}):
            hidden = tf.layers.dense(x, 512, name="d")
            kernel = tf.get_variable("w", [512, 512])
            taken = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(hidden, kernel), lambda: tf.zeros_like(hidden))
            return tf.reduce_mean(tf.square(taken))

    init(2, annotate=False)
    _, planned, costs, _ = recorded(branch, 2 * ROWS, MOMENTUM)
    gathered = [
        one
        for one in prepare(planned, costs, on_cpus(2), 2 * ROWS).split.exchanges
        if costs.ops[one.source[0]].name.startswith("d/") and one.collective == "all-gather" and not one.is_backward
    ]
    assert gathered and all(one.is_kept for one in gathered)


@pytest.mark.parametrize(
    "build, built, count", [(head_of_classes, "EplAllReduce", 2), (parts_of_pictures, "EplAllToAllV", 3)]
)
def test_exchanges_inside_of_ops_are_those_of_the_rewritten_graph(init, build, built, count):  # noqa: F811
    init(2, annotate=False)
    graph, planned, costs, _ = recorded(build, 2 * ROWS, MOMENTUM)
    found = predict(planned, costs, on_cpus(2), 2 * ROWS)
    exchanged = Counter(told.name for told in found.lowered.ops if "inside" in told.name)
    # Of pictures that need no gradients, no halos come back.
    assert sum(exchanged.values()) == count, exchanged
    of_rank = [op for op in graph.tf_graph.get_operations() if not op.name.startswith(("EPL_REPLICA_", "EPL_PLAN/"))]
    assert sum(op.type == built for op in of_rank) == count


def test_a_part_with_its_halos_is_held_as_it_is_built(init):  # noqa: F811
    init(2, annotate=False)
    graph, planned, costs, _ = recorded(parts_of_pictures, 2 * ROWS, MOMENTUM)
    found = [
        one
        for one in prepare(planned, costs, on_cpus(2), 2 * ROWS).split.exchanges
        if one.what.endswith("inside") and not one.is_backward
    ]
    built = [op for op in graph.tf_graph.get_operations() if op.type == "Conv2D" and "EPL_SPLIT/" in op.name]
    assert len(built) == 2
    assert {tuple(op.inputs[0].shape.as_list()[1:]) for op in built} == {(128 + 2, 256 + 2, 8)}
    assert len(found) == 2 and all(one.is_kept for one in found)
    for one in found:
        assert one.received[0] * costs.exchanged_bytes(2 * ROWS, *one.source) == 130 * 258 * 8 * 4


def exchanges_of_rank_0(graph):
    """By collective, how many exchanges of matrices of the split the first rank has in a step."""
    found = Counter()
    for op in graph.tf_graph.get_operations():
        if op.type in NAMES_OF_COLLECTIVES and not op.name.startswith(("EPL_REPLICA_", "EPL_PLAN/")):
            tensor = op.inputs[COLLECTIVE_OP_TYPES[op.type].first_tensor]
            if tensor.dtype.is_floating and tensor.shape.ndims == 2:
                found[NAMES_OF_COLLECTIVES[op.type]] += 1
    return found


@pytest.mark.parametrize("kind", ["auto", "collection"])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_same_ops_are_computed_twice_as_in_the_rewritten_graph(init, stages, kind):  # noqa: F811
    init(2, annotate=False, gradient_checkpoint__type=kind)

    def dropped(hidden):
        for _ in range(stages):
            with epl.replicate(1):
                for layer in range(LAYERS):
                    if layer % 2:
                        tf.add_to_collection("checkpoints", hidden)
                    hidden = tf.layers.dropout(tf.layers.dense(hidden, WIDTH, tf.tanh), 0.1, training=True)
                loss = tf.reduce_mean(tf.square(hidden))
        return loss

    graph, planned, costs, _ = recorded(dropped, ROWS)
    step = prepare(planned, costs, on_cpus(2), ROWS)
    assert len(step.plans.cuts) == stages
    predicted = {
        costs.ops[op].name
        for cuts, stage in zip(step.plans.cuts, step.plans.stages[0])
        for op, again in zip(cuts.ops, stage.work.recomputed)
        if again
    }
    (section,) = [one for one in graph.rewritten.plan.features if isinstance(one, RecomputeSection)]
    scopes = [f"EPL_RECOMPUTE/stage{one.stage}_segment{one.segment}/" for one in section.segments]
    assert predicted == {op.name for op in costs.ops if any(has(graph.tf_graph, scope + op.name) for scope in scopes)}
    types = {op.type for op in costs.ops if op.name in predicted}
    assert "MatMul" in types and types & {"Cast", "SelectV2"}  # a mask is cast, or chooses values


def has(tf_graph, name):
    """Whether a graph has an op of this name."""
    try:
        return bool(tf_graph.get_operation_by_name(name))
    except KeyError:
        return False


def test_weights_of_a_block_that_several_segments_use_come_for_each(init):  # noqa: F811
    init(2, annotate=False, zero__level="v2", gradient_checkpoint__type="auto")
    with record.recording():
        Resnet(blocks=(1, 2, 1, 1), size=32)
    graph = Graph.of(tf.get_default_graph())
    costs = GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass), slots=MOMENTUM)
    found = predict(record.strategy_of(graph), costs, on_cpus(2), 16)
    assert sum(one.times for one in found.traffic if one.decision == "weights (ZeRO)") > 0
