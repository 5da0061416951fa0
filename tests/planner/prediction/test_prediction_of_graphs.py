"""Predictions of recorded models against what EPL makes of their graphs: buckets, gathers, memory of the estimate."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.sections import RecomputeSection, ZeroSection
from epl.parallel.strategy import record
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.machine import presets
from epl.planner.prediction.prediction import predict, prepare
from epl.profiler.memory_estimate import memory_estimate
from tests.parallel.in_process import init, rewritten  # noqa: F401
from tests.planner.prediction.hand_made import machine

WIDTH, LAYERS, ROWS = 256, 6, 64  # rows of each device


def dense(hidden, layers):
    for _ in range(layers):
        hidden = tf.layers.dense(hidden, WIDTH, tf.tanh)
        tf.add_to_collection("checkpoints", hidden)
    return hidden


def build(kind, x):
    """The loss of a model; "stages": two of them."""
    if kind == "split":
        with epl.split(2):
            return tf.reduce_mean(tf.square(dense(x, LAYERS)))
    with epl.replicate(1):
        hidden = dense(x, LAYERS // 2)
        if kind == "replicas":
            return tf.reduce_mean(tf.square(dense(hidden, LAYERS // 2)))
    with epl.replicate(1):
        return tf.reduce_mean(tf.square(dense(hidden, LAYERS // 2)))


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
    with record.recording():
        x = tf.placeholder(tf.float32, [None, WIDTH], "x")
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(build(kind, x))
        fed = ROWS if kind == "stages" else ROWS * devices
        estimate = memory_estimate(train, {x: tf.TensorShape([fed, WIDTH])}, threads=2, advise=False)
    graph = Graph.of(tf.get_default_graph())
    costs = GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass))
    costs.slots = {"Momentum": 1.0}
    # Links without limits: the estimate does not let collectives wait for each other.
    where = machine([["cpu"] * devices], [presets.DEVICES["cpu"]], bandwidth=1e15)
    found = predict(record.strategy_of(graph), costs, where, fed)
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


@pytest.mark.parametrize("kind", ["auto", "collection"])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_same_ops_are_computed_twice_as_in_the_rewritten_graph(init, stages, kind):  # noqa: F811
    init(2, annotate=False, gradient_checkpoint__type=kind)
    hidden = x = tf.placeholder(tf.float32, [None, WIDTH], "x")
    for _ in range(stages):
        with epl.replicate(1):
            for layer in range(LAYERS):
                if layer % 2:
                    tf.add_to_collection("checkpoints", hidden)
                hidden = tf.layers.dropout(tf.layers.dense(hidden, WIDTH, tf.tanh), 0.1, training=True)
            loss = tf.reduce_mean(tf.square(hidden))
    with record.recording():
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        rewritten()
    graph = Graph.of(x.graph)
    costs = GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass))
    step = prepare(record.strategy_of(graph), costs, machine([["cpu"] * 2], [presets.DEVICES["cpu"]]), ROWS)
    assert len(step.plans.cuts) == stages
    predicted = {
        costs.ops[op].name
        for cuts, stage in zip(step.plans.cuts, step.plans.stages[0])
        for op, again in zip(cuts.ops, stage.work.recomputed)
        if again
    }
    (section,) = [one for one in graph.rewritten.plan.features if isinstance(one, RecomputeSection)]
    scopes = [f"EPL_RECOMPUTE/stage{one.stage}_segment{one.segment}/" for one in section.segments]
    assert predicted == {op.name for op in costs.ops if any(has(x.graph, scope + op.name) for scope in scopes)}
    assert {"MatMul", "Cast"} < {op.type for op in costs.ops if op.name in predicted}


def has(tf_graph, name):
    """Whether a graph has an op of this name."""
    try:
        return bool(tf_graph.get_operation_by_name(name))
    except KeyError:
        return False
