"""Functions cost what their bodies cost: as the same ops without a function."""

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework.function import Defun

from epl.ir.view import GraphView
from epl.parallel.costs.costs import node_costs, signatures_of
from epl.parallel.costs.forward_nodes import read_nodes
from epl.parallel.costs.functions import FunctionLibrary
from epl.parallel.costs.op_work import find_works
from epl.parallel.costs.shapes import output_types

ROWS, WIDTH = 16, 24
PRODUCT = 2 * ROWS * WIDTH * WIDTH


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def data():
    return tf.placeholder(tf.float32, [ROWS, WIDTH])


def weights(name="w", resource=True):
    return tf.get_variable(name, [WIDTH, WIDTH], use_resource=resource)


def costs_of(result):
    loss = tf.reduce_sum(result)
    view = GraphView(tf.get_default_graph())
    return node_costs(tf.get_default_graph(), view, view.ancestors([view.index[loss.op.name]]))


def work_of(result, *types):
    """What the one op of these types computes."""
    loss = tf.reduce_sum(result)
    view = GraphView(tf.get_default_graph())
    nodes = view.ancestors([view.index[loss.op.name]])
    found, _ = output_types(tf.get_default_graph(), view, nodes)
    read = read_nodes(view, found, nodes).of_node
    works = find_works(signatures_of(read), FunctionLibrary(view.graph_def.library))
    (call,) = [one.signature for node, one in read.items() if view.types[node] in types]
    return works[call]


def flops(runs):
    return sum(run.times * run.cost().flops for run in runs)


def layer(x, w):
    return tf.tanh(tf.matmul(x, w))


def test_a_function_costs_what_its_ops_cost():
    plain = costs_of(layer(data(), weights()))
    tf.reset_default_graph()
    x, w = data(), weights()
    called = costs_of(tf.function(lambda: layer(x, w), autograph=False)())
    for mine, other in zip(called[:4], plain[:4]):
        assert sum(mine.values()) == pytest.approx(sum(other.values()))
    assert not called.notes


def test_a_function_keeps_what_its_backward_pass_reads():
    x, w, b = data(), weights(), weights("b")
    found = work_of(
        tf.function(lambda: tf.tanh(layer(x, w) @ b), autograph=False)(), "PartitionedCall", "StatefulPartitionedCall"
    )
    assert flops(found.backward) == pytest.approx(3 * PRODUCT, rel=0.05)  # data needs no gradient
    assert [(kept.shape, count) for kept, count in found.inside] == [((ROWS, WIDTH), 1)]  # the first tanh
    assert found.kept_outputs == (0,)  # the second one
    assert len(found.kept_inputs) == 1  # the data


def test_a_lookup_in_a_function_knows_the_table():
    table = tf.get_variable("table", [100, WIDTH], use_resource=True)
    ids = tf.placeholder(tf.int32, [ROWS])

    @tf.function(autograph=False)
    def looked_up():
        return tf.nn.embedding_lookup(table, ids) * 2.0

    found = work_of(looked_up(), "PartitionedCall", "StatefulPartitionedCall")
    (lookup,) = [run for run in found.forward if run.node.op == "ResourceGather"]
    assert lookup.outputs[0].shape == (ROWS, WIDTH)


def test_a_function_called_by_its_name_is_computed_again_for_its_gradient():
    @Defun(tf.float32, tf.float32)
    def named(x, w):
        x.set_shape([ROWS, WIDTH])
        w.set_shape([WIDTH, WIDTH])
        return tf.matmul(x, w)

    x = data()
    result = named(x, weights(resource=False))
    found = work_of(result, result.op.type)
    assert flops(found.forward) == PRODUCT
    assert flops(found.backward) == pytest.approx(2 * PRODUCT)
    assert found.kept_inputs == (0, 1) and not found.inside


def test_functions_in_functions_count():
    x, w = data(), weights()
    inner = tf.function(lambda y: tf.matmul(y, w), autograph=False)
    outer = tf.function(lambda y: inner(inner(y)), autograph=False)
    assert sum(costs_of(outer(x)).flops.values()) == pytest.approx(2 * PRODUCT, rel=0.05)


@pytest.mark.parametrize("bound", [3, 7])
def test_a_loop_in_a_function_counts_its_turns(bound):
    x, w = data(), weights()

    @tf.function(autograph=False)
    def looped():
        return tf.while_loop(lambda i, _: i < bound, lambda i, y: (i + 1, tf.tanh(tf.matmul(y, w))), [0, x])[1]

    found = work_of(looped(), "PartitionedCall", "StatefulPartitionedCall")
    assert flops(found.forward) == pytest.approx(bound * PRODUCT, rel=0.05)
    assert flops(found.backward) == pytest.approx(bound * 2 * PRODUCT, rel=0.05)
    kept = sum(count for kept, count in found.inside if kept.shape == (ROWS, WIDTH))
    assert bound <= kept <= 2 * bound and not found.unbounded


def test_a_loop_of_unknown_length_in_a_function_is_named():
    x, w = data(), weights()

    @tf.function(autograph=False)
    def looped():
        return tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: tf.matmul(y, w), [x])

    notes = costs_of(looped()).notes
    assert len(notes) == 1 and "the number of its iterations is not known" in notes[0]


def test_of_branches_the_one_with_most_work_counts():
    x, w, choice = data(), weights(), tf.placeholder(tf.bool, [])

    @tf.function(autograph=False)
    def chosen():
        return tf.cond(choice, lambda: tf.matmul(x, w), lambda: tf.matmul(tf.matmul(x, w), w))

    assert sum(costs_of(chosen()).flops.values()) == pytest.approx(2 * PRODUCT, rel=0.05)


def test_a_body_that_takes_no_such_arguments_counts_by_size_and_is_named(monkeypatch):
    def refuse(*_):
        raise ValueError("no")

    monkeypatch.setattr(FunctionLibrary, "body", refuse)
    x, w = data(), weights()
    found = costs_of(tf.function(lambda: layer(x, w), autograph=False)())
    assert any("whose bodies count by arguments and results alone" in note for note in found.notes)


def test_a_call_of_an_unknown_function_is_no_error():
    library = FunctionLibrary(tf.GraphDef().library)
    x, w = data(), weights()
    result = tf.function(lambda: layer(x, w), autograph=False)()
    view = GraphView(tf.get_default_graph())
    types, _ = output_types(tf.get_default_graph(), view, range(len(view)))
    read = read_nodes(view, types, range(len(view))).of_node
    call = read[view.index[result.op.inputs[0].op.name if result.op.type == "Identity" else result.op.name]].signature
    assert library.call(call) is None
