"""Scalars that a training step shows, fetched or in a summary, are those of one device on all rows."""

from typing import Any, Dict

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, batches_of
from tests.parity.context import Context
from tests.parity.oracle import NOT_OF_ONE_DEVICE, Oracle, topology_name
from tests.parity.scripts.data import CLASSES
from tests.parity.scripts.models import cross_entropy, dense

STEPS = 3


def _scalars(small: Small) -> Dict[str, tf.Tensor]:
    """Scalars next to the loss."""
    labels, logits = small.y, small.logits
    correct = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    mask = tf.cast(labels > 0, tf.float32)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    hits = tf.reduce_sum(tf.cast(correct, tf.float32) * mask)
    precision, recall = hits / tf.reduce_sum(mask), hits / tf.reduce_sum(tf.cast(labels > 1, tf.float32))
    (slopes,) = tf.gradients(tf.reduce_sum(tf.tanh(logits) * logits), [logits])
    scale = tf.get_variable("scale", initializer=0.5, trainable=False)
    return {
        "accuracy": tf.reduce_mean(tf.cast(correct, tf.float32)),
        "right": tf.reduce_sum(tf.cast(correct, tf.int32)),
        "top": tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 2), tf.float32)),
        "masked": tf.reduce_sum(mask * each) / tf.reduce_sum(mask),
        "weighted": tf.losses.sparse_softmax_cross_entropy(labels, logits, weights=mask),
        "normalized": tf.reduce_sum(each * (mask / tf.reduce_sum(mask))),
        "f1": 2 * precision * recall / (precision + recall),
        "scaled": scale * tf.reduce_mean(each) + tf.square(scale),
        "sum": tf.reduce_sum(each),
        "largest": tf.reduce_max(each),
        "deviation": tf.sqrt(tf.reduce_mean(tf.square(each - tf.reduce_mean(each)))),
        "perplexity": tf.exp(tf.reduce_mean(each)),
        "towers": tf.add_n([tf.reduce_mean(each[0::2]), tf.reduce_mean(each[1::2])]) / 2,
        "slopes": tf.reduce_mean(tf.norm(slopes, axis=1)),
        "shown": tf.identity(tf.reduce_mean(each), "shown"),
        "by the last size": tf.reduce_sum(each) / tf.cast(tf.shape(each)[-1], tf.float32),
        "by sizes": tf.reduce_sum(logits) / tf.cast(tf.reduce_prod(tf.shape(logits)[:-1]), tf.float32),
        "by another name": tf.identity(small.loss),
    }


def _train(ctx: Context, rows: Any = None, **config: Any) -> None:
    ctx.init(**config)
    small = Small()
    scalars = _scalars(small)
    tf.summary.scalar("accuracy", scalars["accuracy"])
    tf.summary.scalar("f1", scalars["f1"])
    summaries = tf.summary.merge_all()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {one: value[:rows] for one, value in small.feed(ctx, step).items()}
            values, summary, _ = sess.run([scalars, summaries, small.train_op], feed)
            ctx.record(**values)
            ctx.record(**{f"summary of {one.tag}": one.simple_value for one in tf.Summary.FromString(summary).value})


def _differing(seen: Dict[str, Any], expected: Dict[str, Any]) -> Dict[str, Any]:
    return {
        name: (seen[name], value) for name, value in expected.items() if not np.allclose(seen[name], value, rtol=1e-5)
    }


@pytest.mark.parametrize("rows", [16, 13])
def test_scalars_next_to_a_step_are_those_of_all_rows(oracle: Oracle, rows: int) -> None:
    expected = oracle.plain(_train, rows=rows).results
    (answer,) = oracle.plan((1, 2), _train, rows=rows)
    assert _differing(answer.results, expected) == {}
    assert NOT_OF_ONE_DEVICE not in answer.log


@pytest.mark.parametrize("level", ["v0", "v2"])
def test_scalars_are_those_of_all_rows_with_zero(oracle: Oracle, level: str) -> None:
    expected = oracle.plain(_train).results
    (answer,) = oracle.plan((1, 2), _train, zero__level=level)
    assert _differing(answer.results, expected) == {}


# ---- Several workers: each shows the rows of its own replicas.


