"""Divides a batch that is read once by rows among the local replicas that share it.

                                                      +--> rows 0 to 5 --> replica 0
    get_next --> replica 0               get_next ----+
    get_next --> replica 1         =>                 +--> rows 6 to 9 --> replica 1

This pass adds the cuts of replica 0. A cut depends on the index of the part, a constant that differs in the copies for
other replicas, and on the number of parts. A run of replica 0 alone feeds 1 as that number, so it gets the full batch.
Uneven rows are cut by the largest remainder, as `epl/parallel/plan/row_shares.py` does.
If the batch has fewer rows than parts, a replica without a row computes on a row of another one and weighs 0: the
gradients of an empty batch would be NaN.
"""

from typing import Dict, List, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import DEFAULT_ATTR, HOST_ATTR
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.row_shares import local_shares
from epl.parallel.replication.batch_division import BatchDivision
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat


def run(rewrite: RewriteContext) -> None:
    """Cuts the batches of replica 0; clones of replica 0 contain the cuts of the other replicas."""
    parts = rewrite.plan.batch_parts[rewrite.base_rank].parts if rewrite.plan.batch_parts else 1
    if parts == 1 or not rewrite.divisions:
        return
    before = tf_compat.last_op_id(rewrite.tf_graph)
    with rewrite.building("batches"), tf.device(rewrite.host):
        index = tf.constant(0, tf.int64, name="index")
        count = tf.placeholder_with_default(np.int64(parts), [], "parts")
    tf_compat.set_attr(count.op, DEFAULT_ATTR, tf.AttrValue(b=True))
    rewrite.batch_index, rewrite.batch_count = index, count
    for division in rewrite.divisions:
        for source, sparse in _in_micro_batches(rewrite, division):
            with rewrite.building("batches"), tf.device(rewrite.host):
                _Cut(rewrite, source, index, count).replace(division, sparse)
    for op in tf_compat.ops_since(rewrite.tf_graph, before):
        tf_compat.set_attr(op, HOST_ATTR, tf.AttrValue(b=True))


def _in_micro_batches(
    rewrite: RewriteContext, division: BatchDivision
) -> List[Tuple[tf.Operation, List[tf.Operation]]]:
    """The source and its DeserializeSparse ops in every micro batch."""
    return [
        (rewrite.operation(prefix + division.source), [rewrite.operation(prefix + name) for name in division.sparse])
        for prefix in rewrite.micro_prefixes_of(division.source)
    ]


