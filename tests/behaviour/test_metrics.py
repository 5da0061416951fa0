"""Metric variables (tf.metrics, Keras) add up over all replicas of a process, and over the workers that ask for it."""

import os
from typing import Any, Dict, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, error_of
from tests.parity.context import Context
from tests.parity.oracle import NOT_OF_ONE_DEVICE, Oracle, topology_name
from tests.parity.scripts.data import CLASSES, samples
from tests.parity.scripts.models import cross_entropy, dense
from tests.tensorflows import WITH_ESTIMATOR

STEPS = 3


def _metrics(labels: tf.Tensor, logits: tf.Tensor) -> Dict[str, Tuple[tf.Tensor, tf.Tensor]]:
    """Value and update of some metrics."""
    predicted, of_one = tf.argmax(logits, 1, output_type=tf.int32), tf.nn.softmax(logits)[:, 0]
    keras = tf.keras.metrics.Mean(name="keras_mean")
    update = keras.update_state(tf.reduce_logsumexp(logits, 1))
    for variable in keras.variables:
        tf.add_to_collection(tf.GraphKeys.LOCAL_VARIABLES, variable)
    with tf.control_dependencies([update]):
        updated = tf.identity(keras.result())
    return {
        "accuracy": tf.metrics.accuracy(labels, predicted),
        "mean": tf.metrics.mean(tf.reduce_logsumexp(logits, 1), weights=tf.cast(labels, tf.float32)),
        "auc": tf.metrics.auc(tf.equal(labels, 0), of_one),
        "iou": tf.metrics.mean_iou(labels, predicted, CLASSES),
        "precision": tf.metrics.precision_at_thresholds(tf.equal(labels, 0), of_one, [0.2, 0.5]),
        "keras": (keras.result(), updated),
    }


def _train(ctx: Context) -> None:
    """Fetches updates next to training steps, then the values; evaluates odd numbers of rows in the same variables."""
    ctx.init()
    small = Small()
    metrics = _metrics(small.y, small.logits)
    values = {name: value for name, (value, _) in metrics.items()}
    updates = {name: update for name, (_, update) in metrics.items()}
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for step in range(STEPS):
            feed = small.feed(ctx, step)
            ctx.record(updated=sess.run([updates, small.train_op], feed)[0], then=sess.run(values))
        if ctx.workers == 1:
            feed = {one: value[:5] for one, value in small.feed(ctx).items()}
            ctx.record(evaluated=sess.run(updates, feed), then=sess.run(values), again=sess.run(values, feed))
        sess.run(tf.local_variables_initializer())
        ctx.record(cleared=sess.run(metrics["mean"][0]))


def _read(ctx: Context) -> None:
    ctx.init()
    data = samples()
    sizes = [8, 5, 8, 3] if ctx.planned else [13, 11]
    ends = [0, *np.cumsum(sizes)]
    batches = [(data.x[a:b], data.y[a:b]) for a, b in zip(ends, ends[1:])]
    shapes = [None, data.x.shape[1]], [None]
    read = tf.data.Dataset.from_generator(lambda: iter(batches), (tf.float32, tf.int32), shapes)
    x, y = tf.data.make_one_shot_iterator(read.repeat(2)).get_next()
    logits = dense(x, CLASSES, "out")
    metrics = _metrics(y, logits)
    values = {name: value for name, (value, _) in metrics.items()}
    updates = {name: update for name, (_, update) in metrics.items()}
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(cross_entropy(y, logits))
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        ctx.record(updated=sess.run([updates, train_op])[0], then=sess.run(values))
        ctx.record(updated=sess.run(updates), then=sess.run(values))
        sess.run(list(updates.values()))
        ctx.record(then=sess.run(values))
        sess.run([update.op for update in updates.values()])
        ctx.record(then=sess.run(values))


def _differing(seen: Any, expected: Any) -> Any:
    if isinstance(expected, dict):
        found = {name: _differing(seen[name], one) for name, one in expected.items()}
        return {name: one for name, one in found.items() if one}
    if isinstance(expected, list):
        return {at: one for at, one in enumerate(map(_differing, seen, expected)) if one}
    return None if np.allclose(seen, expected, rtol=1e-5, equal_nan=True) else (seen, expected)


@pytest.mark.parametrize("script", [_train, _read])
def test_metric_variables_are_of_all_replicas(oracle: Oracle, script: Any) -> None:
    expected = oracle.plain(script).results
    (answer,) = oracle.plan((1, 2), script)
    assert _differing(answer.results, expected) == {}
    assert NOT_OF_ONE_DEVICE not in answer.log


def _train_with_a_maximum(ctx: Context) -> None:
    ctx.init()
    small = Small()
    collections = [tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES]
    largest = tf.get_variable("largest", initializer=0.0, trainable=False, collections=collections)
    update = tf.assign(largest, tf.maximum(largest, tf.reduce_max(small.logits)))
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run([small.train_op, update], small.feed(ctx))


def test_a_metric_that_does_not_add_up_is_told(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _train_with_a_maximum)
    (line,) = [line for line in answer.log.splitlines() if NOT_OF_ONE_DEVICE in line]
    assert "writes `largest` from the rows of each replica" in line


# ---- Of all workers.

ROWS, BATCH = 37, 5