def _means(results: Dict[str, Any]) -> Dict[str, Any]:
    return {name: results[name] for name in ("accuracy", "top", "scaled", "towers", "summary of accuracy")}


@pytest.mark.parametrize("topology", [(2, 1), (2, 2)], ids=topology_name)
def test_a_worker_shows_the_rows_of_its_replicas(oracle: Oracle, topology: Any) -> None:
    expected = oracle.plain(_train).results
    answers = oracle.plan(topology, _train)
    means = {name: np.mean([one.results[name] for one in answers], 0) for name in _means(expected)}
    assert _differing(means, _means(expected)) == {}
    for name in ("right", "sum"):
        np.testing.assert_allclose(sum(np.array(one.results[name]) for one in answers), expected[name], rtol=1e-5)


def _chief_fetches(ctx: Context) -> None:
    """Worker 0 alone fetches scalars and summaries, in one step of three."""
    ctx.init()
    small = Small()
    scalars = _scalars(small)
    tf.summary.scalar("accuracy", scalars["accuracy"])
    summaries = tf.summary.merge_all()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            shown = [scalars, summaries] if ctx.worker == 0 and step == 1 else []
            ctx.record(loss=sess.run([small.loss, small.train_op, shown], small.feed(ctx, step))[0])


def test_worker_0_alone_may_fetch_scalars(oracle: Oracle) -> None:
    expected = oracle.plain(_chief_fetches).results["loss"]
    answers = oracle.plan((2, 2), _chief_fetches)
    np.testing.assert_allclose(np.mean([one.results["loss"] for one in answers], 0), expected, rtol=1e-5)


# ---- Batches that are read, and runs without gradients.


def _read(ctx: Context) -> None:
    """Batches of 8 and 5 rows, then 8 and 3; next to them batches of validation, which the gradients do not need."""
    ctx.init()
    x, y = tf.data.make_one_shot_iterator(batches_of([8, 5, 8, 3] if ctx.planned else [13, 11])).get_next()
    logits = dense(x, CLASSES, "out")
    correct = tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32)
    accuracy = tf.reduce_mean(correct)
    validated = tf.data.make_one_shot_iterator(tf.data.Dataset.range(8).batch(2)).get_next()
    validation = tf.reduce_mean(tf.cast(validated, tf.float32))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(cross_entropy(y, logits))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            values = sess.run([accuracy, validation, train_op])
            ctx.record(accuracy=values[0], validation=values[1])
        ctx.record(validation=sess.run(validation))


def test_a_step_that_reads_shows_all_rows_and_draws_no_more_than_it_needs(oracle: Oracle) -> None:
    expected = oracle.plain(_read).results
    (answer,) = oracle.plan((1, 2), _read)
    assert _differing(answer.results, expected) == {}


def _without_gradients(ctx: Context) -> None:
    ctx.init()
    small = Small(rate=0.0)
    scalars = _scalars(small)
    tf.summary.scalar("accuracy", scalars["accuracy"])
    summaries = tf.summary.merge_all()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(small.train_op, small.feed(ctx))
        feed = {small.x: small.data.x[:7], small.y: small.data.y[:7]}
        ctx.record(**sess.run(scalars, feed))
        (shown,) = tf.Summary.FromString(sess.run(summaries, feed)).value
        ctx.record(summary=shown.simple_value)


def test_a_run_without_gradients_has_all_that_is_fed(oracle: Oracle) -> None:
    expected = oracle.plain(_without_gradients).results
    (answer,) = oracle.plan((1, 2), _without_gradients)
    assert _differing(answer.results, expected) == {}


def _batch_norm(ctx: Context) -> None:
    """A batch norm takes the statistics of each replica's rows, so accuracy is the mean of the replicas'."""
    ctx.init()
    small = Small(rate=0.0)
    hidden = tf.layers.batch_normalization(small.hidden, training=True)
    hidden = tf.layers.batch_normalization(dense(hidden, 8, "more"), training=True)
    logits = dense(hidden, CLASSES, "last")
    correct = tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), small.y), tf.float32)
    accuracy = tf.reduce_mean(correct)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(cross_entropy(small.y, logits))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = small.feed(ctx)
        halves = [dict(zip(feed, parts)) for parts in zip(*[np.split(v, 2) for v in feed.values()])]
        ctx.record(halves=[sess.run(accuracy, half) for half in halves])
        ctx.record(accuracy=sess.run([accuracy, train_op], feed)[0])