class _Cut:
    """The cut of one data source: replica 0's rows of its outputs."""

    def __init__(self, rewrite: RewriteContext, source: tf.Operation, index: tf.Tensor, count: tf.Tensor) -> None:
        self._rewrite = rewrite
        self._source = source
        self._index = index
        self._count = count

    def replace(self, division: BatchDivision, sparse: Sequence[tf.Operation]) -> None:
        """Connects all consumers of the batch to this replica's rows."""
        if not division.dense and not sparse:
            return
        dense = [self._source.outputs[position] for position in division.dense]
        takers = {tensor: tensor.consumers() for tensor in dense}
        takers.update((tensor, tensor.consumers()) for op in sparse for tensor in op.outputs)
        rows = [tf.shape(tensor, out_type=tf.int64)[0] for tensor in dense] + [op.outputs[2][0] for op in sparse]
        with tf.control_dependencies(self._checks(rows)):
            rows = [tf.identity(own) for own in rows]
        bounds = [self._bounds(own) for own in rows]
        for tensor, (begin, end) in zip(dense, bounds):
            part = tensor[begin:end]
            if tensor.shape.ndims is not None:
                part.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
            self._give(tensor, part, takers[tensor])
        for op, (begin, end) in zip(sparse, bounds[len(dense) :]):
            own = _sparse_rows(tf.SparseTensor(*op.outputs), begin, end)
            for tensor, value in zip(op.outputs, (own.indices, own.values, own.dense_shape)):
                self._give(tensor, value, takers[tensor])

    def _checks(self, rows: Sequence[tf.Tensor]) -> List[tf.Operation]:
        """The checks that the cuts wait for: all cut tensors have equal rows, and a split has a row for each device.

        A run of replica 0 alone cuts nothing. It feeds the barrier: the checks would need all outputs of the source.
        """
        checks = []
        if len(rows) > 1:
            message = (
                "What {!r} reads is divided by rows among devices, and has different numbers of rows. Name what all "
                "devices get whole: epl.keep_whole(tensor)".format(self._source.name)
            )
            checks.append(tf.debugging.assert_equal(tf.stack(rows), rows[0], message=message))
        if replica_groups(self._rewrite.graph) is not None:
            checks.append(self._assert_rows_for_all(rows[0]))
        if not checks:
            return []
        name, barrier = build_barrier(checks)
        done = self._rewrite.tf_graph.get_tensor_by_name(name)
        tf_compat.set_attr(done.op, DEFAULT_ATTR, tf.AttrValue(b=True))
        self._rewrite.batch_checks.append(done)
        return [barrier]

    def _bounds(self, rows: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """First row and end of the part, cut as feeds are."""
        shares = local_shares(self._rewrite.plan, self._rewrite.cluster.worker_index)
        if shares:
            begin, own = self._uneven(rows, shares)
        else:  # the first parts have a row more
            each, rest = rows // self._count, rows % self._count
            begin = self._index * each + tf.minimum(self._index, rest)
            own = each + tf.cast(self._index < rest, tf.int64)
        self._rewrite.rows_read.setdefault(self._source.name, tf.cast(own, tf.float64))
        begin = tf.maximum(tf.minimum(begin, rows - 1), 0)
        return begin, tf.minimum(begin + tf.maximum(own, 1), rows)

    def _uneven(self, rows: tf.Tensor, shares: Sequence[int]) -> Tuple[tf.Tensor, tf.Tensor]:
        """First row of the part, and its number of rows: all if a run has one part."""
        sizes = rows_of_parts(rows, shares)
        is_alone = tf.equal(self._count, 1)
        own = sizes[self._index]
        begin = tf.cumsum(sizes)[self._index] - own
        return tf.where_v2(is_alone, tf.zeros_like(rows), begin), tf.where_v2(is_alone, rows, own)

    def _assert_rows_for_all(self, rows: tf.Tensor) -> tf.Operation:
        """Checks that each device has a row: in a split, which computes on the rows of all devices, a copy counts."""
        return tf.debugging.Assert(
            tf.logical_or(rows >= self._count, tf.equal(rows, 0)),
            [f"What {self._source.name!r} reads is too small for a split: so many rows and devices:"]
            + [rows, self._count],
        )

    def _give(self, tensor: tf.Tensor, part: tf.Tensor, takers: Sequence[tf.Operation]) -> None:
        if any(output.tensor == tensor.name for output in self._rewrite.plan.outputs):
            self._rewrite.over_micro_batches.setdefault(tensor.name, part)
        for taker in takers:
            for position, taken in enumerate(taker.inputs):
                if taken is tensor:
                    tf_compat.set_input(self._rewrite.remember(taker), position, part)


def rows_of_parts(rows: tf.Tensor, shares: Sequence[int]) -> tf.Tensor:
    """What `share_out` computes, as ops.

    Args:
      rows: int64 [], of all parts.
      shares: the proportions.

    Returns:
      int64 [len(shares)].
    """
    wanted = rows * tf.constant(shares, tf.int64)
    quotas, remainders = wanted // sum(shares), wanted % sum(shares)
    left_over = rows - tf.reduce_sum(quotas)
    others, own = remainders[tf.newaxis, :], remainders[:, tf.newaxis]
    is_lower = np.tri(len(shares), k=-1, dtype=bool)  # [part, other]: whether the other comes before the part
    ahead = tf.logical_or(others > own, tf.logical_and(tf.equal(others, own), is_lower))
    return quotas + tf.cast(tf.reduce_sum(tf.cast(ahead, tf.int64), 1) < left_over, tf.int64)


def _sparse_rows(tensor: tf.SparseTensor, begin: tf.Tensor, end: tf.Tensor) -> tf.SparseTensor:
    rows = tensor.indices[:, 0]
    own = tf.logical_and(rows >= begin, rows < end)
    indices = tf.boolean_mask(tensor.indices, own)
    indices = tf.concat([indices[:, :1] - begin, indices[:, 1:]], axis=1)
    shape = tf.concat([[end - begin], tensor.dense_shape[1:]], axis=0)
    return tf.SparseTensor(indices, tf.boolean_mask(tensor.values, own), shape)


def own_index(rewrite: RewriteContext, rank: int) -> Dict[str, Sequence[Tuple[str, tf.AttrValue]]]:
    """By op name, the attributes of a rank's cuts that differ from those of replica 0."""
    if rewrite.batch_index is None or rewrite.batch_count is None:
        return {}
    part = rewrite.plan.batch_parts[rank]
    return {
        op.name: [("value", tf.AttrValue(tensor=tf.make_tensor_proto(number, tf.int64)))]
        for op, number in (
            (rewrite.batch_index.op, part.index),
            (rewrite.batch_count.op.inputs[0].op, part.parts),
        )
    }


PASS = Pass(
    "divide_batches",
    run,
    "replicas",
    provides=names("batch_index batch_count batch_checks rows_read"),
    adds=names("over_micro_batches"),
    requires=names("micro_batched micro_merged"),
)
