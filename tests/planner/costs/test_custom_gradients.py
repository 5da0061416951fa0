"""Costs of functions with a gradient of their own (`tf.custom_gradient`)."""

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.strategy import record
from epl.parallel.strategy.forward import forward_ops
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.machine.presets import DEVICES
from tests.parallel.in_process import init  # noqa: F401

CPU = DEVICES["cpu"]
ROWS, WIDTH = 16, 64


@tf.custom_gradient
def clipped(x):
    """Three elementwise ops forward; backward one, which reads x alone."""
    return tf.exp(tf.sin(tf.cos(x))), lambda dy: dy * x


@tf.custom_gradient
def broken(x):
    def gradient(dy):
        raise ValueError("not now")

    return tf.exp(x), gradient


@tf.custom_gradient
def with_a_variable(x):
    return tf.exp(x), lambda dy: dy * tf.Variable(1.0, use_resource=True)


def costs_of(function):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, WIDTH])
        hidden = tf.matmul(x, tf.get_variable("w", [WIDTH, WIDTH]))
        loss = tf.reduce_sum(function(hidden))
        ops = len(graph.get_operations())
        view = GraphView(graph)
        costs = GraphCosts(graph, view, list(forward_ops(graph, view, loss)))
        assert len(graph.get_operations()) == ops
    found = costs.at(ROWS, CPU)
    return costs, {op.type: at for at, op in enumerate(costs.ops)}, found


def test_the_gradient_is_that_of_the_script():
    costs, number, found = costs_of(clipped)
    assert [found.backward_flops[number[one]] for one in ("Exp", "Sin", "Cos")] == [0, 0, 0]
    assert found.backward_flops[number["IdentityN"]] == ROWS * WIDTH  # one product
    assert found.backward_flops[number["MatMul"]] == 2.0 * ROWS * WIDTH * WIDTH
    kept = [costs.ops[at].type for at, size in enumerate(found.kept_bytes) if size]
    assert kept == ["Placeholder", "MatMul"]
    assert not [note for note in costs.notes if "gradient functions" in note]


def test_a_gradient_that_cannot_be_called_counts_as_that_of_what_it_wraps():
    costs, number, found = costs_of(broken)
    assert found.backward_flops[number["Exp"]] > 0 and found.backward_flops[number["IdentityN"]] == 0
    (note,) = [note for note in costs.notes if "gradient functions" in note]
    assert "IdentityN" in note


def test_a_gradient_that_computes_again_counts_in_an_annotated_model(init):  # noqa: F811
    @tf.custom_gradient
    def layer(x):
        def gradient(dy):
            again = tf.tanh(tf.exp(x))
            return tf.gradients(again, x, dy)

        return tf.tanh(tf.exp(x)), gradient

    init(1)
    x = tf.placeholder(tf.float32, [None, WIDTH])
    weight = tf.get_variable("w", [WIDTH, WIDTH])
    loss = tf.reduce_sum(layer(tf.matmul(x, weight)))
    with record.recording():
        tf.gradients(loss, [weight])
    graph = Graph.of(x.graph)
    calls = len(graph.gradient_calls)
    costs = GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass))
    found, number = costs.at(ROWS, CPU), [op.type for op in costs.ops].index("IdentityN")
    assert not [note for note in costs.notes if "gradient functions" in note]
    assert found.backward_flops[number] >= 4 * ROWS * WIDTH and len(graph.gradient_calls) == calls


def test_without_one_nothing_changes():
    costs, number, found = costs_of(tf.exp)
    assert found.backward_flops[number["Exp"]] > 0 and "IdentityN" not in number


def test_a_gradient_function_that_creates_a_variable_is_not_called():
    """`costs_of` sees that the graph of the script is as before."""
    costs, _, _ = costs_of(with_a_variable)
    assert "cannot be called by themselves" in "".join(costs.notes)