def test_accuracy_behind_a_batch_norm_is_that_of_the_predictions_of_all_replicas(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _batch_norm)
    (halves,), (accuracy,) = answer.results["halves"], answer.results["accuracy"]
    assert accuracy == pytest.approx(np.mean(halves), rel=1e-6)
    assert halves[0] != halves[1]


def _divided(ctx: Context) -> None:
    """Two devices divide batches of 13, 11 and 1 rows; of the last one, a device has none."""
    ctx.init()
    sizes = [13, 11, 1]
    x, y = tf.data.make_one_shot_iterator(batches_of(sizes)).get_next()
    logits = dense(x, CLASSES, "out")
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    scalars = {"mean": tf.reduce_mean(each), "sum": tf.reduce_sum(each), "largest": tf.reduce_max(each)}
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(cross_entropy(y, logits))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in sizes:
            ctx.record(**sess.run([scalars, train_op])[0])


def test_devices_that_divide_a_batch_show_all_its_rows(oracle: Oracle) -> None:
    expected = oracle.plain(_divided).results
    (answer,) = oracle.plan((1, 2, 2), _divided)
    assert _differing(answer.results, expected) == {}


def _second_step(ctx: Context) -> None:
    """A scalar with a fed threshold, before and after a second training step is built."""
    ctx.init()
    small = Small()
    threshold = tf.placeholder(tf.float32, [])
    above = tf.reduce_mean(tf.cast(small.logits[:, 0] > threshold, tf.float32))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = {**small.feed(ctx, 0), threshold: 0.05}
        ctx.record(above=sess.run([above, small.train_op], feed)[0])
        second = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(small.logits)))
        ctx.record(above=sess.run([above, second], feed)[0])


def test_a_fed_scalar_is_of_all_rows_after_a_second_step_was_built(oracle: Oracle) -> None:
    expected = oracle.plain(_second_step).results
    (answer,) = oracle.plan((1, 2), _second_step)
    assert _differing(answer.results, expected) == {}


def _root(ctx: Context) -> None:
    """The loss is the root of a mean; the ratios take that root, and a mean that the loss does not need."""
    ctx.init()
    small = Small()
    error = small.logits[:, 0] - tf.cast(small.y, tf.float32)
    root = tf.sqrt(tf.reduce_mean(tf.square(error)))
    target = tf.reduce_mean(tf.abs(small.logits[:, 1]))
    scalars = {"relative": root / target, "ratio": tf.reduce_mean(tf.abs(error)) / root, "root": root + target}
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(root)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(**sess.run([scalars, train_op], small.feed(ctx))[0])


def test_a_function_of_a_mean_in_the_loss_is_of_all_rows(oracle: Oracle) -> None:
    expected = oracle.plain(_root).results
    (answer,) = oracle.plan((1, 2), _root)
    assert _differing(answer.results, expected) == {}


def _statistic(ctx: Context) -> None:
    """The loss computes rows with a statistic of the replica; a mean next to that statistic is that of replica 0."""
    ctx.init()
    small = Small(rate=0.0)
    mean, variance = tf.nn.moments(small.hidden, [0])
    inverse = tf.rsqrt(variance + 1e-3)
    logits = dense((small.hidden - mean) * inverse, CLASSES, "last")
    scaled = tf.multiply(tf.reduce_mean(small.hidden), inverse[0], name="scaled")
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(cross_entropy(small.y, logits))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = small.feed(ctx)
        half = {one: value[: len(value) // 2] for one, value in feed.items()}
        ctx.record(half=sess.run(scaled, half), scaled=sess.run([scaled, train_op], feed)[0])


def test_a_statistic_of_a_replica_meets_no_mean_of_all_rows(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _statistic)
    assert answer.results["scaled"] == pytest.approx(answer.results["half"], rel=1e-6)
    assert "gives `scaled:0` of the rows of replica 0 alone" in answer.log
