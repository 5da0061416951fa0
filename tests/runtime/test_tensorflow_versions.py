"""What differs between versions of TensorFlow without an error: each is the same under EPL on all of them."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.runtime import hooks
from epl.utils import tf_compat
from tests.parallel.in_process import Linear, rewritten


def test_op_numbers_name_exactly_the_new_ops():
    with tf.Graph().as_default() as graph:
        assert tf_compat.last_op_id(graph) == 0 and tf_compat.ops_since(graph, 0) == []
        first = tf.constant(1.0, name="first").op
        assert tf_compat.op_id(first) == tf_compat.last_op_id(graph)
        assert tf_compat.ops_since(graph, 0) == [first]
        second = tf.constant(1.0, name="second").op
        assert tf_compat.ops_since(graph, tf_compat.op_id(first)) == [second]
        assert tf_compat.ops_since(graph, tf_compat.last_op_id(graph)) == []
        assert tf_compat.ops_between(graph, 0, tf_compat.op_id(first)) == [first]
        assert tf_compat.num_nodes(graph) == 2 and tf_compat.op_names(graph) == {"first", "second"}
        third = tf.constant(1.0, name="third").op
        assert tf_compat.op_names(graph) == {"first", "second", "third"} and tf_compat.op_id(third) > 0


def test_ops_that_are_imported_in_bulk_are_found_and_counted():
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="first")
        before = tf_compat.last_op_id(graph), tf_compat.num_nodes(graph)
        node = tf.NodeDef(name="imported", op="NoOp")
        tf_compat.import_nodes(graph, tf.GraphDef(node=[node]).SerializeToString(), ["imported"], [], [])
        assert tf_compat.num_nodes(graph) == before[1] + 1 and "imported" in tf_compat.op_names(graph)
        assert graph.get_operation_by_name("imported").type == "NoOp"
        assert tf_compat.op_id(graph.get_operation_by_name("imported")) == before[0] + 1


def test_a_view_sees_functions_that_are_added_in_bulk():
    with tf.Graph().as_default() as source:
        tf_compat.function.Defun(tf.float32, func_name="double")(lambda x: x * 2.0)(tf.constant(1.0))
        library = tf_compat.full_graph_def(source).library
    with tf.Graph().as_default() as graph:
        tf.constant(1.0)
        view = GraphView(graph)
        tf_compat.add_functions(graph, library)
        assert [one.signature.name for one in view.followed(graph, []).graph_def.library.function] == ["double"]


def test_copies_of_a_function_draw_different_numbers(init):
    init(2)
    shape = tf.placeholder_with_default([8], [1])
    draw = tf_compat.function.Defun(tf.float32, func_name="draw")(lambda x: x * tf.random_uniform([8], seed=3))
    model = Linear()
    noise = draw(tf.ones(shape))
    tf.add_to_collection("noise", noise)
    model.loss = model.loss + 0.0 * tf.reduce_sum(noise)
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        own, other = sess.run([noise, "EPL_REPLICA_1/" + noise.name], model.feed())
    assert not np.array_equal(own, other)


def test_feeds_reach_all_replicas(init):
    init(2)
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = model.feed()
        out = sess.run(model.out, feed)
        np.testing.assert_allclose(out, feed[model.x].sum(1, keepdims=True), rtol=1e-5)
        call = sess.make_callable(model.out, [model.x])
        np.testing.assert_allclose(call(feed[model.x]), out, rtol=1e-6)


def test_keras_optimizers_of_users_are_recorded(init):
    init(2)
    model = Linear(resource=True)
    optimizer = tf.keras.optimizers.SGD(0.1)
    assert isinstance(optimizer, tf_compat.KERAS_OPTIMIZERS)
    gradients = tf.gradients(model.loss, [model.w])
    train_op = optimizer.apply_gradients(zip(gradients, [model.w]))
    rewrite = rewritten()
    assert rewrite.world_size == 2 and train_op is not None
    assert any(op_type.startswith("Epl") for op_type in {op.type for op in tf.get_default_graph().get_operations()})


def test_monitored_sessions_are_wrapped_once():
    hooks.remove()
    before = {id(module): module.MonitoredTrainingSession for module in tf_compat.TRAIN_MODULES}
    hooks.install()
    originals = [original for _, name, original in hooks._installed if name == "MonitoredTrainingSession"]
    hooks.remove()
    assert len(originals) == len(before) == len(tf_compat.TRAIN_MODULES)
    assert tf.train in tf_compat.TRAIN_MODULES
    assert all(original in before.values() for original in originals)


def test_a_session_without_a_configuration_trains(init):
    init(2)
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())


def test_a_save_after_training_writes_the_users_graph(init, tmp_path):
    init(2)
    model = Linear()
    model.minimize()
    saver = tf.train.Saver()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        path = saver.save(sess, os.path.join(str(tmp_path), "model"))
    meta = tf.MetaGraphDef.FromString(open(path + ".meta", "rb").read())
    assert not any(node.name.startswith("EPL") for node in meta.graph_def.node)


@pytest.mark.tensorflow("2.21", reason="older ones have no use_pybind11_proto")
@pytest.mark.parametrize("trained", [False, True])
def test_exported_graphs_may_be_asked_for_in_either_way(init, trained):
    init(2)
    model = Linear()
    model.minimize()
    if trained:
        rewritten()
    graph = tf.get_default_graph()
    assert graph.as_graph_def(use_pybind11_proto=True) == graph.as_graph_def(use_pybind11_proto=False)
