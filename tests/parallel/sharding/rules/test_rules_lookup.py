"""Lookups by index, one-hot vectors, scatters and segments on parts."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import REPLICATED, shard
from epl.parallel.sharding.rules.registry import OpInfo, TensorInfo
from tests.parallel.sharding.rules.rule_harness import TWO, Case, check, on_ranks
from tests.parallel.sharding.rules.rule_inputs import constant, floats, integers, positive, variable

raw = tf.raw_ops


def lookup_cases():
    gather = lambda x, i, a: raw.GatherV2(params=x, indices=i, axis=a)  # noqa: E731
    yield Case("table", gather, [floats(8, 7), integers("B"), constant(0)], "F,b0,F>b0 s1,F,F>s1 s0,F,F>P P,F,F>P")
    yield Case("table_v1", lambda x, i: raw.Gather(params=x, indices=i), [floats(7, 5), integers(4, 5, high=7)],
               "F,s0>s0 F,s1>s1 s1,F>s2 s0,F>P P,F>P")  # fmt: skip
    yield Case("resource", lambda x, i: raw.ResourceGather(resource=x.handle, indices=i, dtype=tf.float32),
               [variable(8, 7), integers("B")], "F,b0>b0 s1,F>s1 s0,F>P")  # fmt: skip
    yield Case("axis", gather, [floats("B", 8, 5), integers(4, 7, dtype=np.int64), constant(-2)],
               "b0,F,F>b0 F,s0,F>s1 F,s1,F>s2 s2,F,F>s3 s1,F,F>P P,F,F>P")  # fmt: skip
    yield Case("one", gather, [floats(8, 7), integers(), constant(0)], "s1,F,F>s0 s0,F,F>P P,F,F>P")
    yield Case("rows_of_batch", lambda x, i, a: raw.GatherV2(params=x, indices=i, axis=a, batch_dims=1),
               [floats("B", 8, 7), integers("B", 5), constant(1)],
               "b0,b0,F>b0 s2,F,F>s2 F,s1,F>s1 P,F,F>P")  # fmt: skip
    yield Case("gather_nd", tf.gather_nd, [floats(8, 8, 7), integers("B", 5, 2)], "F,b0>b0 F,s1>s1 s2,F>s2 P,F>P")
    yield Case("resource_gather_nd", lambda x, i: raw.ResourceGatherNd(resource=x.handle, indices=i, dtype=tf.float32),
               [variable(8, 8, 7), integers("B", 5, 2)], "F,b0>b0 F,s1>s1 s2,F>s2")  # fmt: skip


def one_hot_cases():
    def one_hot(axis):
        return lambda i, depth, on, off: raw.OneHot(indices=i, depth=depth, on_value=on, off_value=off, axis=axis)

    levels = [constant(8), constant(1.0), constant(0.0)]
    outside = integers("B", low=-1, high=9)
    yield Case("last", one_hot(-1), [outside] + levels, "b0,F,F,F>b0 F,F,F,F>s1")
    small = integers(5, high=8, dtype=np.uint8)
    yield Case("first", one_hot(0), [small] + levels, "s0,F,F,F>s1 F,F,F,F>s0")


def scatter_cases():
    def scatter(indices, updates, shape):
        return raw.ScatterNd(indices=indices, updates=updates, shape=shape)

    yield Case("scatter", scatter, [integers("B", 1), floats("B", 7), constant([8, 7])],
               "b0,b0,F>P F,s1,F>s1 F,P,F>P", batch=[None])  # fmt: skip
    yield Case("scatter_2d", scatter, [integers(5, 2), floats(5, 7), constant([8, 8, 7])],
               "s0,s0,F>P F,s1,F>s2 F,P,F>P")  # fmt: skip
    ids = constant([0, 0, 1, 2, 2])
    segment = [floats(5, 7), ids]
    unsorted = [floats(5, 7), constant([2, 0, 1, 0, 2]), constant(3)]
    yield Case("segment_sum", lambda x, i: raw.SegmentSum(data=x, segment_ids=i), segment, "s1,F>s1 P,F>P")
    yield Case("segment_mean", lambda x, i: raw.SegmentMean(data=x, segment_ids=i), segment, "s1,F>s1 P,F>P")
    for name, op in (("max", raw.SegmentMax), ("min", raw.SegmentMin), ("prod", raw.SegmentProd)):
        yield Case("segment_" + name, lambda x, i, op=op: op(data=x, segment_ids=i), segment, "s1,F>s1")
    yield Case("unsorted_sum", lambda x, i, n: raw.UnsortedSegmentSum(data=x, segment_ids=i, num_segments=n), unsorted,
               "s0,s0,F>P s1,F,F>s1 P,F,F>P")  # fmt: skip
    unsorted[0] = positive(5, 7)
    three = (("max", raw.UnsortedSegmentMax), ("min", raw.UnsortedSegmentMin), ("prod", raw.UnsortedSegmentProd))
    for name, op in three:
        yield Case("unsorted_" + name, lambda x, i, n, op=op: op(data=x, segment_ids=i, num_segments=n), unsorted,
                   "s1,F,F>s1")  # fmt: skip
    three = (("sum", raw.SparseSegmentSum), ("mean", raw.SparseSegmentMean), ("sqrt_n", raw.SparseSegmentSqrtN))
    for name, op in three:
        yield Case("sparse_" + name, lambda x, p, i, op=op: op(data=x, indices=p, segment_ids=i),
                   [floats(8, 7), integers(5), ids], "s1,F,F>s1 P,F,F>P")  # fmt: skip


@pytest.mark.parametrize("ranks", TWO)
def test_lookups_and_scatters(ranks):
    check(list(lookup_cases()) + list(one_hot_cases()) + list(scatter_cases()), ranks)


def embedding(indices):
    """A ResourceGather from 8 rows, its rule's view of it, its choice on rows, and what the ranks hold."""
    table = np.arange(16, dtype=np.float32).reshape([8, 2])
    op = tf.gather(tf.get_variable("table", initializer=table, use_resource=True), indices).op
    while op.type != "ResourceGather":
        op = op.inputs[0].op
    shape = (len(indices),)
    inputs = (TensorInfo((8, 2), tf.float32), TensorInfo(shape, tf.int32))
    info = OpInfo(op.type, op.name, {"batch_dims": 0}, inputs, (TensorInfo(shape + (2,), tf.float32),), 2, {})
    return op, info, (shard(0, (4, 4)), REPLICATED), [(table[:4], table[4:]), (np.int32(indices),) * 2]


def test_a_rank_touches_the_rows_it_was_asked_for():
    with tf.Graph().as_default():
        got = on_ranks(*embedding([5, 1, 5]), build=lambda outputs, local: outputs + tf.gradients(outputs, local[:1]))
    for (_, grad), own in zip(got, ([1], [1, 1])):
        assert list(grad.indices) == own
        assert grad.values.tolist() == [[1, 1]] * len(own)
    np.testing.assert_array_equal(got[0][0] + got[1][0], [[10, 11], [2, 3], [10, 11]])


def test_an_index_beyond_the_table_is_refused():
    with tf.Graph().as_default(), pytest.raises(tf.errors.InvalidArgumentError, match="= 4 is not in"):
        on_ranks(*embedding([1, 8]), build=lambda outputs, local: outputs)