def _evaluate(ctx: Context) -> None:
    """A loop of each worker over its share of the rows, of another number; then one of worker 0 alone on all rows."""
    ctx.init()
    small = Small()
    metrics = _metrics(small.y, small.logits)
    values = {name: value for name, (value, _) in metrics.items()}
    updates = [update for _, update in metrics.values()]
    data = samples()

    def loop(mine: slice) -> None:
        x, y = data.x[:ROWS][mine], data.y[:ROWS][mine]
        for at in range(0, len(y), BATCH):
            sess.run(updates, {small.x: x[at : at + BATCH], small.y: y[at : at + BATCH]})

    with tf.train.MonitoredTrainingSession() as monitored:
        sess = monitored.run_step_fn(lambda step_context: step_context.session)
        sess.run(small.train_op, small.feed(ctx))
        for _ in range(2):
            sess.run([variable.initializer for variable in tf.local_variables()])
            loop(slice(ctx.worker, 25, ctx.workers))
            if ctx.worker == 0:
                loop(slice(25, None))
            if ctx.planned:
                import epl

                epl.sum_metrics(monitored)
            ctx.record(values=sess.run(values))
        sess.run([variable.initializer for variable in tf.local_variables()])
        if ctx.worker == 0:
            loop(slice(None))
            ctx.record(values=sess.run(values))
        sess.run(small.train_op, small.feed(ctx))


@pytest.mark.parametrize("topology", [(2, 1), (2, 2)], ids=topology_name)
def test_metrics_of_all_workers_are_those_of_one_device(oracle: Oracle, topology: Any) -> None:
    expected = oracle.plain(_evaluate).results["values"]
    first, *others = [answer.results["values"] for answer in oracle.plan(topology, _evaluate)]
    assert _differing(first, expected) == {}
    for other in others:
        assert _differing(other, expected[:2]) == {}


def _refused(ctx: Context) -> None:
    ctx.init()
    import epl

    collections = [tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES]
    count = tf.get_variable("count", initializer=0.0, trainable=False, collections=collections)
    mean = tf.get_variable("mean", initializer=0.0, trainable=False, collections=collections)
    batch = tf.placeholder(tf.float32, [None])
    counted = tf.assign_add(count, tf.cast(tf.size(batch), tf.float32))
    tf.assign_add(mean, tf.reduce_sum(batch - mean) / counted)
    _, other = tf.metrics.mean(batch, name="other")
    with tf.Session() as sess:
        sess.run(tf.local_variables_initializer())
        ctx.record(errors=error_of(epl.sum_metrics, sess))
        sess.run(other, {batch: [1.0 + ctx.worker] * (1 + ctx.worker)})
        chosen = [variable for variable in tf.local_variables() if "other" in variable.name]
        epl.sum_metrics(sess, chosen)
        ctx.record(sums=sess.run(chosen))
        ctx.record(errors=error_of(epl.sum_metrics, sess, chosen[: 1 + ctx.worker]))


def test_what_does_not_add_up_is_refused_by_name(oracle: Oracle) -> None:
    for answer in oracle.plan((2, 1), _refused):
        not_sums, unequal = answer.results["errors"]
        assert "PlanError" in not_sums and "'count', 'mean' are written otherwise" in not_sums
        assert answer.results["sums"] == [[5.0, 3.0]]
        assert "PlanError" in unequal and "other variables in worker" in unequal


# ---- Estimators.


def _model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> Any:
    logits = dense(features, CLASSES, "out")
    loss, train_op = cross_entropy(labels, logits), None
    metrics = {name: pair for name, pair in _metrics(labels, logits).items() if name != "keras"}
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, None, loss, train_op, metrics)


def _estimate(ctx: Context) -> None:
    ctx.init()
    data = samples()

    def rows(mine: slice) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((data.x[:ROWS][mine], data.y[:ROWS][mine])).batch(BATCH)

    estimator = tf.estimator.Estimator(_model_fn, os.path.join(ctx.directory, "model"))
    estimator.train(lambda: rows(slice(0, BATCH)), steps=1)
    hooks = []
    if ctx.planned:
        import epl

        hooks = [epl.SumMetricsHook()]
        spec = tf.estimator.EvalSpec(lambda: rows(slice(None)), hooks=hooks)
        train_spec = tf.estimator.TrainSpec(lambda: rows(slice(0, BATCH)), max_steps=2)
        if ctx.workers > 1:
            ctx.record(error=error_of(tf.estimator.train_and_evaluate, estimator, train_spec, spec))
    ctx.record(evaluated=estimator.evaluate(lambda: rows(slice(ctx.worker, None, ctx.workers)), hooks=hooks))
    if ctx.worker == 0:
        ctx.record(alone=estimator.evaluate(lambda: rows(slice(None))))


@WITH_ESTIMATOR
def test_estimators_evaluate_on_all_workers(oracle: Oracle) -> None:
    (expected,) = oracle.plain(_estimate).results["evaluated"]
    answers = [answer.results for answer in oracle.plan((2, 1), _estimate)]
    del expected["loss"]  # the mean over batches, which are others
    for results in answers:
        assert _differing(results["evaluated"][0], expected) == {}
        assert "PlanError" in results["error"][0] and "worker 0 evaluates alone" in results["error"][0]
    assert _differing(answers[0]["alone"][0], expected) == {}
