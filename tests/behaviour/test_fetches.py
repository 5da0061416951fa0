"""The user fetches what they wrote, in whatever container, and gets what they mean by it."""

import collections
from typing import Any, Dict

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, error_of
from tests.parity.context import Context
from tests.parity.oracle import Oracle

Pair = collections.namedtuple("Pair", ["first", "second"])


def _structures(small: Small) -> Dict[str, Any]:
    loss, logits, train = small.loss, small.logits, small.train_op
    return {
        "tensor": loss,
        "list": [loss, train],
        "tuple": (loss, train),
        "pair": Pair(loss, train),
        "dict": {"loss": loss, "train": train},
        "ordered": collections.OrderedDict([("train", train), ("loss", loss)]),
        "nested": [{"a": (loss, [logits, train])}, Pair([loss], {"b": loss}), []],
        "names": [loss.name, train.name, {"logits": logits.name}],
        "variables": tf.trainable_variables(),
        "twice": [loss, loss],
        "operation": train,
    }


def _fetch(ctx: Context) -> None:
    ctx.init()
    small = Small(rate=0.0)
    structures = _structures(small)
    before = _shown(structures)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = small.feed(ctx)
        for name, structure in structures.items():
            for _ in range(2):
                ctx.record(**{name: sess.run(structure, feed)})
    ctx.record(unchanged=_shown(structures) == before)


def _shown(structure: Any) -> str:
    return repr(structure)


@pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=["1x2", "2x2"])
def test_every_structure_comes_back_in_its_own_form(oracle: Oracle, topology: Any) -> None:
    expected = oracle.plain(_fetch).results
    answers = oracle.plan(topology, _fetch)
    losses = np.mean([answer.results["tensor"][0] for answer in answers])
    assert losses == pytest.approx(expected["tensor"][0], rel=1e-6)
    for answer in answers:
        results = answer.results
        # Alone, the loss needs no other replica: the first one computes it on all rows, in another order of sums.
        assert results["tensor"][0] == pytest.approx(results["list"][0][0], rel=1e-6)
        loss = results["list"][0][0]
        assert results["unchanged"] == [True]
        for first, second in zip(results["nested"], results["nested"][1:]):
            assert repr(first) == repr(second)
        assert results["list"][0] == [loss, None]
        assert results["tuple"][0] == (loss, None)
        assert results["pair"][0] == Pair(loss, None)
        assert type(results["pair"][0]) is Pair
        assert results["dict"][0] == {"loss": loss, "train": None}
        assert type(results["ordered"][0]) is collections.OrderedDict
        assert list(results["ordered"][0].items()) == [("train", None), ("loss", loss)]
        assert results["nested"][0][0]["a"][0] == loss
        assert results["nested"][0][0]["a"][1][1] is None
        assert results["nested"][0][1:] == [Pair([loss], {"b": loss}), []]
        assert results["names"][0][:2] == [loss, None]
        assert results["twice"][0] == [results["tensor"][0]] * 2
        assert results["operation"][0] is None
        for seen, wanted in zip(results["variables"][0], expected["variables"][0]):
            np.testing.assert_array_equal(seen, wanted)


def test_other_tensors_are_those_of_the_first_replica(oracle: Oracle) -> None:
    expected = oracle.plain(_fetch).results["names"][0][2]["logits"]
    (answer,) = oracle.plan((1, 2), _fetch)
    np.testing.assert_allclose(answer.results["names"][0][2]["logits"], expected[:8], rtol=1e-5)


def _kinds(ctx: Context) -> None:
    ctx.init()
    with tf.variable_scope("net", use_resource=True):
        small = Small(rate=0.0)
    table = tf.get_variable("table", [4, 2], initializer=tf.ones_initializer())
    looked_up = tf.gather(table, [0, 2, 0])
    (slices,) = tf.gradients(tf.reduce_sum(looked_up), table)
    sparse = tf.SparseTensor([[0, 1]], [2.0], [2, 2])
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = small.feed(ctx)
        got = sess.run(
            {
                "sparse": sparse,
                "slices": slices,
                "resource": tf.global_variables()[0],
                "handle_name": tf.global_variables()[0].op.name + "/Read/ReadVariableOp:0",
                "train": small.train_op,
                "text": tf.constant("word"),
            },
            feed,
        )
        ctx.record(
            sparse=tuple(got["sparse"]),
            indices=got["slices"].indices,
            resource=got["resource"].shape,
            read=got["handle_name"].shape,
            text=got["text"],
        )
        ctx.record(none=error_of(sess.run, [small.loss, None], feed))
        ctx.record(unknown=error_of(sess.run, "no_such_tensor:0", feed))
        ctx.record(foreign=error_of(sess.run, object(), feed))


def test_sparse_tensors_slices_resource_variables_and_errors(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _kinds)
    expected = oracle.plain(_kinds)
    for name in ("sparse", "indices"):
        np.testing.assert_equal(answer.results[name][0], expected.results[name][0])
    for name in ("resource", "read", "text"):
        assert answer.results[name] == expected.results[name]
    for name in ("none", "unknown", "foreign"):
        assert answer.results[name][0].split(":")[0] == expected.results[name][0].split(":")[0]


def _ways(ctx: Context) -> None:
    ctx.init()
    small = Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        call = sess.make_callable([small.loss, small.train_op], [small.x, small.y])
        for step in range(2):
            feed = small.feed(ctx, step)
            ctx.record(loss=call(feed[small.x], feed[small.y])[0])
        ctx.record(loss=sess.run([small.loss, small.train_op], small.feed(ctx, 2))[0])
        small.train_op.run(small.feed(ctx, 3))
        ctx.record(loss=small.loss.eval(small.feed(ctx, 4)))
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        metadata = tf.RunMetadata()
        ctx.record(loss=sess.run([small.loss, small.train_op], small.feed(ctx, 5), options, metadata)[0])
        ctx.record(traced=len(metadata.step_stats.dev_stats) > 0)
        ctx.record_variables(sess)


@pytest.mark.parametrize("topology", [(1, 2), (2, 1), (2, 2)], ids=["1x2", "2x1", "2x2"])
def test_callables_eval_run_and_traces(oracle: Oracle, topology: Any) -> None:
    answers = oracle.check(topology, _ways)
    assert all(answer.results["traced"] == [True] for answer in answers)


def _partial(ctx: Context) -> None:
    ctx.init()
    small = Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(error=error_of(sess.partial_run_setup, [small.logits, small.loss], [small.x, small.y]))
        ctx.record(loss=sess.run([small.loss, small.train_op], small.feed(ctx))[0])


def test_partial_run_is_refused_with_the_remedy(oracle: Oracle) -> None:
    """Feeds that come bit by bit cannot be shared out among the replicas."""
    (answer,) = oracle.plan((1, 2), _partial)
    assert "partial_run" in answer.results["error"][0] and "Session.run" in answer.results["error"][0]
    assert np.isfinite(answer.results["loss"][0])
