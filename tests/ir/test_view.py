"""GraphView: who feeds whom."""

import tensorflow.compat.v1 as tf

from epl.ir.clone import SAME, clone_nodes
from epl.ir.view import GraphView
from epl.parallel.rewriting.verifier import differences


def diamond():
    r"""a -> b -> d, a -> c -> d, and e after b by a control edge."""
    a = tf.placeholder(tf.float32, [], "a")
    b, c = tf.exp(a, name="b"), tf.log(a, name="c")
    tf.add(b, c, name="d")
    with tf.control_dependencies([b]):
        tf.constant(1, name="e")
    return GraphView(tf.get_default_graph())


def names(view, nodes):
    return {view.nodes[node].name for node in nodes}


def test_ancestors():
    with tf.Graph().as_default():
        view = diamond()
        assert names(view, view.ancestors([view.index["d"]])) == {"a", "b", "c", "d"}
        assert names(view, view.ancestors([view.index["e"]])) == {"a", "b", "e"}


def test_ancestors_stop_at_what_is_told():
    with tf.Graph().as_default():
        view = diamond()
        stop = view.index["b"]
        assert names(view, view.ancestors([view.index["e"]], lambda node: node == stop)) == {"b", "e"}


def test_descendants_follow_data_and_control_edges():
    with tf.Graph().as_default():
        view = diamond()
        assert names(view, view.descendants([view.index["b"]])) == {"b", "d", "e"}
        stop = view.index["b"]
        assert names(view, view.descendants([view.index["a"]], lambda node: node == stop)) == {"a", "b", "c", "d"}


def test_a_loop_is_walked_once():
    with tf.Graph().as_default():
        out = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0, name="start")])
        view = GraphView(tf.get_default_graph())
        assert "start" in names(view, view.ancestors([view.index[out.op.name]]))
        assert out.op.name in names(view, view.descendants([view.index["start"]]))


def test_nodes_by_type_and_variable_inputs():
    with tf.Graph().as_default():
        v = tf.get_variable("v", [2])
        w = tf.get_variable("w", [2], use_resource=True)
        ops = [v.assign_add([1.0, 1.0]).op, w.assign_add([1.0, 1.0]).op]
        view = GraphView(tf.get_default_graph())
        assert names(view, view.of_types(["VariableV2", "VarHandleOp"])) == {"v", "w"}
        for node in view.of_types(["AssignAdd", "AssignAddVariableOp"]):
            assert len(view.variable_inputs(node)) == 1
        assert len(ops) == 2 and len(view) == len(view.nodes)


def test_a_followed_view_is_that_of_the_graph_now():
    with tf.Graph().as_default() as graph:
        view = diamond()
        view.consumers()
        copies = clone_nodes(graph, view, view.ancestors([view.index["e"]]), ["A/", "B/"], lambda *unused: SAME)
        f = tf.identity(graph.get_tensor_by_name("A/b:0"), name="f")
        tf.constant(float("nan"))
        graph.get_operation_by_name("d")._update_input(1, f)
        followed = view.followed(graph, ["d"], copies)
        assert differences(followed, GraphView(graph)) == []
        assert names(followed, followed.descendants([followed.index["A/a"]])) == {"A/a", "A/b", "A/e", "f", "d"}


def test_a_followed_view_finds_changes_of_copies_at_any_time():
    with tf.Graph().as_default() as graph:
        view = diamond()
        view.followed(graph, [], clone_nodes(graph, view, [view.index["a"]], ["A/"], lambda *unused: SAME))
        graph.get_operation_by_name("A/a")._add_control_input(graph.get_operation_by_name("c"))
        assert differences(view.followed(graph, []), GraphView(graph)) == []


def test_a_view_that_missed_a_change_differs():
    with tf.Graph().as_default() as graph:
        view = diamond()
        graph.get_operation_by_name("d")._add_control_input(graph.get_operation_by_name("e"))
        assert len(differences(view.followed(graph, []), GraphView(graph))) == 1
