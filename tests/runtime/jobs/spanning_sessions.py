"""Scripts of users whose two stages lie in different workers: the ways to drive a session, and what else they do.

Each takes what `spanning_training.py` gives to a script.
"""

import os
from typing import Any, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from tests.parity.context import Context
from tests.parity.scripts import split_pipelines  # noqa: F401  (fills the table of models)
from tests.parity.scripts.data import CLASSES, FEATURES
from tests.parity.scripts.models import cross_entropy, dense
from tests.parity.scripts.pipeline_models import Inputs, build, placeholders
from tests.parity.scripts.pipelines import STEPS, Pipeline, feed

MICRO_BATCHES = 4


def optimizer() -> tf.train.Optimizer:
    """The one of all scripts."""
    return tf.train.AdamOptimizer(0.01)


def _minimize(loss: tf.Tensor) -> tf.Operation:
    return optimizer().minimize(loss, tf.train.get_or_create_global_step())


def _fed_model(ctx: Context, **config: Any) -> Tuple[Pipeline, Inputs, tf.Tensor, tf.Operation]:
    plan = Pipeline(ctx, stages=2, micro_batches=MICRO_BATCHES, **config)
    inputs = placeholders()
    with tf.variable_scope("net"):
        loss = plan.loss("mlp", inputs)
    return plan, inputs, loss, _minimize(loss)


def _dataset(plan: Pipeline, micro_batches: int) -> tf.data.Dataset:
    """This worker's share of the samples, as micro batches."""
    rows = tf.data.Dataset.from_tensor_slices(plan.stream())
    return rows.batch(plan.micro_rows).take(micro_batches)


def monitored(ctx: Context, last_step: int, directory: str = "monitored", **config: Any) -> None:
    """Trains from the checkpoint that is there to a step, with hooks, checkpoints and summaries."""
    plan, inputs, loss, train_op = _fed_model(ctx, **config)
    tf.summary.scalar("loss", loss)
    step = tf.train.get_global_step()
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=os.path.join(ctx.directory, directory),
        save_checkpoint_steps=2,
        save_summaries_steps=1,
        hooks=[tf.train.StopAtStepHook(last_step=last_step), tf.train.NanTensorHook(loss)],
    ) as sess:
        while not sess.should_stop():
            number = sess.run_step_fn(lambda step_context: step_context.session.run(step))
            ctx.record(step=int(number), loss=sess.run([loss, train_op], feed(inputs, plan.rows(number)))[0])


def estimator(ctx: Context) -> None:
    """Trains, evaluates and predicts."""
    plan = Pipeline(ctx, stages=2, micro_batches=MICRO_BATCHES)

    def model_fn(features: Any, labels: Any, mode: str) -> tf.estimator.EstimatorSpec:
        with tf.variable_scope("net"):
            with epl.replicate(1):
                hidden = dense(features["x"], 8, "first", tf.nn.tanh)
            with epl.replicate(1):
                logits = dense(hidden, CLASSES, "out")
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"logits": logits})
        loss = cross_entropy(labels, logits)
        train_op = _minimize(loss) if mode == tf.estimator.ModeKeys.TRAIN else None
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> tf.data.Dataset:
        return _dataset(plan, STEPS * MICRO_BATCHES).map(lambda rows: ({"x": rows.x}, rows.y))

    model = tf.estimator.Estimator(model_fn, os.path.join(ctx.directory, "trained_by_%d" % ctx.worker))
    model.train(input_fn)
    if ctx.worker == 0:  # writes the checkpoint, alone
        ctx.record(evaluated=model.evaluate(input_fn, steps=2), predicted=next(model.predict(input_fn))["logits"])
        ctx.record(variables={name: model.get_variable_value(name) for name in model.get_variable_names()})
    else:
        ctx.record(wrote=os.listdir(model.model_dir))


