"""A step that reads and writes a variable, with no order between them, reads first, and says so."""

from typing import Any, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small
from tests.parity.context import Context
from tests.parity.oracle import Oracle
from tests.parity.scripts.data import CLASSES

OPEN = "The script has no order between reads and writes of a step"
STEPS = 4


def _slow(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, late: what does not wait for it runs first."""

    def wait(value: np.ndarray) -> np.ndarray:
        import time

        time.sleep(0.05)
        return value

    slow = tf.numpy_function(wait, [tensor], tensor.dtype)
    slow.set_shape(tensor.shape)
    return slow


def _centers(ctx: Context, resource: bool, ordered: bool, late: str) -> None:
    """Rows move the centers of their classes, and the loss takes the centers: old or new ones, without an order."""
    ctx.init(replicate__state="each")  # a value that is late goes through Python, whose whole cannot be had
    small = Small()
    initial = tf.ones_initializer()
    centers = tf.get_variable("centers", [CLASSES, 8], initializer=initial, trainable=False, use_resource=resource)
    of_loss, of_write = [_slow(small.y) if late == one else small.y for one in ("read", "write")]
    near = tf.gather(centers, of_loss)
    loss = tf.reduce_mean(tf.square(small.hidden - near))
    with tf.control_dependencies([near] if ordered else []):
        update = tf.scatter_sub(centers, of_write, tf.gather(small.x, [0] * 8, axis=1) * 0 + 0.25)
    train_op = tf.group(tf.train.GradientDescentOptimizer(0.1).minimize(loss), update)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], small.feed(ctx, step))[0])
        before = sess.run(centers)
        sess.run(update, {small.x: small.data.x[:1], small.y: small.data.y[:1]})  # alone, it waits for nothing
        ctx.record(alone=float(np.sum(before - sess.run(centers))))


def _losses(oracle: Oracle, topology: Any, **arguments: Any) -> List[float]:
    (answer,) = oracle.plan(topology, _centers, **arguments)
    assert (OPEN in answer.log) == (not arguments["ordered"] and not arguments["resource"])
    if OPEN in answer.log:
        (line,) = [line for line in answer.log.splitlines() if OPEN in line]
        assert "`centers`" in line and line.count("test_read_write_races.py:") == 2
    assert answer.results["alone"] == [pytest.approx(8 * 0.25)]
    return answer.results["loss"]


@pytest.mark.grid
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("resource", [False, True], ids=["ref", "resource"])
def test_what_a_step_reads_comes_before_its_writes(oracle: Oracle, devices: int, resource: bool) -> None:
    expected = _losses(oracle, (1, devices), resource=False, ordered=True, late="")
    for late in ("read", "write"):
        losses = _losses(oracle, (1, devices), resource=resource, ordered=False, late=late)
        assert losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("resource", [False, True], ids=["ref", "resource"])
def test_an_order_of_the_script_stays(oracle: Oracle, resource: bool) -> None:
    expected = oracle.plain(_centers, resource=False, ordered=True, late="").results["loss"]
    losses = _losses(oracle, (1, 1), resource=resource, ordered=True, late="read")
    assert losses == pytest.approx(expected, rel=1e-5)


def _branches(ctx: Context, kind: str) -> None:
    """A branch or a loop reads a variable, and what follows it, or the other branch, takes a write of it."""
    ctx.init()
    small = Small()
    mean = tf.get_variable("mean", [8], initializer=tf.zeros_initializer(), trainable=False)
    batch = tf.reduce_mean(small.hidden, 0)
    training = tf.placeholder_with_default(True, [])
    if kind == "assign in a branch":

        def train() -> tf.Tensor:
            with tf.control_dependencies([tf.assign(mean, 0.9 * mean + 0.1 * batch)]):
                return tf.identity(batch)

        taken = tf.cond(training, train, lambda: tf.identity(mean))
    elif kind == "moving average in a branch":
        averages = tf.train.ExponentialMovingAverage(0.9)

        def train() -> tf.Tensor:
            with tf.control_dependencies([averages.apply([batch])]):
                return tf.identity(batch)

        taken = tf.cond(training, train, lambda: averages.average(batch))
    else:
        written = tf.identity(tf.assign(mean, 0.5 * mean + 1.0))
        taken = tf.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, a + tf.identity(mean)), [0, written])[1]
    loss = tf.reduce_mean(tf.square(small.hidden - taken))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], small.feed(ctx, step))[0])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["assign in a branch", "moving average in a branch", "loop"])
def test_a_branch_or_a_loop_that_needs_the_write_does_not_come_before_it(
    oracle: Oracle, devices: int, kind: str
) -> None:
    (answer,) = oracle.plan((1, devices), _branches, kind=kind)
    assert OPEN not in answer.log or kind == "loop"
    if devices == 1:
        assert answer.results["loss"] == pytest.approx(oracle.plain(_branches, kind=kind).results["loss"], rel=1e-5)
