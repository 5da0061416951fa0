"""Pipelines in checkpoints, exported graphs, summaries, monitored sessions and Estimators."""

import glob
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import plain_graph
from tests.parallel.pipelines import Chain, begin, dense, no_stage, rows, stage
from tests.tensorflows import WITH_ESTIMATOR


def adam_chain(stage):
    model = Chain(2, stage, tf.train.AdamOptimizer(0.05))
    model.minimize(global_step=tf.train.get_or_create_global_step())
    return model


@pytest.mark.parametrize("first_planned", [False, True])
def test_a_checkpoint_goes_from_pipeline_to_plain_and_back(init, tmp_path, first_planned):
    begin(init, 4, 4)
    values = {}
    path = str(tmp_path / "model")
    for planned in (first_planned, not first_planned):
        with tf.Graph().as_default() if planned else plain_graph():
            model = adam_chain(stage if planned else no_stage)
            saver = tf.train.Saver()
            with tf.Session() as sess:
                if not values:
                    sess.run(tf.global_variables_initializer())
                    sess.run(model.train_op, model.feed(16))
                    saver.save(sess, path)
                    values["names"] = sorted(name for name, _ in tf.train.list_variables(path))
                else:
                    saver.restore(sess, path)
                values.setdefault("loss", []).append(sess.run([model.loss, model.train_op], model.feed(16, 3))[0])
                values.setdefault("state", []).append(sess.run(tf.global_variables()))
                assert values["names"] == sorted(v.op.name for v in tf.global_variables())
    np.testing.assert_allclose(*values["loss"], rtol=1e-5)
    for mine, other in zip(*values["state"]):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_the_exported_graph_is_the_users(init, tmp_path):
    begin(init, 4, 2)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        with tf.device("/cpu:0"):
            out = tf.identity(dense(hidden, 1, 1), name="out")
        loss = tf.reduce_mean(tf.square(out), name="loss")
    tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    saver = tf.train.Saver()
    before = {
        node.name: (node.op, node.device, list(node.input)) for node in tf.get_default_graph().as_graph_def().node
    }
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run("train", {x: rows(8)})
        expected = sess.run(out, {x: rows(3)})
        saver.save(sess, str(tmp_path / "model"))
    after = {node.name: (node.op, node.device, list(node.input)) for node in tf.get_default_graph().as_graph_def().node}
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if name.startswith("EPL_")]
    with tf.Graph().as_default(), tf.Session() as sess:
        tf.train.import_meta_graph(str(tmp_path / "model.meta")).restore(sess, str(tmp_path / "model"))
        np.testing.assert_allclose(sess.run("out:0", {"x:0": rows(3)}), expected, rtol=1e-5)
        sess.run("train", {"x:0": rows(8)})


def test_summaries_of_the_loss_and_of_collections_are_merged(init, tmp_path):
    begin(init, 4, 2)
    model = Chain(2)
    total = tf.reduce_sum(model.y, name="total")
    epl.add_to_collection(total, epl.GraphKeys.LOCAL_SUM_OBJECTS)
    model.minimize()
    tf.summary.scalar("shown_loss", model.loss)
    tf.summary.scalar("shown_total", total)
    tf.summary.histogram("kernel", tf.trainable_variables()[0])
    merged = tf.summary.merge_all()
    feed = model.feed(8)
    with tf.Session() as sess, tf.summary.FileWriter(str(tmp_path), sess.graph) as writer:
        sess.run(tf.global_variables_initializer())
        expected = sess.run(model.loss, feed)
        text, loss, _ = sess.run([merged, model.loss, model.train_op], feed)
        writer.add_summary(text, 1)
    summary = tf.Summary()
    summary.ParseFromString(text)
    found = {value.tag: value.simple_value for value in summary.value}
    np.testing.assert_allclose([found["shown_loss"], loss], [expected, expected], rtol=1e-5)
    np.testing.assert_allclose(found["shown_total"], feed[model.y].sum(), rtol=1e-4, atol=1e-5)
    assert glob.glob(str(tmp_path / "events*"))


class Recorder(tf.train.SessionRunHook):
    """The losses that a hook sees."""

    def __init__(self, loss):
        self.loss, self.seen = loss, []

    def before_run(self, context):
        return tf.train.SessionRunArgs(self.loss)

    def after_run(self, context, values):
        self.seen.append(values.results)


def test_a_monitored_session_with_hooks_and_a_restart(init, tmp_path):
    begin(init, 4, 2)
    steps = []
    for _ in range(2):
        with tf.Graph().as_default():
            model = adam_chain(stage)
            step = tf.train.get_global_step()
            tf.summary.scalar("loss", model.loss)
            recorder = Recorder(model.loss)
            hooks = [
                tf.train.StopAtStepHook(num_steps=5),
                tf.train.LoggingTensorHook({"loss": model.loss, "step": step}, every_n_iter=2),
                tf.train.NanTensorHook(model.loss),
                recorder,
            ]
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=2, save_summaries_steps=1
            ) as sess:
                while not sess.should_stop():
                    steps.append(sess.run([step, model.train_op], model.feed(8))[0])
            assert len(recorder.seen) == 5 and recorder.seen[-1] < recorder.seen[0]
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-10")
    with plain_graph():
        model = adam_chain(no_stage)
        with tf.Session() as sess:
            tf.train.Saver().restore(sess, tf.train.latest_checkpoint(str(tmp_path)))
            assert sess.run(tf.train.get_global_step()) == 10


@WITH_ESTIMATOR
def test_an_estimator_trains_evaluates_and_predicts(init, tmp_path):
    begin(init, 4, 2)

    def model_fn(features, labels, mode):
        with stage():
            hidden = dense(features, 3, 0)
        with stage():
            out = dense(hidden, 1, 1, None)
            if mode == tf.estimator.ModeKeys.PREDICT:
                return tf.estimator.EstimatorSpec(mode, predictions=out)
            loss = tf.reduce_mean(tf.square(out - labels))
        metrics = {"error": tf.metrics.mean_squared_error(labels, out)}
        if mode == tf.estimator.ModeKeys.EVAL:
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        train_op = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(repeat=None):
        x = rows(32)
        return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(4).repeat(repeat)

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    estimator.train(input_fn, steps=3)
    first = estimator.evaluate(lambda: input_fn(1))
    estimator.train(input_fn, steps=30)
    last = estimator.evaluate(lambda: input_fn(1))
    assert last["error"] < first["error"] and last["global_step"] == 33
    np.testing.assert_allclose(last["loss"], last["error"], rtol=1e-5)
    assert len(list(estimator.predict(lambda: input_fn(1)))) == 32


def test_a_plan_is_dumped_after_each_pass(init, tmp_path, monkeypatch):
    monkeypatch.setenv("EPL_DUMP_GRAPH", str(tmp_path))
    begin(init, 2, 2)
    model = Chain(2)
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed(8))
    assert [name for name in os.listdir(str(tmp_path)) if "clone_micro_batches" in name]
