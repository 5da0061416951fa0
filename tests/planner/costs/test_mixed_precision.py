"""Costs with amp.level: what runs and is kept in half precision, against the ops that EPL and tf.gradients build."""

import collections

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.dataflow import SHAPE_OPS
from epl.ir.graph import Graph
from epl.parallel.costs.ops import kind_of
from epl.parallel.strategy import record
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.machine.op_kinds import Kind
from epl.planner.machine.presets import DEVICES
from tests.parallel.in_process import init  # noqa: F401

V100 = DEVICES["v100-32"]
ROWS = 8


def dense(x):
    hidden = tf.layers.dense(x, 64, tf.tanh)
    return tf.layers.dense(hidden, 32)


def shared(x):
    """A product of float32, which two products take, then a softmax, which stays float32, and a product of it."""
    scaled = tf.exp(x)
    hidden = tf.layers.dense(scaled, 16) + tf.layers.dense(scaled, 16)
    return tf.layers.dense(tf.nn.softmax(hidden), 8)


def pictures(x):
    hidden = tf.layers.conv2d(tf.reshape(x, [-1, 4, 4, 4]), 8, 3, activation=tf.nn.relu)
    return tf.layers.dense(tf.layers.flatten(hidden), 8)


def build(model, init, **settings):  # noqa: F811
    """The costs of a model with open rows, and its graph after tf.gradients."""
    init(1, **settings)
    x = tf.placeholder(tf.float32, [None, 64])
    loss = tf.reduce_mean(tf.square(model(x)))
    with record.recording():
        made = tf.gradients(loss, tf.trainable_variables())
    graph = Graph.of(x.graph)
    return GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass)), [loss] + made


def needed(tensors):
    """The ops that some tensors need, by data; TensorFlow knows shapes before the step."""
    found, waiting = set(), [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs if op.type not in SHAPE_OPS]
    return found


def is_of_shape(op):
    """Whether an op computes with shapes; the number of a mean's elements is converted from one."""
    return any(tensor.dtype in (tf.int32, tf.int64, tf.bool) for tensor in [op.outputs[0], *op.inputs[:1]])


@pytest.mark.parametrize("model", [dense, shared, pictures])
def test_the_ops_are_those_of_the_converted_graph(init, model):  # noqa: F811
    costs, tensors = build(model, init, amp__level="O1", amp__loss_scale=1.0)
    real = collections.Counter(
        (op.type, op.outputs[0].dtype.name)
        for op in needed(tensors)
        if kind_of(op.type) != Kind.FREE and not is_of_shape(op)
    )
    found = collections.Counter()
    for number in costs._op_of:
        one = costs._different[number]
        for run in (*one.before[0], *one.forward[0], *one.backward[0], *one.sums[0]):
            if run.outputs[0].dtype not in (tf.int32, tf.int64, tf.bool):
                found[run.node.op, run.outputs[0].dtype.name] += 1
    for kind in ("MatMul", "Conv2D", "Conv2DBackpropFilter", "BiasAdd", "Tanh", "TanhGrad", "ReluGrad", "Softmax"):
        for dtype in ("float16", "float32"):
            assert found[kind, dtype] == real[kind, dtype], (kind, dtype)
    assert found["MatMul", "float16"] and not found["MatMul", "float32"]
    for dtype in ("float16", "float32"):
        assert found["Cast", dtype] == real["Cast", dtype], dtype


def test_what_the_backward_pass_reads_is_kept_in_half_precision(init):  # noqa: F811
    plain, _ = build(dense, init)
    half, _ = build(dense, init, amp__level="O1")
    kept = [
        {op.name: size for op, size in zip(costs.ops, costs.at(ROWS, V100).kept_bytes) if size}
        for costs in (plain, half)
    ]
    # Besides, x in float16 for the first product: it is there as float32 as well.
    assert kept[1]["dense/Tanh"] == kept[0]["dense/Tanh"] / 2 == ROWS * 64 * 2
    assert kept[1]["dense/MatMul"] == ROWS * 64 * 2 and "dense/MatMul" not in kept[0]
    assert "Placeholder" in kept[0] and "Placeholder" not in kept[1]


def test_rates_are_those_of_half_precision(init):  # noqa: F811
    seconds = []
    for settings in ({}, {"amp__level": "O1"}):
        costs, _ = build(lambda x: tf.matmul(x, tf.get_variable("w", [64, 4096])), init, **settings)
        device = V100._replace(launch_overhead=0.0, bandwidth=V100.bandwidth._replace(peak=1e30))
        number = [op.type for op in costs.ops].index("MatMul")
        seconds.append(costs.at(4096, device).forward[number])
    rates = {rate.dtype: rate.flops.reached for rate in V100.rates if rate.kind == "contraction"}
    assert seconds[0] / seconds[1] == pytest.approx(rates["float16"] / rates["float32"], rel=1e-3)


def test_a_note_says_how_many_ops(init):  # noqa: F811
    costs, _ = build(dense, init, amp__level="O1")
    (note,) = [note for note in costs.notes if "amp.level" in note]
    assert "ops compute in float16" in note and "CPU" in note
    assert not [note for note in build(dense, init)[0].notes if "amp.level" in note]


def test_two_types_of_a_tensor_are_sent_to_another_stage(init):  # noqa: F811
    """The output of a softmax goes to a product, in float16, and to an Exp, in float32."""

    def model(x):
        hidden = tf.nn.softmax(tf.layers.dense(x, 16))
        return tf.layers.dense(hidden, 16) + tf.exp(hidden)

    costs, _ = build(model, init, amp__level="O1")
    names = [op.name for op in costs.ops]
    sizes = {
        costs.ops[op].type: costs.taken_bytes(ROWS, op, at)
        for op in range(len(names))
        for at, (producer, _) in enumerate(costs.ops[op].inputs)
        if names[producer] == "Softmax"
    }
    assert sizes == {"MatMul": ROWS * 16 * 2, "Exp": ROWS * 16 * 4}
    product = names.index("dense/MatMul")
    assert costs.tensor_bytes(ROWS, product, 0) == ROWS * 16 * 2
    assert costs.exchanged_bytes(ROWS, product, 0) == ROWS * 16 * 4
