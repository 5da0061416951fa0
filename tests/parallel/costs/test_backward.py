"""The backward pass of each op by itself: together they are what tf.gradients builds, and they keep what it reads."""

import collections

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs import backward, costs
from epl.parallel.costs.forward_nodes import read_nodes
from epl.parallel.costs.functions import FunctionLibrary
from epl.parallel.costs.op_work import find_works
from epl.parallel.costs.shapes import output_types
from epl.planner.machine.op_kinds import Kind
from tests.parallel.partition_models import cnn, lstm, tokens, transformer


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def mlp():
    x = tf.placeholder(tf.float32, [64, 16])
    for number, width in enumerate([32, 8, 24]):
        x = tf.layers.dense(x, width, [tf.tanh, tf.nn.relu, tf.nn.softplus][number])
    return tf.reduce_mean(tf.square(x)) + 0.1 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])


def pictures():
    """Strides, a depthwise convolution, pooling, a join and a cut."""
    x = tf.layers.conv2d(tf.placeholder(tf.float32, [2, 16, 16, 3]), 8, 3, 2, padding="same")
    kernel = tf.get_variable("depthwise", [3, 3, 8, 2])
    y = tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME")
    joined = tf.concat([tf.nn.max_pool(y, 2, 2, "SAME"), tf.nn.avg_pool(x, 2, 2, "SAME")], 3)
    one, two = tf.split(tf.pad(joined, [[0, 0], [1, 1], [1, 1], [0, 0]]), 2, 3)
    return tf.reduce_sum(tf.transpose(one, [0, 3, 1, 2])) + tf.reduce_max(two * tf.sigmoid(two))


def words(resource):
    ids, labels = tokens()
    table = tf.get_variable("table", [50, 12], use_resource=resource)
    x = tf.nn.embedding_lookup(table, ids)
    x = tf.nn.leaky_relu(tf.reshape(x, [8, -1])[:, 4:] ** 2 / 3.0)
    logits = tf.layers.dense(x, 9, use_bias=False)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=tf.one_hot(labels, 9), logits=logits))


def by_kind(runs):
    """Kind -> FLOPs and bytes of runs."""
    sums = collections.Counter()
    for run in runs:
        cost = run.cost()
        sums[cost.kind] += cost.flops
        sums[cost.kind + " bytes"] += cost.bytes
    return sums


def works_of(view, nodes, starts=None):
    """The nodes, and what their ops compute."""
    types, _ = output_types(tf.get_default_graph(), view, nodes)
    read = read_nodes(view, types, nodes, starts).of_node
    return read, find_works(costs.signatures_of(read), FunctionLibrary(view.graph_def.library))


def estimated(loss):
    """The backward ops of the default graph, op by op."""
    view = GraphView(tf.get_default_graph())
    read, works = works_of(view, view.ancestors([view.index[loss.op.name]]))
    assert all(work.is_known for work in works.values())
    runs = [run for one in read.values() if one.signature is not None for run in works[one.signature].backward]
    return by_kind(runs + [backward.addition(*each) for one in read.values() for each in one.sums])


def built(loss):
    """The ops that tf.gradients adds and that the gradients of variables need."""
    tf_graph = tf.get_default_graph()
    before = len(tf_graph.get_operations())
    roots = []
    for gradient in tf.gradients(loss, tf.trainable_variables()):
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        roots += [gradient.values.op, gradient.indices.op] if is_sparse else [gradient.op]
    view = GraphView(tf_graph)
    read, works = works_of(view, view.ancestors([view.index[op.name] for op in roots]), ())
    added = [
        one.signature
        for node, one in read.items()
        if node >= before and one.signature is not None and not _sums_nothing(tf_graph, view.nodes[node].name)
    ]
    return by_kind(run for op in added for run in works[op].forward)


def _sums_nothing(tf_graph, name):
    """Whether an op is a sum over no axes, as TensorFlow finds when it runs; the kernel then passes its input on."""
    op = tf_graph.get_operation_by_name(name)
    if op.type != "Sum" or op.inputs[1].op.type != "BroadcastGradientArgs":
        return False
    with tf.Session(graph=tf_graph) as session:
        return session.run(op.inputs[1]).size == 0


@pytest.mark.parametrize(
    "make",
    [mlp, pictures, cnn, lambda: transformer(2, tied=False), lambda: words(False), lambda: words(True)],
    ids=["mlp", "pictures", "cnn", "transformer", "words", "words in a resource"],
)
def test_the_ops_are_those_of_tf_gradients(make):
    loss = make()
    mine, real = estimated(loss), built(loss)
    for kind in sorted(set(mine) | set(real)):
        assert mine[kind] == pytest.approx(real[kind], rel=0.01, abs=2000), kind


def test_the_ops_of_a_loop_are_those_of_tf_gradients():
    loss = lstm(steps=6, width=8)
    mine, real = estimated(loss), built(loss)
    for kind in (Kind.MATMUL, Kind.TRANSCENDENTAL, Kind.ELEMENTWISE, Kind.REDUCTION):
        assert mine[kind] == pytest.approx(real[kind], rel=0.01), kind


def _op(tensor, wanted=None):
    """The op that computes a tensor, alone."""
    view = GraphView(tensor.graph)
    types, _ = output_types(tensor.graph, view, range(len(view)))
    node = view.index[tensor.op.name]
    read = read_nodes(view, types, range(len(view)), ()).of_node[node].signature
    every = (True,) * len(read.inputs)
    return read._replace(constants=(None,) * len(read.inputs), wanted=wanted or every, used=(True,) * len(types[node]))


