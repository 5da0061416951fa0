"""What cannot be trained as asked: the error, and that it stays an error."""

import os
import signal

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel import features, transformation
from epl.utils.errors import PlanError
from tests.parallel.in_process import Linear, error_text


@pytest.mark.parametrize("broken", ["the first pass", "the last pass"])
def test_a_graph_whose_rewriting_failed_never_runs(init, monkeypatch, broken):
    init()
    model = Linear()
    model.minimize()
    calls = []

    def fail(*_):
        calls.append(1)
        raise PlanError("it broke")

    passes = transformation.passes_of(features.FEATURES)
    place = 0 if broken == "the first pass" else -1
    passes[place] = passes[place]._replace(run=fail)
    monkeypatch.setattr(transformation, "passes_of", lambda *_: passes)
    for _ in range(2):
        with tf.Session() as sess:
            for _ in range(2):
                assert error_text(sess.run, model.loss, model.feed()) == "PlanError: it broke"
    assert calls == [1] and Graph.get().rewritten is None


def test_a_graph_that_is_refused_is_refused_again(init):
    init(annotate=False)
    with epl.replicate(5):
        model = Linear()
        model.minimize()
    with tf.Session() as sess:
        texts = {error_text(sess.run, model.train_op, model.feed()) for _ in range(3)}
    (text,) = texts
    assert text.startswith("LayoutError") and "is not divisible by num_device_per_replica 5" in text


def test_devices_that_do_not_fit_several_taskgraphs_name_these(init):
    init(4, annotate=False)
    with epl.replicate(4, name="stem"):
        model = Linear()
    epl.set_default_strategy(epl.replicate(4))
    model.minimize()
    with tf.Session() as sess:
        text = error_text(sess.run, model.train_op, model.feed())
    assert "4 is not divisible by num_device_per_replica 8" in text
    assert "The TaskGraphs are epl.replicate(device_count=4, name='stem'), epl.replicate(device_count=4" in text


@pytest.mark.parametrize("where", ["tf.function", "tf.cond with control flow v2"])
def test_applying_gradients_in_a_function_body_is_refused(init, where):
    init()
    model = Linear(resource=True)
    (gradient,) = tf.gradients(model.loss, [model.w])

    def apply():
        with tf.control_dependencies([model.optimizer.apply_gradients([(gradient, model.w)])]):
            return tf.constant(1.0)

    if where == "tf.function":
        text = error_text(tf.function(apply))
    else:
        tf.enable_control_flow_v2()
        try:
            text = error_text(tf.cond, tf.reduce_sum(model.x) > 0, apply, lambda: tf.constant(0.0))
        finally:
            tf.disable_control_flow_v2()
    assert "PlanError" in text and "function body" in text and "tf.disable_control_flow_v2()" in text


@pytest.mark.parametrize("key", ["zero__level", "gradient_checkpoint__type", "amp__level"])
def test_with_a_feature_applying_gradients_after_the_first_run_is_refused(init, key):
    init(**{key: {"zero__level": "v1", "gradient_checkpoint__type": "auto", "amp__level": "o1"}[key]})
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        text = error_text(tf.train.GradientDescentOptimizer(0.1).minimize, model.loss)
    assert text.startswith("PlanError") and "Build the whole training step before the first run" in text


def test_a_fork_that_uses_the_session_is_refused(init):
    init(2)
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed(2))
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's own handler would not run
            signal.alarm(20)
            texts = [error_text(sess.run, model.train_op, model.feed(2)), error_text(sess.run, model.w)]
            os.write(write_end, "\n".join(texts).encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            texts = pipe.read().split("\n")
        os.waitpid(pid, 0)
    assert len(texts) == 2
    for text in texts:
        assert text.startswith("PlanError") and f"a fork of process {os.getpid()}" in text
