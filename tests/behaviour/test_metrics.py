"""Metric variables (tf.metrics, Keras) add up over all replicas of a process, and over the workers that ask for it."""

import os
from typing import Any, Dict, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.utils import tf_compat
from tests.behaviour.small import Small, batches_of, error_of
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
    per_class = tf.metrics.mean_per_class_accuracy(labels, predicted, CLASSES)
    return {
        "accuracy": tf.metrics.accuracy(labels, predicted),
        "mean": tf.metrics.mean(tf.reduce_logsumexp(logits, 1), weights=tf.cast(labels, tf.float32)),
        "per_class": per_class,
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
    x, y = tf.data.make_one_shot_iterator(batches_of([8, 5, 8, 3] if ctx.planned else [13, 11]).repeat(2)).get_next()
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


def _own_metric(name: str, *collections: str) -> tf.Variable:
    collections = [tf.GraphKeys.METRIC_VARIABLES, *(collections or [tf.GraphKeys.LOCAL_VARIABLES])]
    return tf.get_variable(name, initializer=0.0, trainable=False, collections=collections, use_resource=False)


def _use(ctx: Context) -> None:
    """Computes with metrics within a step, and beside writes by hand; has metrics that replicas cannot share."""
    ctx.init(replicate__state="all")
    small = Small()
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    rows = tf.cast(tf.size(small.y), tf.float32)
    kept, update = _metrics(small.y, small.logits)["accuracy"]
    keras_kept, keras_update = _metrics(small.y, small.logits)["keras"]
    loss_kept, loss_update = tf.metrics.mean(small.loss)
    called = []
    with tf.variable_scope("own"):
        best = tf.get_variable("best", initializer=0.0, **local)
        keras_best = tf.get_variable("keras_best", initializer=0.0, **local)
        count, counted_twice, steps = _own_metric("count"), _own_metric("twice"), _own_metric("steps")
        of_checkpoint = _own_metric("of_checkpoint", tf.GraphKeys.GLOBAL_VARIABLES)
        within, read_within = _own_metric("within"), _own_metric("read_within")
        last, reset_after = _own_metric("last"), _own_metric("reset")
        runs = tf.get_variable("runs", initializer=0.0, trainable=False)
    uses = [
        tf.assign(best, tf.maximum(best, update)),
        tf.assign(keras_best, tf.maximum(keras_best, keras_update)),
        tf.py_func(lambda value: called.append(value) or np.float32(0), [update], tf.float32),
    ]
    added = tf.assign_add(count, rows)
    first = tf.assign_add(counted_twice, rows)
    with tf.control_dependencies([first]):
        between = counted_twice + 0.0
    with tf.control_dependencies([between]):
        second = tf.assign_add(counted_twice, rows)
    step = tf.assign_add(steps, 1.0)
    in_checkpoint = tf.assign_add(of_checkpoint, rows)
    set_last = tf.assign(last, tf.reduce_mean(small.logits))
    with tf.control_dependencies([tf.assign_add(reset_after, rows)]):
        reset = tf.assign(reset_after, 0.0)
    run = tf.assign_add(runs, 1.0)
    with tf.control_dependencies([update]):
        counted_run = tf.assign_add(runs, 1.0)
    with tf.control_dependencies([tf.assign_add(read_within, rows)]):
        branch = tf.cond(tf.reduce_sum(rows) > 0.0, lambda: read_within + 1.0, lambda: read_within * 1.0)
    in_branch = tf.cond(rows > 0.0, lambda: tf.assign_add(within, rows), lambda: tf.identity(within))
    own = [best, keras_best, count, counted_twice, steps, of_checkpoint, runs]
    told = [in_checkpoint, uses[2], set_last, reset, branch, in_branch]
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for number in range(STEPS):
            feed = small.feed(ctx, number)
            fetches = [update, added, between, second, step, *uses[:2], keras_update, loss_update]
            ctx.record(step=sess.run([fetches, small.train_op, told], feed)[0])
            ctx.record(loss=sess.run(loss_kept))
            ctx.record(variables=sess.run([own, kept, keras_kept]))
            # A write by hand: every replica has all rows.
            ctx.record(by_hand=sess.run([update, added, between, second, run, keras_update], feed))
            ctx.record(variables=sess.run([own, kept, keras_kept]))
            ctx.record(by_hand=sess.run([update, counted_run, uses[1]], feed)[:2])
            ctx.record(variables=sess.run([own, kept, keras_kept]))
            ctx.record(fed=sess.run([update, added, between, second, *uses[:2], keras_update], feed))
            ctx.record(variables=sess.run([own, kept, keras_kept]))
        ctx.record(called=called)


def test_a_step_computes_with_metrics_of_all_replicas(oracle: Oracle) -> None:
    expected = oracle.plain(_use).results
    (answer,) = oracle.plan((1, 2), _use)
    assert _differing(answer.results, expected) == {}
    (line,) = [line for line in answer.log.splitlines() if NOT_OF_ONE_DEVICE in line]
    assert "writes `own/last`" in line and "own/count" not in line
    assert "so do 3 more lines" in line or all(name in line for name in ("own/reset", "own/read_within"))


def _read_to_the_end(ctx: Context, shares: str, sizes: Any) -> None:
    """Evaluates until the data ends in the middle of a run, in a monitored session; divided, with another share."""
    ctx.init(**({"auto__balance": shares} if shares else {}))
    if shares:  # 5 rows for each device
        data, rows = samples(), sum(sizes)
        read = tf.data.Dataset.from_tensor_slices((data.x[:rows], data.y[:rows])).batch(5 if ctx.planned else 10)
    else:
        read = batches_of(sizes)
    iterator = tf.data.make_initializable_iterator(read)
    x, y = iterator.get_next()
    logits = dense(x, CLASSES, "out")
    metrics = _metrics(y, logits)
    if not shares:  # a mean over batches, each of one replica
        metrics["loss"] = tf.metrics.mean(cross_entropy(y, logits))
    tf.train.GradientDescentOptimizer(0.1).minimize(cross_entropy(y, logits), tf.train.get_or_create_global_step())
    largest = _own_metric("largest")
    tf.assign(largest, tf.maximum(largest, tf.reduce_max(logits)))
    with tf.train.MonitoredTrainingSession() as monitored:
        sess = monitored.run_step_fn(lambda step_context: step_context.session)
        sess.run([variable.initializer for variable in tf.local_variables()])
        sess.run(iterator.initializer)
        runs = 0
        while True:
            try:
                sess.run([update for _, update in metrics.values()])
                runs += 1
            except tf.errors.OutOfRangeError:
                break
        ctx.record(runs=runs, values=sess.run({name: value for name, (value, _) in metrics.items()}))


@pytest.mark.parametrize("shares,sizes,counted", [("", [8, 5, 8, 3, 6], [8, 5, 8, 3]), ("1:9", [10, 4], [10, 4])])
def test_a_run_that_ends_early_adds_nothing(oracle: Oracle, shares: str, sizes: Any, counted: Any) -> None:
    expected = oracle.plain(_read_to_the_end, shares=shares, sizes=counted).results
    (answer,) = oracle.plan((1, 2), _read_to_the_end, shares=shares, sizes=sizes)
    assert _differing(answer.results["values"], expected["values"]) == {}


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
    largest = _own_metric("largest")  # of each replica
    update_largest = tf.assign(largest, tf.maximum(largest, tf.reduce_max(small.logits)))
    summed = [one for one in tf_compat.metric_variables(tf.get_default_graph()) if one is not largest]

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

                epl.sum_metrics(monitored, summed)
            ctx.record(values=sess.run(values))
        sess.run([small.train_op, update_largest], small.feed(ctx))
        if ctx.worker == 0:  # the others go on training
            sess.run([variable.initializer for variable in tf.local_variables()])
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
    begin = tf.constant(0.0)
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    pair = [tf.Variable(begin, name=name, use_resource=False, **local) for name in ("one", "two")]
    batched = [tf.assign_add(one, tf.reduce_sum(batch) * weight) for weight, one in enumerate(pair, 1)]
    of_checkpoint = tf.get_variable("of_checkpoint", initializer=0.0, trainable=False)
    tf.assign_add(of_checkpoint, tf.reduce_sum(batch))
    with tf.Session() as sess:
        sess.run(tf.local_variables_initializer())
        ctx.record(errors=error_of(epl.sum_metrics, sess))
        sess.run(other, {batch: [1.0 + ctx.worker] * (1 + ctx.worker)})
        chosen = [variable for variable in tf.local_variables() if "other" in variable.name]
        epl.sum_metrics(sess, chosen)
        ctx.record(sums=sess.run(chosen))
        ctx.record(errors=error_of(epl.sum_metrics, sess, chosen[: 1 + ctx.worker]))
        ctx.record(errors=error_of(epl.sum_metrics, sess, [chosen[0] if ctx.worker else of_checkpoint]))
        for _ in range(2):
            sess.run(batched, {batch: [1.0 + ctx.worker]})
        epl.sum_metrics(sess, pair)
        ctx.record(pair=sess.run(pair))


def test_what_does_not_add_up_is_refused_by_name(oracle: Oracle) -> None:
    for answer in oracle.plan((2, 1), _refused):
        not_sums, unequal, of_one = answer.results["errors"]
        assert answer.results["pair"] == [[6.0, 12.0]]
        assert "PlanError" in of_one
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