def saver(ctx: Context, **config: Any) -> None:
    """Saves, goes on, restores: the steps after are the same. Predicts with the trained model; two sessions."""
    plan, inputs, loss, train_op = _fed_model(ctx, **config)
    saver_object = tf.train.Saver()
    path = os.path.join(ctx.directory, "saved")

    def steps(sess: tf.Session, first: int, last: int) -> List[float]:
        return [sess.run([loss, train_op], feed(inputs, plan.rows(step)))[0] for step in range(first, last)]

    with tf.Session() as sess, tf.Session() as other:
        sess.run(tf.global_variables_initializer())
        other.run(tf.global_variables_initializer())
        ctx.record(first=steps(sess, 0, 3))
        saver_object.save(sess, path)
        ctx.record(other=steps(other, 0, 3))
        ctx.record(second=steps(sess, 3, 6), evaluated=sess.run(loss, feed(inputs, plan.rows(0))))
        saver_object.restore(sess, path)
        ctx.record(third=steps(sess, 3, 6))
        ctx.record_variables(sess)


def graphs(ctx: Context, **config: Any) -> None:
    """Trains two models, each in a graph of its own, one after the other; then infers with a third graph."""
    plan = Pipeline(ctx, stages=2, micro_batches=MICRO_BATCHES, **config)
    for number in range(2):
        with tf.Graph().as_default():
            inputs = placeholders()
            with tf.variable_scope("net"):
                loss = plan.loss("mlp", inputs)
            train_op = _minimize(loss)
            with tf.Session() as sess:
                sess.run(tf.global_variables_initializer())
                for step in range(STEPS):
                    feeds = feed(inputs, plan.rows(step))
                    ctx.record(**{"loss%d" % number: sess.run([loss, train_op], feeds)[0]})
                trained = sess.run(tf.trainable_variables())
    with tf.Graph().as_default():
        inputs = placeholders()
        with tf.variable_scope("net"):
            loss = plan.loss("mlp", inputs)
        with tf.Session() as sess:
            for variable, value in zip(tf.trainable_variables(), trained):
                variable.load(value, sess)
            ctx.record(evaluated=sess.run(loss, feed(inputs, plan.rows(0))))


def data_ends(ctx: Context, micro_batches: List[int], name: str = "mlp", split: int = 0) -> None:
    """Constructors have data for different numbers of steps."""
    plan = Pipeline(ctx, stages=2, micro_batches=MICRO_BATCHES, split=split)
    inputs = Inputs(*_dataset(plan, micro_batches[ctx.worker]).make_one_shot_iterator().get_next())
    with tf.variable_scope("net"):
        loss = plan.loss(name, inputs)
    train_op = _minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        try:
            while True:
                ctx.record(loss=sess.run([loss, train_op])[0])
        except tf.errors.OutOfRangeError:
            ctx.record(ended=True)
        ctx.record_variables(sess)


def of_the_script(ctx: Context) -> None:
    """A Python function and files within the second stage; summaries."""
    Pipeline(ctx, stages=2, micro_batches=1)
    path = os.path.join(ctx.directory, "text_%d" % ctx.worker)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    with ctx.scope():
        hidden = dense(x, 8, "first")
    with ctx.scope():
        pid = tf.numpy_function(lambda values: np.int64(os.getpid()), [hidden], tf.int64)
        pid.set_shape([])
        hidden = hidden + 0.0 * tf.cast(pid, tf.float32)
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, "out")))
        write = tf.io.write_file(path, tf.strings.as_string(pid))
        read = tf.io.read_file(path)
    train_op = _minimize(loss)
    summary = tf.summary.merge([tf.summary.scalar("loss", loss), tf.summary.histogram("hidden", hidden)])
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        rows = np.ones([4, FEATURES], np.float32)
        seen, text, _ = sess.run([pid, summary, train_op], {x: rows})
        sess.run(write, {x: rows})
        ctx.record(pid=int(seen), own=os.getpid(), read=int(sess.run(read)))
        ctx.record(tags=[value.tag for value in tf.Summary.FromString(text).value])
        ctx.record(devices=[write.device, read.device, pid.device, hidden.device])


def automatic(ctx: Context) -> None:
    """No annotation: the stages are found."""
    plan = Pipeline(ctx, 1, MICRO_BATCHES, auto__auto_parallel=True, pipeline__num_stages=2)
    inputs = placeholders()
    with tf.variable_scope("net"):
        loss = build("mlp", inputs)
    train_op = _minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], feed(inputs, plan.rows(step)))[0])
        ctx.record_variables(sess)
        ctx.record(devices=sorted({variable.device for variable in tf.trainable_variables()}))
