"""Estimators and monitored sessions of two workers: each finds the model that was trained, in whichever directory."""

import os
from typing import Any, Dict

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle
from tests.parity.scripts.data import samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS, cross_entropy, dense
from tests.tensorflows import WITH_ESTIMATOR

TWO_WORKERS = (2, 1)
pytestmark = WITH_ESTIMATOR


def _rows(ctx: Context) -> tf.data.Dataset:
    data = samples()
    return tf.data.Dataset.from_tensor_slices(({"x": ctx.stream(data.x)}, ctx.stream(data.y))).batch(ctx.batch)


def _all_rows() -> tf.data.Dataset:
    data = samples()
    return tf.data.Dataset.from_tensor_slices(({"x": data.x}, data.y)).batch(16)


def _model_fn(features: Dict[str, tf.Tensor], labels: tf.Tensor, mode: str) -> Any:
    logits = dense(dense(features["x"], 8, "hidden", tf.nn.tanh), 5, "out")
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"logits": logits})
    loss = cross_entropy(labels, logits)
    train_op, metrics = None, {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
    if mode == tf.estimator.ModeKeys.TRAIN:
        train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, None, loss, train_op, metrics)


def _directory(ctx: Context, shared: bool) -> str:
    return os.path.join(ctx.directory if shared else ctx.temporary_directory(), "model")


def _train_then_use(ctx: Context, shared: bool) -> None:
    """What a script for one device does with an Estimator."""
    ctx.init()
    directory = _directory(ctx, shared)
    model = tf.estimator.Estimator(_model_fn, directory, tf.estimator.RunConfig(save_checkpoints_steps=4))
    model.train(lambda: _rows(ctx), steps=STEPS)
    ctx.record(
        files=os.listdir(directory),
        step=model.get_variable_value("global_step"),
        evaluated=model.evaluate(_all_rows, steps=3),
    )
    ctx.record(predicted=next(model.predict(_all_rows))["logits"])


@pytest.mark.parametrize("shared", [False, True], ids=["own directories", "one directory"])
def test_every_worker_uses_what_was_trained(oracle: Oracle, shared: bool) -> None:
    expected = oracle.plain(_train_then_use, shared=False).results
    first, second = oracle.plan(TWO_WORKERS, _train_then_use, shared=shared)
    for answer in (first, second):
        assert answer.results["step"] == [STEPS]
        np.testing.assert_allclose(answer.results["predicted"][0], expected["predicted"][0], rtol=1e-4)
        assert answer.results["evaluated"][0] == pytest.approx(expected["evaluated"][0], rel=1e-5)
    if not shared:
        assert second.results["files"] == [["checkpoint"]]


def _train_and_evaluate(ctx: Context, training_hook: bool) -> None:
    """With a CheckpointSaverHook of the user, TensorFlow evaluates when that saves."""
    ctx.init()
    directory = _directory(ctx, shared=False)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        hooks = [tf.train.CheckpointSaverHook(directory, save_steps=2)] if training_hook else []
        return _model_fn(features, labels, mode)._replace(training_hooks=hooks)

    model = tf.estimator.Estimator(model_fn, directory, tf.estimator.RunConfig(save_checkpoints_steps=4))
    train = tf.estimator.TrainSpec(lambda: _rows(ctx), max_steps=STEPS)
    evaluate = tf.estimator.EvalSpec(_all_rows, steps=3, throttle_secs=0)
    ctx.record(metrics=tf.estimator.train_and_evaluate(model, train, evaluate)[0])


@pytest.mark.parametrize("training_hook", [False, True], ids=["", "training_hook"])
def test_train_and_evaluate_has_a_result_in_every_worker(oracle: Oracle, training_hook: bool) -> None:
    first, second = oracle.plan(TWO_WORKERS, _train_and_evaluate, training_hook=training_hook)
    assert first.results["metrics"][0]["global_step"] == STEPS
    assert second.results["metrics"] == first.results["metrics"]
    assert "worker 0 evaluates" not in second.log


def _continued(ctx: Context, lost: bool = False, **config: Any) -> None:
    """Trained in two sessions, the second of which begins with the checkpoint of the first."""
    directory = _directory(ctx, shared=False)
    data = samples()
    for first in (0, STEPS // 2):
        if not ctx.planned:
            tf.reset_default_graph()
        ctx.init(**config)
        if first and lost and ctx.worker == 0:
            directory = _directory(ctx, shared=False)
        x, y = tf.placeholder(tf.float32, [None, 12]), tf.placeholder(tf.int32, [None])
        loss = MODELS["layers"](x, None, y)
        train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
        variables = tf.global_variables()
        with tf.train.MonitoredTrainingSession(checkpoint_dir=directory, save_checkpoint_steps=2) as sess:
            for step in range(first, first + STEPS // 2):
                feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)}
                ctx.record(loss=sess.run([loss, train_op], feed)[0])
            ctx.record_variables(sess._tf_sess(), variables)  # pylint: disable=protected-access


@pytest.mark.parametrize("config", [{}, {"zero__level": "v1"}], ids=["data_parallel", "zero"])
def test_training_goes_on_from_directories_of_their_own(oracle: Oracle, config: Any) -> None:
    oracle.check(TWO_WORKERS, _continued, **config)


def test_parts_of_two_trainings_are_not_mixed(oracle: Oracle) -> None:
    _, second = oracle.failing_plan(TWO_WORKERS, _continued, lost=True, zero__level="v1")
    assert "Worker 0 begins with no checkpoint, and worker 1 with '" in (second.error or "")
