"""The costs of a model by its ops: against formulas, as functions of the rows, and against the memory estimate."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.strategy import record
from epl.parallel.strategy.forward import forward_ops
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.machine.presets import DEVICES
from epl.planner.simulator.model_costs import Basis
from epl.profiler.estimate.estimate import StepGraph, estimate, prepare
from tests.planner import known_models
from tests.yardstick import cpu_seconds

CPU, GPU = DEVICES["cpu"], DEVICES["v100-16"]
WIDTH, CLASSES = 48, 10


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def costs_of(loss, **options):
    tf_graph = tf.get_default_graph()
    view = GraphView(tf_graph)
    return GraphCosts(tf_graph, view, list(forward_ops(tf_graph, view, loss)), **options)


def number(costs, name):
    return [op.name for op in costs.ops].index(name)


def mlp(rows=None, layers=3):
    """Dense layers; each keeps its input, and Tanh its own output, which is the input of the next layer."""
    x = tf.placeholder(tf.float32, [rows, WIDTH], "x")
    for layer in range(layers):
        x = tf.layers.dense(x, WIDTH, tf.tanh, use_bias=False, name=f"layer{layer}")
    return tf.reduce_mean(tf.square(x))


# ---- Formulas


@pytest.mark.parametrize("rows", [1, 7, 32, 500])
def test_an_mlp_costs_what_the_formula_says(rows):
    costs = costs_of(mlp())
    found = costs.at(rows, CPU)
    product = 2 * rows * WIDTH * WIDTH
    matmul = number(costs, "layer1/MatMul")
    assert found.forward_flops[matmul] == product
    assert found.backward_flops[matmul] == 2 * product
    assert found.backward_flops[number(costs, "layer0/MatMul")] == product  # data needs no gradient
    assert sum(found.output_bytes[number(costs, f"layer{layer}/Tanh")] for layer in range(3)) == 3 * 4 * rows * WIDTH
    # x, and the results of the three layers
    assert sum(found.kept_bytes) == 4 * 4 * rows * WIDTH
    assert costs.tensor_bytes(rows, matmul, 0) == 4 * rows * WIDTH
    assert costs.rows is None and set(found.basis) == {Basis.DATA_SHEET}


def test_ops_without_state_outside_of_loops_may_be_computed_again():
    hidden = tf.layers.dense(tf.placeholder(tf.float32, [None, WIDTH], "x"), WIDTH, name="layer")
    hidden = tf.layers.dropout(hidden, 0.1, training=True)
    for stateful in (False, True):
        hidden = tf.py_func(tf.identity, [hidden], tf.float32, stateful, f"python{stateful:d}")
    hidden = tf.while_loop(lambda at, _: at < 2, lambda at, one: (at + 1, tf.tanh(one)), (0, hidden))[1]
    costs = costs_of(tf.reduce_mean(hidden))
    again = {op.name for op in costs.ops if op.is_repeatable}
    mask = tf.get_default_graph().get_tensor_by_name("dropout/dropout/GreaterEqual:0")
    (masked,) = [op.name for op in mask.consumers()]  # a cast, or a choice of values
    assert again >= {"layer/MatMul", "layer/BiasAdd", masked, "python0", "Mean"}
    # Data, weights, random numbers and the mask that is kept for them, state, and what depends on shapes alone.
    others = {"x", "layer/kernel", "layer/kernel/read", "dropout/dropout/Shape", "dropout/dropout/GreaterEqual"}
    others |= {"dropout/dropout/random_uniform/RandomUniform", "python1", "while/Tanh", "while/Exit_1"}
    assert again.isdisjoint(others) and others < {op.name for op in costs.ops}


def test_variables_are_there_anyway():
    costs = costs_of(mlp(), trained=["layer0/kernel", "layer1/kernel"])
    found = costs.at(8, CPU)
    for layer in range(3):
        place = number(costs, f"layer{layer}/kernel")
        assert costs.ops[place].variable_bytes == 4 * WIDTH * WIDTH
        assert costs.ops[place].is_trained == (layer < 2) and not costs.ops[place].by_rows
        assert found.output_bytes[place] == found.kept_bytes[place] == 0
    product = 2 * 8 * WIDTH * WIDTH
    assert found.backward_flops[number(costs, "layer2/MatMul")] == product  # by its data alone
    assert not costs.slots


@pytest.mark.parametrize("rows", [3, 64])
def test_a_convolution(rows):
    x = tf.placeholder(tf.float32, [None, 12, 12, 3])
    y = tf.nn.conv2d(x, tf.get_variable("kernel", [3, 3, 3, 8]), 1, "SAME", name="first")
    y = tf.nn.conv2d(tf.nn.relu(y), tf.get_variable("kernel2", [3, 3, 8, 8]), 2, "SAME", name="second")
    costs = costs_of(tf.reduce_sum(y))
    found = costs.at(rows, GPU)
    second = number(costs, "second")
    assert found.forward_flops[second] == 2 * rows * 6 * 6 * 8 * 72
    assert found.backward_flops[second] == 2 * found.forward_flops[second]
    # the pictures, and relu: read by its own gradient, and by that of the second convolution
    assert sum(found.kept_bytes) == 4 * rows * 144 * (3 + 8)


@pytest.mark.parametrize("resource", [False, True])
def test_an_embedding_moves_the_rows_that_are_looked_up(resource):
    table = tf.get_variable("table", [100000, WIDTH], use_resource=resource)
    ids = tf.placeholder(tf.int64, [None, 6], "ids")
    x = tf.nn.embedding_lookup(table, ids, name="lookup")
    costs = costs_of(tf.reduce_sum(tf.layers.dense(tf.reshape(x, [-1, 6 * WIDTH]), 4)))
    lookups = [at for at, op in enumerate(costs.ops) if op.type in ("GatherV2", "ResourceGather")]
    found = costs.at(20, CPU)
    assert sum(found.output_bytes[at] for at in lookups) == 20 * 6 * WIDTH * 4
    assert all(found.backward[at] < 1e-3 for at in lookups)  # the whole table would take 4 ms
    assert sum(one.variable_bytes for one in costs.ops if one.name == "table") == 100000 * WIDTH * 4


@pytest.mark.parametrize("steps", [4, 9])
def test_a_recurrent_layer_counts_and_keeps_every_step(steps):
    x = tf.placeholder(tf.float32, [None, steps, WIDTH])
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(WIDTH), x, dtype=tf.float32)
    costs = costs_of(tf.reduce_mean(tf.square(outputs)))
    found = costs.at(16, CPU)
    product = 2 * 16 * steps * 2 * WIDTH * 4 * WIDTH
    inner = [at for at, op in enumerate(costs.ops) if op.type == "MatMul"]
    assert sum(found.forward_flops[at] for at in inner) == product
    assert sum(found.backward_flops[at] for at in inner) == 2 * product
    # of each step at least: the joined input (2 widths), four activated gates, the cell and its tanh
    assert 8 * 4 * 16 * steps * WIDTH <= sum(found.kept_bytes) <= 16 * 4 * 16 * steps * WIDTH
    assert all(producer < at for at, op in enumerate(costs.ops) for producer, _ in op.inputs)


def test_a_function_costs_what_its_body_costs():
    x, w = tf.placeholder(tf.float32, [None, WIDTH]), tf.get_variable("w", [WIDTH, WIDTH], use_resource=True)
    called = tf.function(lambda y: tf.tanh(tf.matmul(tf.tanh(tf.matmul(y, w)), w)), autograph=False)(x)
    costs = costs_of(tf.reduce_sum(called))
    (call,) = [at for at, op in enumerate(costs.ops) if "PartitionedCall" in op.type]
    for rows in (5, 40):
        found = costs.at(rows, CPU)
        product = 2 * rows * WIDTH * WIDTH
        assert found.forward_flops[call] == pytest.approx(2 * product, rel=0.03)
        assert found.backward_flops[call] == pytest.approx(3 * product, rel=0.05)
        assert found.kept_bytes[call] == 2 * 4 * rows * WIDTH and found.output_bytes[call] == 2 * 4 * rows * WIDTH
    assert not costs.notes


@pytest.mark.parametrize("batch", [2, 6])
@pytest.mark.parametrize(
    "build",
    [
        known_models.alexnet,
        lambda batch: known_models.bert(2, 64, 4, batch, 16),
        lambda batch: known_models.lstm(batch, 8, 32),
        pytest.param(known_models.resnet50, marks=pytest.mark.long),
    ],
    ids=["alexnet", "bert", "lstm", "resnet-50"],
)
def test_a_batch_that_is_built_in_grows_for_other_rows(build, batch):
    costs = costs_of(build(4)[0])
    tf.reset_default_graph()
    loss, formula = build(batch)
    right = costs_of(loss).at(batch, CPU)
    found = costs.at(batch, CPU)
    assert costs.rows == 4 and any("4 rows built in" in note for note in costs.notes)
    products = [at for at, op in enumerate(costs.ops) if "MatMul" in op.type or op.type == "Conv2D"]
    assert sum(found.forward_flops[at] for at in products) == pytest.approx(formula, rel=0.02)
    for mine, other in zip(found[:6], right[:6]):
        assert sum(mine) == pytest.approx(sum(other), rel=0.02)


# ---- Rows


def test_flops_and_bytes_are_linear_in_rows():
    costs = costs_of(mlp())
    one, two, four = (costs.at(rows, CPU) for rows in (10, 20, 40))
    for field in ("forward_flops", "backward_flops", "output_bytes", "kept_bytes"):
        small, middle, large = (np.array(getattr(found, field)) for found in (one, two, four))
        np.testing.assert_allclose(large - middle, 2 * (middle - small))


def test_a_product_of_two_batch_dimensions_grows_with_the_square():
    x = tf.placeholder(tf.float32, [None, WIDTH])
    hidden = tf.layers.dense(x, WIDTH, use_bias=False)
    costs = costs_of(tf.reduce_sum(tf.matmul(hidden, hidden, transpose_b=True, name="similar")))
    for rows in (3, 50):
        assert costs.at(rows, CPU).forward_flops[number(costs, "similar")] == 2 * rows * rows * WIDTH


def test_other_rows_cost_what_a_graph_with_them_costs():
    costs = costs_of(mlp())
    found = costs.at(17, GPU)
    tf.reset_default_graph()
    right = costs_of(mlp(rows=17)).at(17, GPU)
    for mine, other in zip(found, right):
        assert mine == pytest.approx(other) if not isinstance(mine[0], str) else mine == other


def test_the_batch_of_a_pipeline_is_that_of_the_script():
    data = tf.data.Dataset.from_tensors(np.zeros([WIDTH], "f")).repeat().batch(12)
    x = tf.data.make_one_shot_iterator(data).get_next()
    costs = costs_of(tf.reduce_sum(tf.layers.dense(x, 4, name="dense")))
    assert costs.rows == 12
    assert costs.at(5, CPU).forward_flops[number(costs, "dense/MatMul")] == 2 * 5 * WIDTH * 4
    assert costs.ops[number(costs, "IteratorGetNext")].by_rows


def test_a_loop_over_the_rows_runs_once_for_each():
    x = tf.placeholder(tf.float32, [None, WIDTH])
    w = tf.get_variable("w", [WIDTH, WIDTH])
    costs = costs_of(tf.reduce_sum(tf.map_fn(lambda row: tf.matmul(row[tf.newaxis], w), x)))
    (product,) = [at for at, op in enumerate(costs.ops) if op.type == "MatMul"]
    assert costs.at(9, CPU).forward_flops[product] == 9 * 2 * WIDTH * WIDTH


def test_a_graph_without_data_costs_the_same_for_all_rows():
    costs = costs_of(tf.reduce_sum(tf.get_variable("w", [4, 4])))
    assert costs.at(1, CPU) == costs.at(9, CPU) and costs.rows is None


def test_rows_must_be_above_0():
    costs = costs_of(mlp())
    for ask in (lambda: costs.at(0, CPU), lambda: costs.tensor_bytes(-1, 0, 0)):
        with pytest.raises(ValueError, match="expected a number of rows above 0"):
            ask()


# ---- Slots, notes, what was measured


@pytest.mark.parametrize(
    "optimizer, slots",
    [
        (lambda: tf.train.GradientDescentOptimizer(0.1), {}),
        (lambda: tf.train.MomentumOptimizer(0.1, 0.9), {"Momentum": 1.0}),
        (lambda: tf.train.AdamOptimizer(), {"Adam": 1.0, "Adam_1": 1.0}),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_slots_are_those_of_the_optimizer(optimizer, slots):
    with tf.variable_scope("model"):
        loss = mlp()
    with tf.variable_scope("training"):
        optimizer().minimize(loss)
    assert costs_of(loss).slots == slots


def test_copies_of_replicas_add_no_slots():
    loss = mlp()
    tf.train.AdamOptimizer().minimize(loss)
    with tf.variable_scope("replica_1"):
        for layer in range(3):
            for name in ("kernel", "kernel/Adam", "kernel/Adam_1"):
                tf.get_variable(f"layer{layer}/{name}", [WIDTH, WIDTH], trainable=False)
    assert costs_of(loss).slots == {"Adam": 1.0, "Adam_1": 1.0}


def test_what_was_measured_counts():
    asked = []

    def measured(op, device):
        asked.append((op, device))
        return (1.0, 2.0) if op.type == "MatMul" else None

    costs = costs_of(mlp(), measured=measured)
    found = costs.at(11, GPU)
    matmul, tanh = number(costs, "layer1/MatMul"), number(costs, "layer1/Tanh")
    assert (found.forward[matmul], found.backward[matmul], found.basis[matmul]) == (1.0, 2.0, Basis.MEASURED)
    assert found.basis[tanh] == Basis.DATA_SHEET and 0 < found.forward[tanh] < 1
    (shapes,) = {op.inputs[0].shape for op, device in asked if op.type == "MatMul" and device is GPU}
    assert shapes == (11, WIDTH)


def test_a_device_that_was_calibrated_says_so():
    device = CPU._replace(sources=(("", "epl-plan --calibrate, 2 threads"),))
    assert set(costs_of(mlp()).at(4, device).basis) == {Basis.CALIBRATED}


def test_assumptions_are_named():
    x = tf.placeholder(tf.float32, [None, None, 3], "words")
    y = tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: tf.layers.dense(y, 3), [x])
    notes = costs_of(tf.reduce_sum(y)).notes
    assert any("words leaves open, other than the batch, count as 32" in note for note in notes)
    assert any("the number of its iterations is not known" in note for note in notes)


def test_a_recorded_model_has_the_costs_of_before_it_was_rewritten():
    loss = mlp()
    graph = Graph.of(tf.get_default_graph(), may_create=True)
    record.note_forward_pass(graph, loss, [tf.trainable_variables()[0]])
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    costs = GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass))
    assert [op.is_trained for op in costs.ops if op.variable_bytes] == [True, False, False]
    assert [op.type for op in costs.ops] == [op.type for op in graph.state_of(record.ForwardPass).ops]


# ---- Memory, speed


def test_kept_bytes_are_the_activations_of_the_memory_estimate():
    rows = 256
    loss = mlp(layers=8)
    kept = sum(costs_of(loss).at(rows, CPU).kept_bytes) - 4 * rows * WIDTH  # what is fed is not counted there
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = StepGraph(tf.get_default_graph())
    found = estimate(graph, prepare(graph, [train.name], {"x:0": [rows, WIDTH]}))
    # at its worst moment, at the end of the forward pass, a temporary tensor or two are there, too
    assert found.devices[0].activations == pytest.approx(kept, rel=0.3)
    assert found.devices[0].activations >= kept


@pytest.mark.long
def test_other_rows_of_bert_large_are_quick():
    loss, _ = known_models.bert(24, 1024, 16, 2, 128)
    costs = costs_of(loss)
    read = cpu_seconds(lambda: costs_of(loss), rounds=2)
    costs.at(7, GPU)
    each = cpu_seconds(lambda: [costs.at(rows, GPU) for rows in range(20, 30)], rounds=1) / 10
    print(f"{len(costs.ops)} ops: {read:.2f} s, then {each * 1000:.0f} ms for a number of rows")
    assert len(costs.ops) / read > 2500 and each < 0.2
