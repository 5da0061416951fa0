"""Several graphs, sessions, threads and calls of epl.init in one process; when the rewrite happens."""

import functools
import threading
from typing import Any, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, error_of
from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle, topology_name

_Small = functools.partial(Small, dtype=tf.float64)
topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)


def _losses(ctx: Context, sess: tf.Session, small: Small, steps: range = range(STEPS)) -> None:
    for step in steps:
        ctx.record(loss=sess.run([small.loss, small.train_op], small.feed(ctx, step))[0])


def _two_graphs(ctx: Context) -> None:
    """Two models in graphs of their own, trained in turn."""
    ctx.init(annotate=False)
    models = []
    for rate in (0.1, 0.02):
        graph = tf.Graph()
        with graph.as_default():
            with ctx.scope():
                small = _Small(rate)
            models.append((graph, small, tf.Session(), tf.global_variables_initializer()))
    for graph, _, sess, initializer in models:
        with graph.as_default():
            sess.run(initializer)
    for step in range(STEPS):
        for graph, small, sess, _ in models:
            with graph.as_default():
                _losses(ctx, sess, small, range(step, step + 1))
    with models[1][0].as_default():
        ctx.record_variables(models[1][2])


@topologies
def test_two_graphs_in_turn(oracle: Oracle, topology: Any) -> None:
    oracle.check(topology, _two_graphs)


def _init_again(ctx: Context) -> None:
    """A second model after a second epl.init, with another configuration, in a new default graph."""
    for rate, splits in ((0.1, 1), (0.02, 4)):
        tf.reset_default_graph()
        ctx.init(communication__max_splits=splits)
        small = _Small(rate)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            _losses(ctx, sess, small)
            ctx.record_variables(sess)


@topologies
def test_init_again(oracle: Oracle, topology: Any) -> None:
    oracle.check(topology, _init_again)


def _two_sessions(ctx: Context) -> None:
    """Two sessions on one graph have variables of their own and one rewrite."""
    ctx.init()
    small = _Small()
    initializer = tf.global_variables_initializer()
    for _ in range(2):
        with tf.Session() as sess:
            sess.run(initializer)
            _losses(ctx, sess, small)
            ctx.record_variables(sess)
    graph = tf.get_default_graph()
    ctx.record(
        copies=[
            error_of(graph.get_operation_by_name, name)
            for name in (
                "EPL_REPLICA_1/hidden/kernel",
                "EPL_REPLICA_1_1/hidden/kernel",
                "EPL_REPLICA_1/hidden/kernel_1",
            )
        ]
    )


@topologies
def test_two_sessions_on_one_graph(oracle: Oracle, topology: Any) -> None:
    for answer in oracle.check(topology, _two_sessions):
        made = [error == "no error" for error in answer.results["copies"][0]]
        assert made == [True, False, False]


def _early_session(ctx: Context) -> None:
    """The session is made before the model; the model is finalized by the user."""
    ctx.init()
    sess = tf.Session()
    small = _Small()
    initializer = tf.global_variables_initializer()
    variables = tf.global_variables()
    tf.get_default_graph().finalize()
    sess.run(initializer)
    _losses(ctx, sess, small)
    ctx.record(finalized=tf.get_default_graph().finalized)
    ctx.record_variables(sess, variables)
    sess.close()


@topologies
def test_session_before_the_model_and_finalized_graph(oracle: Oracle, topology: Any) -> None:
    for answer in oracle.check(topology, _early_session):
        assert answer.results["finalized"] == [True]


def _interactive(ctx: Context) -> None:
    """InteractiveSession, run() and eval()."""
    ctx.init()
    sess = tf.InteractiveSession()
    small = _Small()
    tf.global_variables_initializer().run()
    for step in range(STEPS):
        ctx.record(loss=small.loss.eval(small.feed(ctx, step)))
        small.train_op.run(small.feed(ctx, step))
    ctx.record_variables(sess)
    sess.close()


@topologies
def test_interactive_session(oracle: Oracle, topology: Any) -> None:
    oracle.check(topology, _interactive)


def _thread(ctx: Context) -> None:
    """The training session lives in another thread."""
    ctx.init()
    small = _Small()
    initializer = tf.global_variables_initializer()
    graph, variables = tf.get_default_graph(), tf.global_variables()
    errors: List[Exception] = []

    def work() -> None:
        try:
            with graph.as_default(), tf.Session(graph=graph) as sess:
                sess.run(initializer)
                _losses(ctx, sess, small)
                ctx.record_variables(sess, variables)
        except Exception as error:  # pylint: disable=broad-except; raised again by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@topologies
def test_session_in_another_thread(oracle: Oracle, topology: Any) -> None:
    oracle.check(topology, _thread)


def _staged(ctx: Context) -> None:
    """The variables are initialised before the training op exists."""
    ctx.init()
    sess = tf.Session()
    value = tf.get_variable("value", [3], initializer=tf.ones_initializer())
    sess.run(tf.global_variables_initializer())
    ctx.record(early=sess.run(value))
    loss = tf.reduce_mean(tf.square(value * tf.placeholder(tf.float32, [None, 3], "x")))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    feed = {"x:0": np.ones([8, 3], np.float32)}
    ctx.record(same=error_of(sess.run, train_op, feed), value=sess.run(value))
    with tf.Session() as fresh:
        fresh.run(tf.global_variables_initializer())
        ctx.record(fresh=fresh.run([loss, train_op], feed)[0])


def test_a_run_before_the_training_op_exists_is_not_the_time_to_rewrite(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _staged)
    np.testing.assert_array_equal(answer.results["early"][0], np.ones(3))
    assert answer.results["fresh"] == [1.0]
    error = answer.results["same"][0]
    if error == "no error":
        np.testing.assert_allclose(answer.results["value"][0], np.full(3, 1 - 0.2 / 3), rtol=1e-6)
    else:
        assert "session" in error


def _exported(ctx: Context) -> None:
    """After training, an inference graph is built, restored and run in the same process; and an evaluation graph."""
    ctx.init()
    path = ctx.temporary_directory() + "/model"
    small = _Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(small.train_op, small.feed(ctx))
        tf.train.Saver().save(sess, path)
        logits = sess.run(small.logits, small.feed(ctx))
    if ctx.worker == 0:
        with tf.Graph().as_default(), tf.Session() as sess:
            tf.train.import_meta_graph(path + ".meta").restore(sess, path)
            again = sess.run(small.logits.name, {"x:0": small.feed(ctx)[small.x]})
            ctx.record(shapes=(logits.shape, again.shape))
            ctx.record(same=np.allclose(logits, again[: len(logits)], rtol=1e-5))
            ctx.record(kinds=sorted({one.type for one in sess.graph.get_operations() if one.type.startswith("Epl")}))


@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)
def test_the_saved_meta_graph_is_that_of_the_user(oracle: Oracle, topology: Any) -> None:
    answers = oracle.plan(topology, _exported)
    assert answers[0].results["same"] == [True]
