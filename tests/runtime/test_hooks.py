"""What is replaced in TensorFlow, and that it is given back; exported graphs are the user's."""

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.runtime import hooks
from epl.utils import tf_compat
from tests.parallel.in_process import Linear, error_text, rewritten
from tests.tensorflows import WITH_ESTIMATOR

OWNERS = (
    tf.Graph, tf_compat.gradients_util_module, tf_compat.ControlFlowState, tf.train.Optimizer, tf_compat.BaseSession,
    tf.train.Saver, *tf_compat.KERAS_OPTIMIZERS, *tf_compat.RUN_CONFIGS, *tf_compat.TRAINING_EXECUTORS,
)  # fmt: skip


def attributes():
    return [dict(vars(owner)) for owner in OWNERS]


def test_install_and_remove_leave_tensorflow_as_it_was():
    hooks.remove()
    before = attributes()
    hooks.install()
    assert attributes() != before
    hooks.install()
    hooks.remove()
    assert attributes() == before


def test_everything_that_is_replaced_is_named_in_the_table():
    hooks.remove()
    hooks.install()
    replaced = [name for _, name, _ in hooks._installed]
    hooks.remove()
    for name in replaced:
        assert name in hooks.__doc__


def test_replacing_keeps_names_and_docs(init):
    init()
    assert tf.Session.run.__doc__.startswith("Runs operations")
    assert tf.train.Saver.save.__name__ == "save"


def test_plain_tensorflow_after_remove(init):
    init()
    hooks.remove()
    with tf.Graph().as_default(), tf.Session() as sess:
        model = Linear()
        model.minimize()
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        assert not [op for op in sess.graph.get_operations() if op.name.startswith("EPL")]


def exported(graph, add_shapes):
    """What `as_graph_def` gives, control inputs in the order of their names: TensorFlow keeps them as a set."""
    graph_def = graph.as_graph_def(add_shapes=add_shapes)
    for node in graph_def.node:
        inputs = [name for name in node.input if name[0] != "^"] + sorted(n for n in node.input if n[0] == "^")
        del node.input[:]
        node.input.extend(inputs)
    return [str(node) for node in graph_def.node], str(graph_def.versions), str(graph_def.library)


def test_the_exported_graph_is_the_users_node_for_node(init):
    init()
    data = tf.data.Dataset.from_tensor_slices(np.ones([8, 3], "f")).batch(2)
    hidden = tf.layers.batch_normalization(data.make_one_shot_iterator().get_next(), training=True)
    loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.nn.dropout(hidden, 0.5, seed=1), 1)))
    with tf.device("/gpu:0"), tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        tf.train.AdamOptimizer().minimize(loss)
    tf.summary.scalar("loss", loss)
    graph = tf.get_default_graph()
    before, before_shapes = exported(graph, False), exported(graph, True)
    rewrite = rewritten()
    assert len(rewrite.added) > 50 and rewrite.user_nodes
    assert exported(graph, False) == before
    assert exported(graph, True) == before_shapes


def test_the_exported_graph_trains_in_plain_tensorflow(init, tmp_path):
    init()
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        path = tf.train.Saver().save(sess, str(tmp_path / "model"))
        feed = {tensor.name: rows for tensor, rows in model.feed().items()}
        expected, train_op = sess.run("loss:0", feed), model.train_op.name
    hooks.remove()
    with tf.Graph().as_default(), tf.Session() as sess:
        saver = tf.train.import_meta_graph(path + ".meta")
        saver.restore(sess, path)
        np.testing.assert_allclose(sess.run("loss:0", feed), expected, rtol=1e-6)
        sess.run(train_op, feed)
        assert sess.run("loss:0", feed) < expected


def test_a_checkpoint_has_the_variables_of_one_device(init, tmp_path):
    init()
    model = Linear(optimizer=tf.train.AdamOptimizer())
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        path = tf.train.Saver().save(sess, str(tmp_path / "model"))
    names = sorted(name for name, _ in tf.train.list_variables(path))
    assert names == ["beta1_power", "beta2_power", "w", "w/Adam", "w/Adam_1"]


def test_a_frozen_graph(init):
    init()
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        frozen = tf.graph_util.convert_variables_to_constants(sess, sess.graph_def, ["out"])
    assert not [node.name for node in frozen.node if "EPL" in node.name or node.op.startswith("Epl")]


def test_a_session_gets_the_devices_of_the_plan(init):
    init(3)
    with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1)) as sess:
        names = [device.name for device in sess.list_devices()]
    assert len([name for name in names if "device:CPU:" in name]) == 3


def test_a_session_with_a_target_is_refused(init):
    init()
    assert "has the target 'grpc://" in error_text(tf.Session, "grpc://localhost:1")


@WITH_ESTIMATOR
def test_an_estimator_has_no_distribution_strategy(init, caplog):
    init()
    config = tf.estimator.RunConfig(train_distribute=object(), device_fn=lambda op: "/device:GPU:0", tf_random_seed=3)
    assert (config.train_distribute, config.device_fn, config.tf_random_seed) == (None, None, 3)
    (warning,) = [record.getMessage() for record in caplog.records if "RunConfig" in record.message]
    assert "train_distribute, device_fn" in warning


def test_one_device_changes_nothing(init):
    init(1)
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        before = tf_compat.num_nodes(sess.graph)
        initializer = tf.global_variables_initializer()
        sess.run(initializer)
        sess.run(model.train_op, model.feed())
        assert tf_compat.num_nodes(sess.graph) == before + 1
        assert Graph.get().rewritten.world_size == 1


def test_saver_of_another_worker_writes_nothing(init, tmp_path):
    init()
    model = Linear()
    model.minimize()
    saver, graph = tf.train.Saver(), tf.get_default_graph()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        epl.Env.get().cluster._worker_index = 1
        assert saver.save(sess, str(tmp_path / "inside")) is None
        assert not list(tmp_path.iterdir()) and graph is sess.graph


def test_saver_of_another_worker_writes_nothing_when_the_graph_is_not_the_default_one(init, tmp_path):
    init(annotate=False)
    with tf.Graph().as_default() as graph:
        with epl.replicate(1):
            Linear().minimize()
        saver, initializer = tf.train.Saver(), tf.global_variables_initializer()
    with tf.Session(graph=graph) as sess:
        sess.run(initializer)
    sess = tf.Session(graph=graph)
    sess.run(initializer)
    epl.Env.get().cluster._worker_index = 1
    assert saver.save(sess, str(tmp_path / "outside")) is None
