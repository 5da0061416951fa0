"""Tensors in the collections come back merged over the replicas of the job or of the process."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, error_of
from tests.parity.context import GLOBAL_BATCH, Context
from tests.parity.oracle import Oracle, every_topology
from tests.parity.scripts.data import samples

SCOPES = ["global", "local"]
WAYS = ["concat", "mean", "sum"]


def _merge(ctx: Context, train: bool) -> None:
    import epl

    ctx.init()
    small = Small(rate=0.0)
    fetches = {}
    for scope in SCOPES:
        for way in WAYS:
            key = getattr(epl.GraphKeys, "%s_%s_OBJECTS" % (scope.upper(), way.upper()))
            rows = tf.identity(small.x, "rows_%s_%s" % (scope, way))
            column = tf.reduce_sum(small.x, 0)
            count = tf.shape(small.x)[0] if way != "concat" else tf.cast(small.y, tf.int64)
            tensors = [rows, column, count] if way != "mean" else [rows, column]
            kept = list(tensors)
            epl.add_to_collection(tensors, key)
            assert tensors == kept and epl.get_collection(key) == kept
            fetches[scope + " " + way] = tensors
    assert [len(tensors) for tensors in epl.get_all_collections()] == [3, 2, 3, 3, 2, 3]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(2):
            extra = small.train_op if train else tf.no_op()
            ctx.record(merged=sess.run([fetches, extra], small.feed(ctx, step))[0])
        ctx.record(alone=sess.run(fetches["global sum"][1], small.feed(ctx, 0)))


@pytest.mark.grid
@pytest.mark.parametrize("train", [True, False])
@every_topology
def test_merged_values(oracle: Oracle, topology: Any, train: bool) -> None:
    workers, devices = topology
    answers = oracle.plan(topology, _merge, train=train)
    data = samples()
    for step in range(2):
        x = data.x[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH].reshape([workers, devices, -1, data.x.shape[1]])
        y = data.y[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH].reshape([workers, devices, -1])
        for worker, answer in enumerate(answers):
            merged = answer.results["merged"][step]
            for scope in SCOPES:
                mine = slice(None) if scope == "global" else slice(worker, worker + 1)
                parts = np.concatenate(x[mine])
                labels = np.concatenate(y[mine])
                rows, column, count = merged[scope + " concat"]
                np.testing.assert_array_equal(rows, np.concatenate(parts))
                np.testing.assert_allclose(column, parts.sum(1).reshape(-1), rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(count, np.concatenate(labels))
                assert count.dtype == np.int64
                rows, column = merged[scope + " mean"]
                np.testing.assert_allclose(rows, parts.mean(0), rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(column, parts.sum(1).mean(0), rtol=1e-5, atol=1e-6)
                rows, column, count = merged[scope + " sum"]
                np.testing.assert_allclose(rows, parts.sum(0), rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(column, parts.sum(1).sum(0), rtol=1e-5, atol=1e-6)
                assert count == parts.shape[0] * parts.shape[1]
    for answer in answers:
        np.testing.assert_allclose(answer.results["alone"][0], data.x[:GLOBAL_BATCH].sum(0), rtol=1e-5, atol=1e-6)


def _mistakes(ctx: Context) -> None:
    import epl

    ctx.init()
    small = Small()
    mean, total = epl.GraphKeys.GLOBAL_MEAN_OBJECTS, epl.GraphKeys.GLOBAL_SUM_OBJECTS
    ctx.record(key=error_of(epl.add_to_collection, small.loss, "no_such_collection"))
    ctx.record(get=error_of(epl.get_collection, "no_such_collection"))
    ctx.record(kind=error_of(epl.add_to_collection, [small.loss, 1.5], mean))
    epl.add_to_collection(small.loss, mean)
    ctx.record(twice=error_of(epl.add_to_collection, small.loss, total), keys=epl.GraphKeys.ALL_COLLECTION_KEYS)


def test_mistakes_are_told(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _mistakes)
    assert "KeyError" in answer.results["key"][0] and "no_such_collection" in answer.results["key"][0]
    assert "KeyError" in answer.results["get"][0]
    assert "ValueError" in answer.results["kind"][0] and "1.5" in answer.results["kind"][0]
    assert "global_mean_objects" in answer.results["twice"][0]
    assert len(answer.results["keys"][0]) == 6


def _across_kinds(ctx: Context) -> None:
    import epl

    ctx.init()
    small = Small()
    hits = tf.cast(tf.nn.in_top_k(small.logits, small.y, 1), tf.float32)
    accuracy = tf.reduce_mean(hits)
    epl.add_to_collection(accuracy, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    logged = []
    hook = tf.train.LoggingTensorHook(
        {"accuracy": accuracy}, 1, formatter=lambda values: logged.append(values["accuracy"]) or ""
    )
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as sess:
        for step in range(3):
            feed = small.feed(ctx, step)
            ctx.record(fetched=sess.run([accuracy, small.train_op], feed)[0])
            ctx.record(named=sess.run({"by name": accuracy.name}, feed)["by name"])
    ctx.record(logged=logged)


def test_hooks_and_names_see_the_merged_value(oracle: Oracle) -> None:
    answers = oracle.plan((2, 2), _across_kinds)
    for answer in answers:
        assert answer.results["fetched"] == answers[0].results["fetched"]
        assert answer.results["named"] == answers[0].results["named"]
        fetched = [value for pair in zip(answer.results["fetched"], answer.results["named"]) for value in pair]
        assert answer.results["logged"][0] == fetched
