"""Scalars and metrics of a step in a pipeline, and next to an epl.split: those of one device on all rows, or told."""

import contextlib
import re
from typing import Any, Dict, Set

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.logs import listening
from tests.parity.context import Context
from tests.parity.oracle import NOT_OF_ONE_DEVICE, Oracle, topology_name
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense


def _scopes(ctx: Context, is_split: bool) -> Any:
    if not ctx.planned:
        return contextlib.ExitStack(), contextlib.ExitStack()
    import epl

    return (epl.replicate(2), epl.split(2)) if is_split else (epl.replicate(1), epl.replicate(1))


def _show(ctx: Context, is_split: bool, **config: Any) -> None:
    """Fetches each scalar in a step of its own, which changes nothing."""
    ctx.init(annotate=False, **config)
    first, second = _scopes(ctx, is_split)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    shown: Dict[str, tf.Tensor] = {}
    with first:
        hidden = dense(x, 8, "hidden", tf.nn.tanh)
        shown["activity"] = tf.reduce_mean(tf.abs(hidden))
    with second:
        logits = dense(hidden, CLASSES, "out")
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        correct = tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32)
        mask = tf.cast(y > 0, tf.float32)
        loss = cross_entropy(y, logits)
        shown["accuracy"] = tf.reduce_mean(correct)
        shown["linear"] = 2.0 * tf.reduce_mean(each * each) + 1.0
        shown["by_count"] = tf.reduce_sum(each) / tf.cast(tf.shape(each)[0], tf.float32)
        shown["right"] = tf.reduce_sum(tf.cast(correct, tf.int32))
        shown["masked"] = tf.reduce_sum(mask * each) / tf.reduce_sum(mask)
        shown["largest"] = tf.reduce_max(each)
        shown["shown"] = tf.identity(loss)
        shown["of_weights"] = tf.add_n([tf.nn.l2_loss(one) for one in tf.trainable_variables()])
    metric, shown["metric_updated"] = tf.metrics.accuracy(y, tf.argmax(logits, 1, output_type=tf.int32))
    summary = tf.summary.merge([tf.summary.scalar("of_" + name, shown[name]) for name in ("accuracy", "masked")])
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(loss)
    ctx.record(names={name: tensor.name for name, tensor in shown.items()})
    feed = {x: ctx.step_rows(samples().x, 0), y: ctx.step_rows(samples().y, 0)}
    with listening() as said, tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        ctx.record(loss=sess.run([loss, train_op], feed)[0])
        for name, tensor in shown.items():
            ctx.record(**{name: sess.run([tensor, train_op], feed)[0]})
        ctx.record(metric=sess.run(metric))
        found = tf.Summary.FromString(sess.run([summary, train_op], feed)[0])
        ctx.record(**{f"summary {one.tag}": one.simple_value for one in found.value})
    ctx.record(said=said.getvalue())


_ALL = {"activity", "accuracy", "linear", "by_count", "right", "masked", "largest", "shown"}
_METRIC = {"metric", "metric_updated"}


@pytest.mark.parametrize(
    "is_split,topology,micro_batches,differing",
    [
        (False, (1, 2), 4, {"masked", "largest", "summary of_masked"}),
        (False, (1, 4), 2, {"masked", "largest", "summary of_masked"} | _METRIC),
        (True, (1, 2), 1, {"activity"}),
        (True, (1, 4), 1, _ALL | {"summary of_accuracy", "summary of_masked"} | _METRIC),
        (True, (1, 4), 2, _ALL | {"summary of_accuracy", "summary of_masked"}),
    ],
    ids=lambda value: topology_name(value) if isinstance(value, tuple) else str(value) if type(value) is int else "",
)
def test_a_scalar_is_of_all_rows_or_told(
    oracle: Oracle, is_split: bool, topology: Any, micro_batches: int, differing: Set[str]
) -> None:
    config = {"pipeline__num_micro_batch": micro_batches, "cluster__colocate_split_and_replicate": micro_batches == 1}
    expected = oracle.plain(_show, is_split=is_split).results
    (answer,) = oracle.plan(topology, _show, is_split=is_split, **config)
    (names,) = expected["names"]
    values = expected.keys() - {"names", "said"}
    assert {name for name in values if not np.allclose(answer.results[name], expected[name], rtol=1e-5)} == differing
    said = "\n".join(line for line in answer.results["said"][0].splitlines() if NOT_OF_ONE_DEVICE in line)
    told = {name for name, tensor in names.items() if f"gives `{tensor}` of" in said}
    told.update(f"summary of_{name}" for name in ("accuracy", "masked") if f"`{names[name]}`" in _shown(said))
    told.update(["metric"] if "writes `accuracy/total`, `accuracy/count`" in said else [])
    assert told == differing, said


def _shown(said: str) -> str:
    return " ".join(re.findall("shows [^;]*", said))
