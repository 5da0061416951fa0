"""Feeds that cannot be shared out are errors that say the numbers; those that can need no care."""

import contextlib
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, error_of
from tests.parity.context import Context
from tests.parity.oracle import Oracle
from tests.parity.scripts.data import FEATURES, samples
from tests.parity.scripts.models import MODELS


def _wrong_rows(ctx: Context) -> None:
    ctx.init()
    data = samples()
    x = tf.placeholder(tf.float32, [8, FEATURES], "my_rows")
    y = tf.placeholder(tf.int32, [8], "my_labels")
    loss = MODELS["layers"](x, None, y)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(error=error_of(sess.run, train_op, {x: data.x[:12], y: data.y[:16]}))
        ctx.record(after=sess.run([loss, train_op], {x: data.x[:16], y: data.y[:16]})[0])


def test_rows_that_fit_neither_way_are_an_error_with_the_numbers(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _wrong_rows)
    error = answer.results["error"][0]
    assert "ValueError" in error
    for word in ("my_rows", "12", "8", "16"):
        assert word in error
    assert np.isfinite(answer.results["after"][0])


def _fewer_rows_than_replicas(ctx: Context) -> None:
    ctx.init()
    small = Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(error=error_of(sess.run, small.train_op, {small.x: small.data.x[:1], small.y: small.data.y[:1]}))
        ctx.record(variables=sess.run(tf.global_variables()))


def test_fewer_rows_than_replicas_never_give_nan(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _fewer_rows_than_replicas)
    assert all(np.all(np.isfinite(value)) for value in answer.results["variables"][0])
    error = answer.results["error"][0]
    assert error == "no error" or ("ValueError" in error and "1" in error and "2" in error)


def _kinds(ctx: Context) -> None:
    ctx.init()
    small = Small()
    anything = tf.placeholder(tf.float32, None, "anything")
    sparse = tf.sparse_placeholder(tf.float32, name="sparse")
    default = tf.placeholder_with_default(np.float32(3), [], "default")
    scaled = small.loss * anything + default
    density = tf.sparse_reduce_sum(sparse)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = small.feed(ctx)
        ctx.record(scaled=sess.run([scaled, small.train_op], {**feed, anything: 2.0})[0])
        ctx.record(
            names=sess.run(small.loss, {"x:0": feed[small.x], small.y: list(feed[small.y])}),
            loss=sess.run(small.loss, feed),
        )
        ctx.record(middle=sess.run(small.logits, {small.hidden: np.ones([8, 8], np.float32)}).shape)
        value = tf.SparseTensorValue([[0, 0], [1, 2]], np.array([1.0, 2.0], np.float32), [2, 3])
        ctx.record(sparse=sess.run(density, {sparse: value}))


def test_scalars_names_lists_and_sparse_values_can_be_fed(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _kinds)
    results = answer.results
    assert results["names"][0] == results["loss"][0]
    assert results["scaled"][0] > 3.0
    assert results["sparse"][0] == 3.0
    assert results["middle"][0][1] == 5


def _same_containers(ctx: Context) -> None:
    ctx.init()
    small = Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = small.feed(ctx)
        before = dict(feed)
        for _ in range(2):
            sess.run([small.loss, small.train_op], feed)
        ctx.record(same=feed.keys() == before.keys() and all(feed[key] is before[key] for key in feed))


def test_the_feed_dict_is_not_changed(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _same_containers)
    assert answer.results["same"] == [True]


def _train_with_scores(ctx: Context, name: str, keep: bool, weight: float) -> None:
    """Trains with a branch that scores 101 items for one user, and looks at the best of them."""
    rows = np.random.RandomState(0).rand(8, 6)
    scope: Any = contextlib.nullcontext()
    if ctx.planned:
        import epl

        scope = epl.split(2)
    with tf.Graph().as_default(), tf.Session() as sess:
        with scope:
            x = tf.placeholder(tf.float64, [None, 6], "x")
            items, user = tf.placeholder(tf.float64, [101, 6], "items"), tf.placeholder(tf.float64, [1, 6], "user")
            w = tf.get_variable("w", [6, 4], tf.float64, tf.initializers.ones())
            scores = tf.reduce_sum(tf.matmul(items, w) * tf.matmul(tf.tile(user, [101, 1]), w), axis=1)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
            if weight:
                loss += weight * tf.reduce_mean(scores)
        if keep and ctx.planned:
            epl.keep_whole([items, user])
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
        best = tf.nn.top_k(scores, 5).values
        sess.run(tf.global_variables_initializer())
        feed = {items: np.linspace(0, 1, 606).reshape(101, 6), user: rows[:1]}
        for step in range(2):
            value = sess.run([loss, train_op], {x: rows[step:], **(feed if weight else {})})[0]
            ctx.record(**{name: value})
        ctx.record(**{name: sess.run(best, feed)})


def _scores_of_one_user(ctx: Context) -> None:
    ctx.init(annotate=False)
    _train_with_scores(ctx, "needed", True, 0.1)
    _train_with_scores(ctx, "unneeded", True, 0.0)
    if ctx.planned:
        ctx.record(refused=error_of(_train_with_scores, ctx, "refused", False, 0.0))


def test_a_branch_of_another_size_in_a_split_is_kept_whole(oracle: Oracle) -> None:
    expected = oracle.plain(_scores_of_one_user).results
    (answer,) = oracle.plan((1, 2), _scores_of_one_user)
    for name, values in expected.items():
        for value, found in zip(values, answer.results[name]):
            np.testing.assert_allclose(found, value, rtol=1e-12, err_msg=name)
    assert "cannot be built on 2 devices" in answer.results["refused"][0]
    assert "epl.keep_whole(placeholder)" in answer.results["refused"][0]
