"""Where models are cut: repeated blocks, balance, and what is never cut."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.ir.view import GraphView
from epl.parallel.auto_partition import partition
from epl.parallel.auto_partition.partition import BALANCED, REPEATED_BLOCKS, _elements, describe, places_in_chain
from epl.parallel.costs.costs import node_costs
from epl.utils.errors import PlanError
from tests.parallel.partition_models import Cut, cnn, lstm, tokens, transformer


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def test_costs_are_found_once_for_all_numbers_of_stages(monkeypatch):
    asked = []
    monkeypatch.setattr(partition, "node_costs", lambda *args: asked.append(args) or node_costs(*args))
    loss = transformer(8)
    view = GraphView(tf.get_default_graph())
    partitioner = partition.Partitioner(tf.get_default_graph(), view, [loss.op.name])
    found = [partitioner.partition(count) for count in (2, 4)]
    assert len(asked) == 1
    assert found == [partition.partition(tf.get_default_graph(), view, [loss.op.name], count) for count in (2, 4)]


@pytest.mark.parametrize("layers", [8, 12])
def test_layers_that_divide_are_dealt_evenly(layers):
    cut = Cut(transformer(layers), 4)
    assert cut.found.policy == REPEATED_BLOCKS
    assert cut.layers(layers) == [[number * 4 // layers] for number in range(layers)]


def test_layers_that_do_not_divide_are_balanced():
    cut = Cut(transformer(6), 4)
    assert cut.found.policy == BALANCED
    assert cut.share() < 1.25 and all(stage.ops for stage in cut.found.stages) and cut.flows_forward()


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_a_cnn_with_skip_connections_is_balanced(num_stages):
    cut = Cut(cnn(), num_stages)
    assert cut.found.policy == BALANCED and cut.share() < 1.3 and cut.flows_forward()


def test_variables_created_first_go_where_they_are_used():
    weights = [tf.get_variable(f"w{i}", [64, 64]) for i in range(8)]
    x = tf.placeholder(tf.float32, [16, 64])
    for weight in weights:
        x = tf.nn.relu(tf.matmul(x, weight))
    cut = Cut(tf.reduce_sum(x), 4)
    assert [cut.stage(f"w{i}") for i in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(stage.cut == 16 * 64 * 4 for stage in cut.found.stages[:-1])


def test_a_penalty_on_a_weight_stays_with_the_weight():
    x = tf.placeholder(tf.float32, [16, 64])
    for i in range(4):
        x = tf.nn.relu(tf.matmul(x, tf.get_variable(f"w{i}", [64, 64])))
    penalties = [tf.nn.l2_loss(v, name=f"penalty{i}") for i, v in enumerate(tf.trainable_variables())]
    cut = Cut(tf.add_n(penalties) + tf.reduce_sum(x), 2)
    assert [cut.stage("penalty{}".format(i)) for i in range(4)] == [cut.stage(f"w{i}") for i in range(4)]


@pytest.mark.parametrize("resource", [False, True])
def test_a_tied_variable_belongs_to_the_first_stage_that_uses_it(resource):
    with tf.variable_scope("", use_resource=resource):
        cut = Cut(transformer(4, tied=True), 4)
    assert cut.stages_under("table") == {0} and cut.stage("head/MatMul") == 3
    assert all(stage.cut >= 50 * 32 * 4 for stage in cut.found.stages[:-1])
    assert cut.flows_forward()


@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_and_its_reads_are_not_parted(resource):
    with tf.variable_scope("", use_resource=resource):
        cut = Cut(transformer(5, tied=True), 4)
    view = cut.view
    for node in cut.found.of_node:
        for producer in view.producers[node]:
            if view.types[producer] in ("VariableV2", "VarHandleOp"):
                assert cut.found.of_node[node] == cut.found.of_node[producer]


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a_loop_is_not_cut(num_stages):
    cut = Cut(lstm(), num_stages)
    assert len(cut.stages_under("rnn/while")) == 1


def test_a_conditional_is_not_cut():
    x = tf.placeholder(tf.float32, [16, 64])
    flag = tf.placeholder(tf.bool, [])

    def deep():
        y = x
        for i in range(4):
            y = tf.cond(flag, lambda y=y, i=i: tf.matmul(y, tf.get_variable("w%d" % i, [64, 64])), lambda y=y: y)
            y = tf.tanh(tf.tanh(y))
        return y

    hidden = tf.cond(flag, deep, lambda: x * 2.0, name="branch")
    cut = Cut(tf.reduce_sum(tf.layers.dense(tf.layers.dense(hidden, 64), 64)), 2)
    assert len(cut.stages_under("branch")) == 1


def test_a_conditional_of_an_imported_graph_is_not_cut():
    x = tf.placeholder(tf.float32, [16, 64])
    flag = tf.placeholder(tf.bool, [])
    y = tf.cond(flag, lambda: tf.tanh(tf.tanh(tf.exp(x))), lambda: x, name="branch")
    tf.reduce_sum(tf.layers.dense(tf.layers.dense(y, 64), 64), name="loss")
    graph_def = tf.get_default_graph().as_graph_def()
    tf.reset_default_graph()
    tf.import_graph_def(graph_def, name="")
    cut = Cut(tf.get_default_graph().get_tensor_by_name("loss:0"), 3)
    assert len(cut.stages_under("branch")) == 1 and cut.flows_forward()


def test_what_colocation_puts_in_a_circle_is_not_cut():
    x = tf.placeholder(tf.float32, [16, 64])
    first = tf.matmul(x, tf.get_variable("a", [64, 64]), name="first")
    middle = tf.matmul(first, tf.get_variable("b", [64, 64]), name="middle")
    with tf.get_default_graph().colocate_with(first.op):
        last = tf.matmul(middle, tf.get_variable("c", [64, 64]), name="last")
    cut = Cut(tf.reduce_sum(tf.layers.dense(last, 64)), 2)
    assert cut.stage("first") == cut.stage("middle") == cut.stage("last")


def test_the_input_pipeline_is_in_the_first_stage():
    data = tf.data.Dataset.from_tensors((np.ones([64], "f"), np.ones([1], "f"))).repeat().batch(4)
    x, y = tf.data.make_initializable_iterator(data).get_next()
    for i in range(4):
        x = tf.layers.dense(x, 64, tf.nn.relu, name=f"dense{i}")
    cut = Cut(tf.losses.mean_squared_error(y, tf.layers.dense(x, 1)), 4)
    assert cut.stage("IteratorGetNext") == cut.stage("IteratorV2") == 0


def test_a_placeholder_is_in_the_first_stage_however_late_it_was_created():
    x = tf.placeholder(tf.float32, [16, 64])
    for _ in range(7):
        x = tf.layers.dense(x, 64)
    cut = Cut(tf.reduce_sum(x - tf.placeholder(tf.float32, [16, 64], "labels")), 4)
    assert cut.stage("labels") == 0


def test_a_chain_has_a_place_for_what_stays_together():
    labels = tf.placeholder(tf.float32, [16, 64], "labels")
    x = tf.placeholder(tf.float32, [16, 64], "x")
    for i in range(3):
        x = tf.matmul(x, tf.get_variable(f"w{i}", [64, 64]), name=f"layer{i}")
    loss = tf.reduce_sum(x - labels, name="loss")
    view = GraphView(tf.get_default_graph())
    found = places_in_chain(tf.get_default_graph(), view, [loss.op.name])
    place = {view.nodes[node].name: at for node, at in found.items()}
    assert place["labels"] == place["x"] == 0 and place["w1"] == place["w1/read"]
    assert place["layer0"] < place["w1"] < place["layer1"] < place["w2"] < place["layer2"] < place["loss"]
    assert all(found[producer] <= found[node] for node in found for producer in view.producers[node])


def test_labels_that_skip_stages_count_at_every_boundary():
    x, y = tf.placeholder(tf.float32, [16, 512]), tf.placeholder(tf.float32, [16, 512])
    for i in range(8):
        x = tf.matmul(x, tf.get_variable(f"w{i}", [512, 512]))
    cut = Cut(tf.reduce_sum(x - y), 4)
    assert [stage.cut for stage in cut.found.stages] == [2 * 16 * 512 * 4] * 3 + [0]


def test_a_model_without_fed_data_is_cut_too():
    weights = [tf.get_variable(f"w{i}", [64, 64]) for i in range(8)]
    x = tf.constant(np.ones([16, 64], "f"))
    for weight in weights:
        x = tf.nn.relu(tf.matmul(x, weight))
    cut = Cut(tf.reduce_sum(x), 4)
    assert [cut.stage(f"w{i}") for i in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_blocks_of_unequal_cost_are_no_repetition():
    x = tf.placeholder(tf.float32, [16, 64])
    for i, width in enumerate([512, 64, 64, 64, 64, 64, 64, 64]):
        with tf.variable_scope(f"layer_{i}"):
            x = tf.layers.dense(tf.layers.dense(x, width), 64)
    assert Cut(tf.reduce_sum(x), 4).found.policy == BALANCED


def test_blocks_side_by_side_are_no_repetition():
    ids, _ = tokens()
    towers = []
    for i in range(4):
        with tf.variable_scope(f"tower_{i}"):
            x = tf.nn.embedding_lookup(tf.get_variable("table", [50, 32]), ids)
            towers.append(tf.layers.dense(tf.layers.dense(x, 64), 64))
    assert Cut(tf.reduce_sum(tf.add_n(towers)), 4).found.policy == BALANCED


def test_layers_under_one_variable_are_dealt_evenly():
    ids, _ = tokens()
    x = tf.nn.embedding_lookup(tf.get_variable("table", [50, 32]), ids)
    kernel = tf.get_variable("shared", [32, 32])
    for i in range(8):
        with tf.name_scope(f"layer_{i}"):
            x = tf.tanh(tf.tensordot(x, kernel, 1))
    cut = Cut(tf.reduce_sum(x), 4)
    assert cut.layers(8) == [[number // 2] for number in range(8)] and cut.stages_under("shared") == {0}


def test_more_stages_than_work_are_refused_with_the_numbers():
    x = tf.placeholder(tf.float32, [4, 4])
    with pytest.raises(PlanError, match=r"into 5 stages .* form 2 units of work"):
        Cut(tf.reduce_sum(tf.tanh(x)), 5)


def test_a_unit_without_time_goes_where_less_is_cut():
    assert _elements([1.0, 0.0, 1.0], [0, 9, 5], 0) == ([0, 2], [1.0, 1.0], [5])
    assert _elements([1.0, 0.0, 1.0], [0, 5, 9], 0) == ([0, 1], [1.0, 1.0], [5])


def test_the_description_has_the_figures():
    text = describe(Cut(transformer(8), 4).found)
    assert "4 pipeline stages (repeated blocks)" in text
    assert len([line for line in text.splitlines() if line.endswith(" MB")]) == 4


@given(st.integers(2, 4), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=6, max_size=20))
@settings(deadline=None, max_examples=25)
def test_any_graph_is_cut_so_that_data_flows_forward(num_stages, edges):
    tf.reset_default_graph()
    tensors = [tf.placeholder(tf.float32, [8, 8])]
    for at, (left, right) in enumerate(edges):
        weight = tf.get_variable(f"w{at}", [8, 8]) if left % 2 else tensors[left % len(tensors)]
        tensors.append(tf.matmul(tensors[right % len(tensors)], weight))
    cut = Cut(tf.reduce_sum(tf.add_n(tensors)), num_stages)
    assert cut.flows_forward() and set(cut.found.of_node.values()) == set(range(num_stages))
