"""The cost model: FLOPs against tf.profiler and formulas, shapes, loops, and estimated time against a profile."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs.costs import node_costs
from epl.parallel.costs.shapes import UNKNOWN_DIMENSION
from epl.parallel.sharding.resharding import Resharder, hidden
from epl.planner.calibration.calibrate import calibrate
from epl.planner.machine.presets import DEVICES
from epl.profiler import step_stats
from tests.parallel.partition_models import Cut, cnn, lstm, transformer


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def costs_of(tensor):
    """The view and the costs of what a tensor needs."""
    view = GraphView(tf.get_default_graph())
    return view, node_costs(tf.get_default_graph(), view, view.ancestors([view.index[tensor.op.name]]))


def flops_of(tensor):
    """FLOPs of what a tensor needs."""
    return sum(costs_of(tensor)[1].flops.values())


def flops_by_profiler():
    """FLOPs of the default graph as tf.profiler counts them."""
    options = tf.profiler.ProfileOptionBuilder(tf.profiler.ProfileOptionBuilder.float_operation())
    return tf.profiler.profile(tf.get_default_graph(), options=options.with_empty_output().build()).total_float_ops


def ones(*shape):
    """A placeholder."""
    return tf.placeholder(tf.float32, shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.matmul(ones(8, 16), ones(16, 4)),
        lambda: tf.matmul(ones(16, 8), ones(4, 16), transpose_a=True, transpose_b=True),
        lambda: tf.nn.conv2d(ones(2, 9, 9, 3), ones(3, 3, 3, 8), 2, "SAME"),
        lambda: tf.nn.conv2d(ones(2, 9, 9, 3), ones(3, 5, 3, 8), 1, "VALID"),
        lambda: tf.nn.conv2d_transpose(ones(2, 5, 5, 8), ones(3, 3, 4, 8), [2, 10, 10, 4], 2),
        lambda: tf.nn.depthwise_conv2d(ones(2, 9, 9, 4), ones(3, 3, 4, 2), [1, 1, 1, 1], "SAME"),
        lambda: tf.nn.bias_add(ones(2, 9, 9, 4), ones(4)),
        lambda: tf.nn.max_pool(ones(2, 9, 9, 4), 3, 2, "SAME"),
        lambda: tf.nn.avg_pool(ones(2, 9, 9, 4), 2, 2, "VALID"),
        lambda: ones(4, 7) * ones(7) - ones(4, 7),
        lambda: tf.nn.softmax(ones(4, 7)),
        lambda: tf.add_n([ones(4, 7), ones(4, 7), ones(4, 7)]),
    ],
)
def test_flops_are_those_of_the_profiler(make):
    assert flops_of(make()) == flops_by_profiler() > 0


@pytest.mark.parametrize(
    "make, flops",
    [
        (lambda: tf.matmul(ones(5, 4, 8, 16), ones(5, 4, 16, 2)), 2 * 5 * 4 * 8 * 16 * 2),
        (lambda: tf.matmul(ones(5, 16, 8), ones(5, 16, 2), adjoint_a=True), 2 * 5 * 8 * 16 * 2),
        (lambda: tf.nn.conv3d(ones(1, 4, 4, 4, 2), ones(3, 3, 3, 2, 8), [1] * 5, "SAME"), 2 * 64 * 8 * 27 * 2),
        (lambda: tf.nn.fused_batch_norm(ones(2, 4, 4, 3), ones(3), ones(3))[0], 8 * 96),
        (lambda: tf.reduce_sum(ones(4, 7), 1), 4 * 7),
        (lambda: tf.gather(ones(50, 8), [1, 2, 3]), 0),
    ],
)
def test_flops_that_the_profiler_does_not_know(make, flops):
    assert flops_of(make()) == flops


def test_a_lookup_reads_what_it_picks_and_not_the_table():
    picked = tf.gather(ones(1000, 8), [1, 2, 3])
    view, costs = costs_of(picked)
    assert costs.bytes[view.index[picked.op.name]] == 2 * 3 * 8 * 4


def test_a_reshape_and_a_read_cost_nothing():
    variable = tf.get_variable("v", [4, 4])
    view, costs = costs_of(tf.reshape(variable, [16]))
    assert sum(costs.seconds.values()) == 0 and costs.parameters[view.index["v"]] == 64


def test_a_transpose_that_keeps_the_order_costs_nothing():
    kept, turned = tf.transpose(ones(4, 5), [0, 1]), tf.transpose(ones(4, 5), [1, 0])
    view, costs = costs_of(tf.add(kept, tf.transpose(turned)))
    assert costs.seconds[view.index[kept.op.name]] == 0 < costs.seconds[view.index[turned.op.name]]


def test_a_convolution_of_few_positions_runs_at_a_lower_rate():
    seconds = {}
    for size in (2, 64):
        tf.reset_default_graph()
        loss = tf.reduce_sum(tf.nn.conv2d(ones(4, size, size, 64), tf.get_variable("w", [3, 3, 64, 64]), 1, "SAME"))
        view, costs = costs_of(loss)
        node = view.index["Conv2D"]
        seconds[size] = costs.seconds[node] / costs.flops[node], costs.step_seconds[node] / costs.flops[node]
    # 16 positions and 64 channels: 16 / (16 + 40) of the rate, against 64 / (64 + 40); and the start of each op
    for few, many in zip(seconds[2], seconds[64]):
        assert 2.1 * many < few < 3.5 * many


def test_parameters_of_a_resource_variable_are_counted_once():
    variable = tf.get_variable("v", [10, 10], use_resource=True)
    _, costs = costs_of(variable * 2.0 + tf.matmul(variable, variable))
    assert sum(costs.parameters.values()) == 400


def test_an_open_batch_is_followed_through_reshapes():
    x = tf.placeholder(tf.float32, [None, 6, 10])
    flat = tf.reshape(x, [-1, 10])
    assert flops_of(tf.matmul(flat, ones(10, 3))) == 2 * UNKNOWN_DIMENSION * 6 * 10 * 3


def test_a_shape_that_is_set_counts_where_the_batch_is_open():
    x = tf.placeholder(tf.float32, [None, 8])
    found = tf.py_func(lambda value: value, [x], tf.float32)
    found.set_shape([None, 16])
    view, costs = costs_of(tf.nn.relu(found))
    assert [one.shape for one in costs.types[view.index["PyFunc"]]] == [(None, 16)]


def test_sizes_that_are_set_count_beside_an_open_batch():
    x = tf.placeholder(tf.float32, [None, 6, 10])
    size = tf.placeholder_with_default([-1, 6, 10], [3])  # shape inference does not look into it
    part = tf.slice(x, [0, 0, 0], size)
    part.set_shape([None, 6, 10])
    view, costs = costs_of(tf.nn.relu(part, name="after"))
    assert [one.shape for one in costs.types[view.index["after"]]] == [(None, 6, 10)]


def test_a_placeholder_that_only_hides_a_value_counts_with_its_default():
    x = tf.placeholder(tf.float32, [None, 6, 10])
    part = tf.nn.relu(tf.slice(x, [0, 0, 0], hidden(tf.constant([4, 3, 10]), 0)), name="part")
    view, costs = costs_of(part)
    assert [one.shape for one in costs.types[view.index["part"]]] == [(4, 3, 10)]


def test_what_differs_between_ranks_counts_as_on_rank_0():
    x = tf.placeholder(tf.float32, [None, 6, 10])
    resharder = Resharder(SimpleNamespace(world_size=2), 1, "a")
    part = tf.nn.relu(tf.slice(x, [0, 0, 0], resharder.own([[4, 3, 10], [0, 6, 10]], tf.int32)), name="part")
    view, costs = costs_of(part)
    assert [one.shape for one in costs.types[view.index["part"]]] == [(4, 3, 10)]


def test_an_open_batch_of_an_iterator_is_followed():
    data = tf.data.Dataset.from_tensors(np.ones([10], "f")).repeat().batch(4)
    x = tf.data.make_initializable_iterator(data).get_next()
    _, costs = costs_of(tf.matmul(x, ones(10, 3)))
    assert sum(costs.flops.values()) == 2 * UNKNOWN_DIMENSION * 10 * 3
    assert "IteratorGetNext leaves open" in costs.notes[0]


def test_a_model_for_another_batch_keeps_its_shapes():
    x = tf.placeholder(tf.float32, [None, 10], "x")
    _, costs = costs_of(tf.reshape(x, [7, 10]) + tf.zeros([7, 10]))
    assert f"x does not fit the model with {UNKNOWN_DIMENSION}" in costs.notes[0]
    assert sum(costs.flops.values()) == 70


def test_estimating_leaves_the_graph_alone():
    loss = tf.reduce_sum(tf.placeholder(tf.float32, [None, 10]) * 2.0)
    before = tf.get_default_graph().as_graph_def()
    view, _ = costs_of(loss)
    assert tf.get_default_graph().as_graph_def() == before
    assert [node.to_proto() for node in view.nodes] == list(before.node)


@pytest.mark.parametrize("steps", [3, 12])
def test_the_body_of_a_recurrent_layer_counts_once_per_step(steps):
    loss = lstm(steps=steps, width=16)
    view, costs = costs_of(loss)
    (inner,) = [n for n in costs.flops if view.types[n] == "MatMul" and "while" in view.nodes[n].name]
    assert costs.flops[inner] == steps * 2 * 4 * (64 + 16) * 64 and not costs.notes


@pytest.mark.parametrize(
    "condition, start, step, runs",
    [
        (lambda i: i < 10, 0, 1, 10),
        (lambda i: i <= 10, 0, 2, 6),
        (lambda i: 10 > i, 4, 4, 2),
        (lambda i: i < tf.minimum(7, tf.random_uniform([], 0, 9, tf.int32)), 0, 1, 7),
        (lambda i: tf.logical_and(i < 10, tf.random_uniform([]) < 2.0), 1, 1, 9),
    ],
)
def test_the_runs_of_a_loop_are_read_from_its_condition(condition, start, step, runs):
    x = ones(4, 4)
    _, y = tf.while_loop(lambda i, y: condition(i), lambda i, y: (i + step, tf.matmul(y, x)), [tf.constant(start), x])
    view, costs = costs_of(y)
    (inner,) = [node for node in costs.flops if view.types[node] == "MatMul"]
    assert costs.flops[inner] == runs * 2 * 4 * 4 * 4


def test_nested_loops_multiply():
    x = ones(4, 4)

    def inner(y):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.matmul(y, x)), [0, y])[1]

    y = tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, inner(y)), [0, x])[1]
    view, costs = costs_of(y)
    assert [costs.flops[n] for n in costs.flops if view.types[n] == "MatMul"] == [15 * 128]


@pytest.mark.parametrize("counts", [True, False])
def test_the_gradient_of_a_loop_runs_as_often(counts):
    x, w = ones(4, 4), tf.get_variable("w", [4, 4])
    turns = 35 if counts else tf.random_uniform([], 0, 9, tf.int32)
    y = tf.while_loop(lambda i, _: i < turns, lambda i, y: (i + 1, tf.matmul(y, w)), [0, x])[1]
    (gradient,) = tf.gradients(y, [w])
    view, costs = costs_of(gradient)
    # One in the forward pass, and two in the backward pass.
    assert [costs.flops[n] for n in costs.flops if view.types[n] == "MatMul"] == [(35 if counts else 1) * 128] * 3
    assert [note[:5] for note in costs.notes if "iterations" in note] == ([] if counts else ["loops"])


def test_a_loop_of_unknown_length_counts_once_and_is_named():
    x = ones(4, 4)
    y = tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: tf.matmul(y, x), [x])
    _, costs = costs_of(y)
    assert any("while_context: the number of its iterations is not known" in note for note in costs.notes)


def test_unknown_op_types_are_named():
    _, costs = costs_of(tf.linalg.inv(ones(4, 4)))
    assert any("MatrixInverse" in note for note in costs.notes)


def test_the_backward_pass_counts_where_there_is_one():
    x = ones(64, 64)
    fixed = tf.matmul(x, x)
    first = tf.matmul(fixed, tf.get_variable("w", [64, 64]))
    second = tf.matmul(first, tf.get_variable("v", [64, 64]))
    view, costs = costs_of(second)
    steps = [costs.step_seconds[view.index[one.op.name]] for one in (fixed, first, second)]
    once = costs.seconds[view.index[fixed.op.name]]
    assert steps == [once, pytest.approx(2 * once), pytest.approx(3 * once)]  # the first needs no gradient by its data


# ---- estimated time against a profile

# Largest difference between the estimated and the measured share of a stage.
TOLERANCE = 0.1


@pytest.fixture(scope="module")
def core():
    """A core of this machine; the preset is of one CPU, and some kinds of ops are ten times as fast on another."""
    return calibrate("here", 2, 1).devices[0]


def mlp():
    """Dense layers of different sizes, with different activations."""
    x = tf.placeholder(tf.float32, [64, 256])
    for i, width in enumerate([512, 512, 1024, 256, 1024, 512, 64, 256]):
        x = tf.layers.dense(x, width, tf.nn.relu if i % 2 else tf.tanh)
    return tf.reduce_mean(tf.square(x))


def measured_seconds(loss, runs=12):
    """Op name -> the least time of a forward pass on one thread, by RunMetadata."""
    inputs = [op.outputs[0] for op in tf.get_default_graph().get_operations() if op.type == "Placeholder"]
    feed = {x: np.random.randint(0, 2, x.shape).astype(x.dtype.as_numpy_dtype) for x in inputs}
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    best = {}
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(runs):
            metadata = step_stats.run(session, loss, feed)[1]
            sums = {}
            for _, stats in step_stats.node_stats(metadata):
                nanoseconds = stats.op_end_rel_nanos - stats.op_start_rel_nanos
                sums[stats.node_name] = sums.get(stats.node_name, 0.0) + nanoseconds * 1e-9
            for name, seconds in sums.items():
                best[name] = min(seconds, best.get(name, seconds))
    return best


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "make",
    [mlp, lambda: transformer(6, width=128, vocabulary=20000, batch=16), cnn, lambda: lstm(steps=32, width=64)],
    ids=["mlp", "transformer", "cnn", "lstm"],
)
def test_the_estimated_shares_of_stages_are_near_the_measured_ones(make, core, monkeypatch):
    monkeypatch.setitem(DEVICES, "cpu", core)
    loss = make()
    cut = Cut(loss, 2)
    view, costs = costs_of(loss)
    measured = measured_seconds(loss)
    shares = []
    for seconds in (lambda n: measured.get(view.nodes[n].name, 0.0), lambda n: costs.seconds[n]):
        sums = [sum(seconds(n) for n, stage in cut.found.of_node.items() if stage == k) for k in range(2)]
        shares.append(sums[0] / sum(sums))
    print("measured {:.3f} estimated {:.3f}".format(*shares))
    assert abs(shares[0] - shares[1]) < TOLERANCE
