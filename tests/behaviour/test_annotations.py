"""Models without annotation stay as they are; wrong annotations and features that do not exist yet are refused."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, error_of
from tests.parity.context import GLOBAL_BATCH, Context
from tests.parity.oracle import Oracle


def _unannotated(ctx: Context) -> None:
    ctx.init(annotate=False)
    small = Small()
    before = len(tf.get_default_graph().get_operations())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = len(tf.get_default_graph().get_operations())
        for _ in range(3):
            feed = {small.x: small.data.x[:GLOBAL_BATCH], small.y: small.data.y[:GLOBAL_BATCH]}
            ctx.record(loss=sess.run([small.loss, small.train_op], feed)[0])
    ctx.record(new=len(tf.get_default_graph().get_operations()) - before)
    ctx.record(clones=[one.name for one in tf.get_default_graph().get_operations() if "EPL" in one.name])


@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=["1x2", "2x1"])
def test_a_model_without_annotation_is_plain_tensorflow_with_one_warning(oracle: Oracle, topology: Any) -> None:
    expected = oracle.plain(_unannotated).results["loss"]
    for answer in oracle.plan(topology, _unannotated):
        assert answer.results["loss"] == expected
        assert answer.results["new"] == [0]
        assert answer.results["clones"] == [[]]
        warnings = [line for line in answer.log.splitlines() if "annotat" in line.lower()]
        assert len(warnings) == 1, answer.log


def _nesting(ctx: Context) -> None:
    import epl

    ctx.init(annotate=False)

    def nested(outer: Any, inner: Any) -> None:
        with outer(1):
            with inner(1):
                tf.constant(0.0)

    ctx.record(same=error_of(nested, epl.replicate, epl.replicate))
    ctx.record(split_in_split=error_of(nested, epl.split, epl.split))
    ctx.record(in_split=error_of(nested, epl.split, epl.replicate))
    ctx.record(split_inside=error_of(nested, epl.replicate, epl.split))
    ctx.record(default=error_of(epl.set_default_strategy, epl.split(1)))
    ctx.record(no_strategy=error_of(epl.set_default_strategy, "replicate"))

    def default_inside() -> None:
        with epl.replicate(1):
            epl.set_default_strategy(epl.replicate(1))

    ctx.record(default_inside=error_of(default_inside))
    ctx.record(count=error_of(epl.replicate, 0), kind=error_of(epl.replicate, "two"))
    with epl.replicate(1) as strategy:
        ctx.record(bound=isinstance(strategy, type(epl.replicate(1))))
    # After all these errors the next model is none the worse.
    ctx.init()
    small = Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(loss=sess.run([small.loss, small.train_op], small.feed(ctx))[0])


def test_nesting_and_wrong_arguments_are_errors(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _nesting)
    results = answer.results
    assert "Can't nest strategies with same type" in results["same"][0]
    assert "Can't nest strategies" in results["split_in_split"][0]
    assert "Can't nest strategies in split strategy" in results["in_split"][0]
    assert results["split_inside"] == ["no error"]
    for name in ("same", "split_in_split", "in_split", "default_inside"):
        assert "RuntimeError" in results[name][0]
    assert "Only replicate is supported as default strategy" in results["default"][0]
    assert "no error" not in results["no_strategy"][0] + results["count"][0] + results["kind"][0]
    assert results["bound"] == [True]
    assert np.isfinite(results["loss"][0])


def _split(ctx: Context) -> None:
    import epl

    def build_and_run() -> None:
        ctx.init(annotate=False)
        with epl.replicate(1):
            x = tf.tanh(tf.placeholder(tf.float32, [None, 12]))
        with epl.split(2):
            tf.gradients(tf.reduce_mean(tf.layers.dense(x, 4)), tf.trainable_variables())

    ctx.record(error=error_of(build_and_run))


def test_a_split_that_would_have_too_few_devices_of_its_own_is_refused(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _split)
    error = answer.results["error"][0]
    assert "LayoutError" in error and "set cluster.colocate_split_and_replicate to True" in error


def _other_groups(ctx: Context) -> None:
    import epl

    def build(*counts: int) -> None:
        with tf.Graph().as_default():
            loss = tf.placeholder(tf.float32, [None, 12])
            for count in counts:
                with epl.split(count):
                    loss = tf.reduce_mean(tf.layers.dense(loss, 4), keepdims=True)
            tf.gradients(loss, tf.trainable_variables())

    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    ctx.record(three=error_of(build, 3), two_and_one=error_of(build, 2, 1))


def test_a_split_over_what_are_no_groups_of_the_devices_is_refused(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _other_groups)
    assert "epl.split(3) needs groups of 3 devices, and the job has 2 device(s)" in answer.results["three"][0]
    assert "The model has epl.split(1) and epl.split(2): every split of a model" in answer.results["two_and_one"][0]


def _misused_split(ctx: Context) -> None:
    import epl

    ctx.init(annotate=False)
    x = tf.placeholder(tf.float32, [None, 12])
    with epl.split(2):
        hidden, wide = tf.layers.dense(x, 4), tf.layers.dense(x, 1003, name="wide")
        loss = tf.reduce_mean(tf.square(hidden)) + tf.reduce_mean(tf.square(wide))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    slopes = tf.add_n([tf.norm(gradient) for gradient in tf.gradients(loss, tf.trainable_variables())])
    ctx.record(again=error_of(tf.gradients, loss + slopes, tf.trainable_variables()))
    tf.gradients(loss + tf.stop_gradient(slopes), tf.trainable_variables())
    own = tf.reduce_mean(x)
    ctx.record(of_both=error_of(tf.gradients, [loss, own], [x]))
    ctx.record(by_a_result=error_of(tf.gradients, loss, [hidden]))
    ctx.record(stopped=error_of(tf.gradients, loss, tf.trainable_variables(), stop_gradients=[hidden]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(fed=error_of(sess.run, train_op, {x: np.ones([8, 12]), hidden: np.ones([8, 4])}))
    with tf.Graph().as_default():
        with epl.split(2):
            hidden_away = tf.get_variable("kernel", [12, 4], collections=[], trainable=False)
            loss = tf.reduce_mean(tf.matmul(tf.placeholder(tf.float32, [None, 12]), hidden_away))
        ctx.record(in_no_collection=error_of(tf.gradients, loss, [hidden_away]))


def test_what_a_split_cannot_do_is_refused(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _misused_split)
    results = answer.results
    assert "of which some are computed inside of epl.split" in results["of_both"][0]
    assert "which is computed with the gradient of 'EPL_SPLIT/wide/" in results["again"][0]
    assert "which is computed inside of epl.split and lies on 2 devices" in results["by_a_result"][0]
    assert "in stop_gradients, which is computed inside of epl.split" in results["stopped"][0]
    assert "is fed, and computed inside of epl.split on 2 devices" in results["fed"][0]
    assert "'kernel' is a variable that is in no collection" in results["in_no_collection"][0]


def _before_init(ctx: Context) -> None:
    import epl

    def enter() -> None:
        with epl.replicate(1):
            pass

    epl.Env.get().reset()
    ctx.record(scope=error_of(enter), default=error_of(epl.set_default_strategy, epl.replicate(1)))
    ctx.record(config=error_of(epl.init, {"pipeline.num_micro_batch": 1}))


def test_annotations_before_init_are_errors(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _before_init)
    assert "epl.init" in answer.results["scope"][0]
    assert "epl.init" in answer.results["default"][0]
    assert "no error" not in answer.results["config"][0]
