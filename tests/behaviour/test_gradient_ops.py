"""What a training step runs: how gradients are fused, over which communicators, dense or sparse, and when."""

import collections
from typing import Any, Dict, List

import pytest
import tensorflow.compat.v1 as tf

from epl.utils import tf_compat
from tests.behaviour.small import Small
from tests.parity.context import Context
from tests.parity.oracle import Oracle
from tests.parity.scripts.data import samples
from tests.parity.scripts.models import MODELS


def _run_and_record(ctx: Context, sess: tf.Session, train_op: tf.Operation, feed: Dict[Any, Any]) -> None:
    """Runs a step; records the collectives and the number of ops of each type that TensorFlow has run for it."""
    metadata = tf.RunMetadata()
    sess.run(train_op, feed, tf.RunOptions(output_partition_graphs=True), metadata)
    collectives: List[Dict[str, Any]] = []
    types: Dict[str, int] = collections.Counter()
    for partition in metadata.partition_graphs:
        for node in partition.node:
            types[node.op] += 1
            # What the replicas say to each other besides gradients (how many rows, which scale) is no gradient.
            key = node.attr["key"].s.decode()
            if node.op in ("EplAllReduce", "EplAllGather") and "gradients" in key and not key.endswith("/scale"):
                collectives.append(
                    {
                        "type": node.op,
                        "rank": node.attr["rank"].i,
                        "communicator": node.attr["communicator"].s,
                        "key": node.attr["key"].s,
                        "dtype": tf.as_dtype(node.attr["T"].type).name,
                    }
                )
    ctx.record(collectives=collectives, types=dict(types))


def _deep(ctx: Context, **config: Any) -> None:
    ctx.init(**config)
    x = tf.placeholder(tf.float32, [None, 12], "x")
    hidden = x
    for layer in range(10):
        hidden = tf.layers.dense(hidden, 12, tf.nn.tanh, name="layer%d" % layer)
    loss = tf.reduce_mean(tf.square(hidden))
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        _run_and_record(ctx, sess, train_op, {x: ctx.step_rows(samples().x, 0)})


def _per_rank(answer: Any) -> Dict[int, List[Dict[str, Any]]]:
    ranks: Dict[int, List[Dict[str, Any]]] = collections.defaultdict(list)
    for collective in answer.results["collectives"][0]:
        ranks[collective["rank"]].append(collective)
    return ranks


@pytest.mark.parametrize("splits,communicators", [(1, 1), (5, 2), (4, 4), (2, 5)])
def test_buckets_and_communicators(oracle: Oracle, splits: int, communicators: int) -> None:
    answers = oracle.plan(
        (2, 2), _deep, communication__max_splits=splits, communication__num_communicators=communicators
    )
    assert [sorted(_per_rank(answer)) for answer in answers] == [[0, 1], [2, 3]]
    everyone = [collectives for answer in answers for collectives in _per_rank(answer).values()]
    for collectives in everyone:
        assert len(collectives) == splits
        assert len({collective["communicator"] for collective in collectives}) == min(splits, communicators)
        assert {(one["communicator"], one["key"]) for one in collectives} == {
            (one["communicator"], one["key"]) for one in everyone[0]
        }


@pytest.mark.parametrize("fp16,dtype", [(True, "float16"), (False, "float32")])
def test_dtype_on_the_wire(oracle: Oracle, fp16: bool, dtype: str) -> None:
    (answer,) = oracle.plan((1, 2), _deep, communication__fp16=fp16)
    assert {collective["dtype"] for collective in answer.results["collectives"][0]} == {dtype}


def _sparse(ctx: Context, name: str, **config: Any) -> None:
    ctx.init(**config)
    data = samples()
    ids = tf.placeholder(tf.int32, [None, data.ids.shape[1]], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    x = tf.placeholder(tf.float32, [None, data.x.shape[1]], "x")
    loss = MODELS[name](x, ids, y)
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        _run_and_record(
            ctx, sess, train_op, {x: ctx.mine(data.x[:16]), ids: ctx.mine(data.ids[:16]), y: ctx.mine(data.y[:16])}
        )


@pytest.mark.parametrize(
    "name,apply", [("embedding", "SparseApplyMomentum"), ("resource_embedding", "ResourceSparseApplyMomentum")]
)
def test_sparse_gradients_stay_sparse(oracle: Oracle, name: str, apply: str) -> None:
    (answer,) = oracle.plan((1, 2), _sparse, name=name)
    types = answer.results["types"][0]
    assert types[apply] == 2
    gathered = [one for one in answer.results["collectives"][0] if one["type"] == "EplAllGather"]
    # Values and indices of one table, on each of two ranks.
    assert len(gathered) == 4
    # Rows are added before the update only where its kernel would add them in any order.
    assert ("UnsortedSegmentSum" not in _of_plain_apply(types, oracle, name)) == tf_compat.CPU_ADDS_ROWS_IN_ORDER


def _of_plain_apply(types: Dict[str, int], oracle: Oracle, name: str) -> Dict[str, int]:
    """Op types that the plan has more of than two copies of the plain graph."""
    plain = oracle.plain(_sparse, name=name).results["types"][0]
    return {kind: count for kind, count in types.items() if count > 2 * plain.get(kind, 0)}


@pytest.mark.parametrize("name", ["embedding", "resource_embedding"])
def test_sparse_as_dense_makes_them_dense(oracle: Oracle, name: str) -> None:
    (answer,) = oracle.plan((1, 2), _sparse, name=name, communication__sparse_as_dense=True)
    assert not [kind for kind in answer.results["types"][0] if "SparseApply" in kind]
    assert {one["type"] for one in answer.results["collectives"][0]} == {"EplAllReduce"}


def _overlap(ctx: Context) -> None:
    """Records, for each bucket, whether backward ops that do not feed it may still run after it has started."""
    ctx.init(communication__max_splits=3)
    small = Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(small.train_op, small.feed(ctx))
    graph = tf.get_default_graph()
    reduces = [operation for operation in graph.get_operations() if operation.type == "EplAllReduce"]

    def ancestors(operation: tf.Operation) -> set:
        seen, stack = set(), [operation]
        while stack:
            one = stack.pop()
            for other in [tensor.op for tensor in one.inputs] + list(one.control_inputs):
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return seen

    # The gradient of the first layer's kernel is the last thing that backward computes.
    last = [
        operation
        for operation in graph.get_operations()
        if operation.type == "MatMul"
        and "hidden" in operation.name
        and "grad" in operation.name
        and not operation.name.startswith("EPL_")
    ]
    assert last
    free = [
        operation
        for operation in reduces
        if operation.get_attr("rank") == 0 and not any(one in ancestors(operation) for one in last)
    ]
    ctx.record(free=len(free))


def test_buckets_start_before_backward_has_ended(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _overlap)
    assert answer.results["free"][0] >= 1
