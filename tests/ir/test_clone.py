"""Bulk cloning: a copy computes what the original does, on its own state, and Python can go on using the graph."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.clone import SAME, Clone, Edit, clone_each, clone_nodes
from epl.ir.view import GraphView
from epl.parallel.rewriting import verifier
from epl.utils import tf_compat


@pytest.fixture(autouse=True)
def graph():
    """A graph of its own for each test; it must be whole afterwards."""
    with tf.Graph().as_default() as graph:
        yield graph
    assert verifier.verify(graph) == []


def clone(roots, shared=(), prefixes=("A/",), edit=lambda copy, original: Edit(None, None), extra=()):
    """Clones what `roots` need, except the ops named in `shared` and what stands after them."""
    graph = tf.get_default_graph()
    view = GraphView(graph)
    stop = {view.index[name] for name in shared}
    nodes = view.ancestors([view.index[root.op.name] for root in roots], lambda node: node in stop) - stop
    clone_nodes(graph, view, nodes, prefixes, edit, extra)


def tensor(name):
    return tf.get_default_graph().get_tensor_by_name(name)


def run(fetches, feed_dict=None, init=()):
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Session(config=config) as sess:
        sess.run(list(init))
        return sess.run(fetches, feed_dict)


def test_each_copy_has_its_own_placeholder():
    x = tf.placeholder(tf.float32, [2], "x")
    clone([tf.exp(x, name="y")], prefixes=("A/", "B/"))
    values = run(["y:0", "A/y:0", "B/y:0"], {x: [0, 0], "A/x:0": [1, 1], "B/x:0": [2, 2]})
    np.testing.assert_allclose([v[0] for v in values], np.exp([0, 1, 2]), rtol=1e-6)


def test_what_is_outside_is_shared():
    x = tf.placeholder(tf.float32, [2], "x")
    first, second = tf.split(x, 2)
    clone([tf.subtract(second, first, name="y")], shared=[first.op.name])
    assert [t.name for t in tensor("A/y:0").op.inputs] == [second.name, first.name]
    assert run("A/y:0", {x: [1, 3]}) == [2]


def test_control_inputs_inside_and_outside():
    outside, inside = tf.no_op("outside"), tf.constant(1.0, name="inside")
    with tf.control_dependencies([outside, inside]):
        y = tf.constant(2.0, name="y")
    clone([y], shared=["outside"])
    copy = tf.get_default_graph().get_operation_by_name("A/y")
    assert sorted(op.name for op in copy.control_inputs) == ["A/inside", "outside"]


def test_colocation_follows_what_is_copied():
    v, w = tf.get_variable("v", [2]), tf.get_variable("w", [2])
    with tf.colocate_with(v), tf.colocate_with(w.op):
        y = tf.identity(v, name="y")
    assert sorted(y.op.colocation_groups()) == [b"loc:@v", b"loc:@w"]
    clone([y], shared=[])
    assert b"loc:@A/v" in tensor("A/y:0").op.colocation_groups()
    assert b"loc:@w" in tensor("A/y:0").op.colocation_groups()


@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_gets_its_own_value(resource):
    v = tf.get_variable("v", [2], initializer=tf.ones_initializer(), use_resource=resource)
    add = v.assign_add([1.0, 1.0], read_value=False)
    add = add if isinstance(add, tf.Operation) else add.op
    clone([v.initializer.outputs[0] if v.initializer.outputs else v.handle, *add.inputs])
    view = GraphView(tf.get_default_graph())
    clone_nodes(
        tf.get_default_graph(),
        view,
        view.ancestors([view.index[add.name], view.index[v.initializer.name]]),
        ["B/"],
        lambda copy, original: Edit(None, None),
    )
    with tf.Session() as sess:
        sess.run([v.initializer, "B/" + v.initializer.name])
        sess.run(["B/" + add.name])
        sess.run(["B/" + add.name])
        read = tensor("B/v:0")
        if resource:
            read = tf.raw_ops.ReadVariableOp(resource=read, dtype=tf.float32)
        assert sess.run([v.read_value() if resource else v, read])[0].tolist() == [1, 1]
        assert sess.run(read).tolist() == [3, 3]


def test_a_loop_and_its_gradient():
    x = tf.placeholder(tf.float32, [2], "x")
    body = lambda i, y: (i + 1, tf.cond(i > 0, lambda: y * x, lambda: tf.sin(y)))  # noqa: E731
    y = tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]
    (gradient,) = tf.gradients(y, x)
    clone([y, gradient], prefixes=("A/", "B/"))
    feed = {"x:0": [0.3, 0.7], "A/x:0": [0.3, 0.7], "B/x:0": [0.5, 0.2]}
    values = run([t for p in ("", "A/", "B/") for t in (p + y.name, p + gradient.name)], feed)
    np.testing.assert_array_equal(values[0:2], values[2:4])
    assert not np.array_equal(values[0:2], values[4:6])


def test_gradients_of_a_recurrent_network_are_bitwise_equal():
    tf.set_random_seed(1)
    x = tf.constant(np.random.RandomState(0).randn(4, 5, 3).astype("f"))
    _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(4), x, dtype=tf.float32)
    variables = tf.trainable_variables()
    gradients = tf.gradients(tf.reduce_sum(tf.square(state)), variables)
    init = tf.global_variables_initializer()
    clone(gradients, shared=[v.op.name for v in variables])
    values = run([g.name for g in gradients] + ["A/" + g.name for g in gradients], init=[init])
    for original, copy in zip(values[: len(gradients)], values[len(gradients) :]):
        np.testing.assert_array_equal(original, copy)


def test_edit_changes_each_copy():
    x = tf.placeholder(tf.float32, [], "x")

    def edit(copy, original):
        return Edit(f"/device:CPU:{copy}", None)

    clone([tf.exp(x, name="y")], prefixes=("A/", "B/"), edit=edit)
    operation = tf.get_default_graph().get_operation_by_name
    assert [operation(name).device for name in ("y", "A/y", "B/y")] == ["", "/device:CPU:0", "/device:CPU:1"]


def test_edit_sets_attributes_of_each_copy():
    draw = tf.raw_ops.RandomUniform(shape=tf.constant([2], name="shape"), dtype=tf.float32, seed=1, seed2=7, name="r")
    clone([draw], shared=["shape"], edit=lambda copy, original: Edit(None, [("seed2", tf.AttrValue(i=5))]))
    operation = tf.get_default_graph().get_operation_by_name
    assert [operation(name).get_attr("seed2") for name in ("r", "A/r")] == [7, 5]
    assert operation("A/r").get_attr("dtype") == tf.float32


def test_a_long_name_and_a_large_constant_survive_the_copy():
    name = "n" * 300
    value = [float(i) for i in range(5000)]
    clone([tf.constant(value, name=name)])
    assert tf.Session().run("A/" + name + ":0").tolist() == value


def test_extra_nodes_may_take_from_copies_and_from_the_graph():
    x = tf.constant(3.0, name="x")
    outside = tf.constant(4.0, name="outside")
    extra = tf.NodeDef(name="sum", op="AddV2", input=["A/x", "outside", "^x"])
    extra.attr["T"].type = tf.float32.as_datatype_enum
    clone([x], extra=[extra])
    assert run("sum:0") == 7 and outside.name == "outside:0"


def test_copies_that_differ_in_names_alone_are_like_others():
    graph = tf.get_default_graph()
    x = tf.constant(np.full([4], -1, np.int32), name="x")  # of the bytes with which names are marked
    variable = tf.get_variable("v", [], tf.int32)
    with tf.colocate_with(x.op), tf.control_dependencies([x]):
        y = tf.add(x[0], variable, name="y")
    prefixes = ["A_LONG_PREFIX_{}/", "ANOTHER_LONG_PREFIX_{}/"]
    clone([y], prefixes=[prefixes[0].format(copy) for copy in (1, 2, 10)], edit=lambda copy, original: SAME)
    clone([y], prefixes=[prefixes[1].format(copy) for copy in (1, 2, 10)])
    for copy in (1, 2, 10):
        for name in ("x", "y", "v"):
            one, other = (str(graph.get_operation_by_name(p.format(copy) + name).node_def) for p in prefixes)
            assert one == other.replace("ANOTHER_LONG", "A_LONG")


def test_a_copy_waits_for_what_its_edit_names():
    x = tf.constant(3.0, name="x")
    tf.constant(4.0, name="outside")
    extra = tf.NodeDef(name="gate", op="NoOp")
    clone([x], extra=[extra], edit=lambda copy, original: Edit(None, None, ["outside", "gate"]))
    assert {op.name for op in tensor("A/x:0").op.control_inputs} == {"outside", "gate"}


def test_different_copies_in_one_import():
    x, other = tf.placeholder(tf.float32, [2], "x"), tf.placeholder(tf.float32, [2], "other")
    y = tf.exp(x, name="y")
    with tf.control_dependencies([tf.no_op("before")]):
        tf.negative(y, name="z")
    graph = tf.get_default_graph()
    view = GraphView(graph)
    both = [view.index["z"], view.index["y"]]
    clone_each(graph, view, [Clone(both, "A/", {}), Clone(both, "B/", {"x": "other"}), Clone(both[:1], "C/", {})])
    assert [op.name for op in tensor("B/z:0").op.control_inputs] == ["before"]
    values = run(["A/z:0", "B/z:0", "C/z:0"], {x: [0, 0], other: [1, 1]})
    np.testing.assert_allclose([v[0] for v in values], [-1, -np.e, -1], rtol=1e-6)
    with pytest.raises(KeyError):
        tensor("C/y:0")
    clone_each(graph, view, [])


def test_no_nodes_at_all():
    clone_nodes(tf.get_default_graph(), GraphView(tf.get_default_graph()), [], [], lambda *unused: None)


def test_a_name_that_is_taken_is_refused():
    x = tf.constant(1.0, name="x")
    tf.constant(1.0, name="A/x")
    with pytest.raises(ValueError, match="A/x"):
        clone([x])


# ---- Copies have no Python object until one is asked for.


def many_copies():
    x = tf.placeholder(tf.float32, [2], "x")
    y = tf.exp(tf.identity(x, name="middle"), name="y")
    clone([y], prefixes=("A/", "B/"))
    return x, y


def unwrapped():
    return set(tf.get_default_graph()._nodes_by_name.unwrapped)


@pytest.mark.tensorflow("1", reason="TensorFlow 2 keeps ops in C++: each copy has its Python object at once")
def test_an_operation_is_wrapped_when_it_is_asked_for():
    many_copies()
    assert len(unwrapped()) == 6
    op = tf.get_default_graph().get_operation_by_name("A/y")
    assert (op.type, op.name) == ("Exp", "A/y") and tensor("A/y:0").op is op
    assert "A/y" not in unwrapped()
    assert tf.get_default_graph().as_graph_element("B/y:0").op.type == "Exp"


def test_inputs_and_consumers_of_a_copy():
    many_copies()
    middle = tensor("A/middle:0")
    assert [op.name for op in middle.consumers()] == ["A/y"]
    assert [t.name for t in middle.op.inputs] == ["A/x:0"]


def test_consumers_of_a_shared_tensor_include_the_copies():
    x = tf.constant(1.0, name="x")
    clone([tf.exp(x, name="y")], shared=["x"])
    assert sorted(op.name for op in x.consumers()) == ["A/y", "y"]


def test_unknown_names_are_still_unknown():
    many_copies()
    with pytest.raises(KeyError):
        tf.get_default_graph().get_operation_by_name("A/none")


def test_new_ops_on_copies_and_their_gradients():
    x, _ = many_copies()
    z = tf.reduce_sum(tensor("A/y:0")) + tf.reduce_sum(x)
    (gradient,) = tf.gradients(z, tensor("A/x:0"))
    np.testing.assert_allclose(run(gradient, {x: [0, 0], "A/x:0": [0, 1]}), np.exp([0, 1]), rtol=1e-6)


def test_a_later_import_works():
    many_copies()
    graph_def = tf.GraphDef()
    graph_def.node.add(name="later", op="NoOp")
    tf.import_graph_def(graph_def, name="imported")
    assert tf.get_default_graph().get_operation_by_name("imported/later").type == "NoOp"
    assert tensor("B/y:0").op.type == "Exp"


def test_a_later_function_call_and_loop_work():
    x, _ = many_copies()
    out = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
    double = tf.function(lambda t: t * 2)(tensor("A/y:0"))
    assert run([out, double], {x: [0, 0], "A/x:0": [0, 0]})[1].tolist() == [2, 2]


def test_wrapping_inside_a_loop_body_leaves_the_copy_outside_the_loop():
    many_copies()
    wrapped = []

    def body(i):
        wrapped.append(tf.get_default_graph().get_operation_by_name("A/y"))
        return i + 1

    tf.while_loop(lambda i: i < 3, body, [0])
    assert tf_compat.control_flow_context_of(wrapped[0]) is None


def test_wrapping_in_a_finalized_graph(graph):
    many_copies()
    graph.finalize()
    assert graph.get_operation_by_name("A/y").type == "Exp"
    assert graph.finalized


def test_counting_ops_counts_those_without_an_object(graph):
    before = tf_compat.num_nodes(graph)
    many_copies()
    assert tf_compat.num_nodes(graph) - before == 9 == len(tf_compat.op_names(graph))
