"""FLOPs of TaskGraphs, which are counted in the graph that runs, are those of the simulation."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ir.taskgraph import Phase
from epl.parallel.strategy import record
from epl.planner.report import job_report, simulated_plan
from epl.planner.search.planned_model import planned_model
from epl.profiler.explanation import explanation
from tests.parallel.in_process import init, rewritten  # noqa: F401

ROWS, TURNS = 32, 35


def _looped(x):
    """A first layer, then a layer that is computed again and again."""
    hidden = tf.layers.dense(x, 64, name="first")
    kernel = tf.get_variable("kernel", [64, 64])
    return tf.while_loop(lambda i, _: i < TURNS, lambda i, y: (i + 1, tf.tanh(tf.matmul(y, kernel))), [0, hidden])[1]


def _convolutions(x):
    """Two convolutions, of which the first needs no gradient of its input."""
    images = tf.reshape(x, [-1, 8, 8, 3])
    return tf.layers.conv2d(tf.layers.conv2d(images, 16, 3, name="first"), 16, 3, name="second")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("model", [_looped, _convolutions])
def test_flops_are_those_of_the_simulation(init, model, devices):  # noqa: F811
    init(devices, annotate=False, auto__machine=f"{devices}*v100-16")
    x = tf.placeholder(tf.float32, [None, 192], "x")
    with epl.replicate(1):
        loss = tf.reduce_mean(tf.square(model(x)))
    with record.recording():
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        (one,) = explanation(train_op, {x: tf.TensorShape([devices * ROWS, 192])}).taskgraphs
    graph = Graph.get()
    found = planned_model(graph, graph.state_of(record.ForwardPass))
    costs = found.costs.at(ROWS, found.machine.devices[0])
    assert one.flops[Phase.FORWARD] == pytest.approx(sum(costs.forward_flops), rel=0.02)
    assert one.flops[Phase.BACKWARD] == pytest.approx(sum(costs.backward_flops), rel=0.05)


@pytest.mark.parametrize("rows", [64, 256])
def test_the_rows_that_are_asked_for_count(init, rows):  # noqa: F811
    init(2, annotate=False, auto__machine="2*v100-16", auto__rows=rows)
    x = tf.placeholder(tf.float32, [None, 192], "x")
    with epl.replicate(1):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 64)))
    with record.recording():
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        rewritten()
    graph = Graph.get()
    text = job_report.describe_job(graph, simulated_plan.simulate_plan(graph, record.strategy_of(graph)))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  0  replicate(1)")]
    assert float(row[-3]) == pytest.approx(2 * rows / 2 * 192 * 64 / 1e9, rel=0.05)
    assert "count as 32" not in text