def _kept(tensor):
    op = _op(tensor)
    found = backward.differentiate([op])[op]
    return found.kept_inputs, found.kept_outputs


def test_kept_are_the_tensors_that_the_backward_pass_reads():
    x, w = tf.placeholder(tf.float32, [4, 6]), tf.placeholder(tf.float32, [6, 6])
    assert _kept(tf.matmul(x, w)) == ((0, 1), ())
    assert _kept(tf.nn.relu(x)) == ((), (0,))
    assert _kept(tf.tanh(x)) == ((), (0,))
    assert _kept(tf.nn.softmax(x)) == ((), (0,))
    assert _kept(tf.square(x)) == ((0,), ())
    assert _kept(x + x) == ((), ())
    assert _kept(tf.nn.bias_add(x, w[0])) == ((), ())


def test_a_gradient_that_no_variable_needs_does_not_count():
    product = tf.matmul(tf.placeholder(tf.float32, [4, 6]), tf.placeholder(tf.float32, [6, 8]))
    flops = []
    for wanted in ((True, True), (False, True), (False, False)):
        op = _op(product, wanted)
        flops.append(sum(run.cost().flops for run in backward.differentiate([op])[op].runs))
    assert flops == [2 * 2 * 4 * 6 * 8, 2 * 4 * 6 * 8, 0]


def test_a_gradient_that_is_summed_over_no_axis_costs_what_one_without_a_sum_costs():
    x, y = tf.placeholder(tf.float32, [3, 4, 6]), tf.placeholder(tf.float32, [3, 6, 8])
    flops = []
    for tensor in (tf.matmul(x, y), x / tf.placeholder(tf.float32, [])):
        op = _op(tensor, (True, False))
        flops.append(sum(run.cost().flops for run in backward.differentiate([op])[op].runs))
    assert flops == [2 * 3 * 4 * 6 * 8, 3 * 4 * 6]


def test_no_gradient_passes_what_stops_it():
    w = tf.get_variable("w", [8, 8])
    stopped = tf.matmul(w, w, name="stopped")
    loss = tf.reduce_sum(tf.matmul(tf.stop_gradient(stopped), w))
    view = GraphView(tf.get_default_graph())
    found = costs.node_costs(tf.get_default_graph(), view, view.ancestors([view.index[loss.op.name]]))
    node = view.index["stopped"]
    assert found.step_seconds[node] == found.seconds[node] > 0


def test_equal_layers_are_differentiated_once(monkeypatch):
    counts = []
    monkeypatch.setattr(
        backward, "_differentiated", lambda *arguments: counts.append(arguments[1]) or backward.NOTHING
    )  # fmt: skip
    for layers in (2, 5):
        tf.reset_default_graph()
        loss = transformer(layers)
        view = GraphView(tf.get_default_graph())
        counts.append(None)
        costs.node_costs(tf.get_default_graph(), view, view.ancestors([view.index[loss.op.name]]))
    first = counts.index(None, 1)
    assert len(counts[1:first]) == len(counts[first + 1 :])


def test_an_op_without_a_gradient_of_its_own_is_no_error():
    @tf.custom_gradient
    def scaled(y):
        return y * 2.0, lambda gradient: gradient

    x = tf.get_variable("w", [8, 8])
    loss = tf.reduce_sum(tf.py_func(lambda v: v, [scaled(x)], tf.float32)) + tf.reduce_sum(x)
    view = GraphView(tf.get_default_graph())
    found = costs.node_costs(tf.get_default_graph(), view, view.ancestors([view.index[loss.op.name]]))
    assert found.step_seconds[view.index["w"]] >= 0  # an op without a gradient ends the pass, and is no error


def test_an_op_that_cannot_be_differentiated_alone_is_named(monkeypatch):
    def refuse(op):
        raise ValueError("it needs the loop around it")

    monkeypatch.setattr(backward.tf_compat, "gradient_function", refuse)
    loss = tf.reduce_sum(tf.matmul(tf.get_variable("w", [8, 8]), tf.ones([8, 8])))
    view = GraphView(tf.get_default_graph())
    found = costs.node_costs(tf.get_default_graph(), view, view.ancestors([view.index[loss.op.name]]))
    assert any("the backward pass of MatMul, Sum counts as the forward pass" in note for note in found.notes)
    node = view.index["MatMul"]
    assert found.step_seconds[node] == pytest.approx(2 * found.seconds[node])


def _costs_of(loss):
    tf_graph = tf.get_default_graph()
    view = GraphView(tf_graph)
    return view, costs.node_costs(tf_graph, view, view.ancestors([view.index[loss.op.name]]))


def test_gradients_pass_complex_numbers():
    hidden = tf.matmul(tf.ones([64, 64]), tf.get_variable("w", [64, 64]), name="hidden")
    view, found = _costs_of(tf.reduce_sum(tf.abs(tf.signal.rfft(hidden))))
    node = view.index["hidden"]
    assert found.step_seconds[node] == pytest.approx(2 * found.seconds[node])


def test_a_rank_that_depends_on_data_is_no_assumed_length():
    """The length of a fed shape counts as 32, and no tensor has 32 dimensions of 32."""
    x = tf.placeholder(tf.float32, [None, 3]) * tf.get_variable("w", [3])
    shape = tf.placeholder(tf.int32, [None])
    loss = tf.reduce_sum(tf.reshape(x, shape)) + tf.reduce_sum(tf.tile(tf.placeholder(tf.float32) * x, shape))
    _, found = _costs_of(loss)
    assert sum(found.step_seconds.values()) < 1
    assert any("Tile" in note and "counts as the forward pass" in note for note in found.notes)
