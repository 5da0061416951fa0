"""Rules of lookups by index, and of their opposites: gather, one-hot, scatter, sums of segments.

Where the rows of the table are cut, each rank looks up the indices of its own rows and leaves zeros for the others:
partial sums. Only the rows that are looked up are touched, forward and backward, so that optimizers for sparse
gradients get the same rows as unsplit.
"""

from typing import Hashable, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import Placement, offsets
from epl.parallel.sharding.rules.common import (
    Labels,
    constant_ints,
    dimensions,
    filled,
    known_ranks,
    labelled,
    linear,
    never_empty,
    own_offset,
    own_shape,
)
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, OpInfo, rule
from epl.parallel.sharding.slices import known_ndims


@rule("Gather", "GatherV2", "ResourceGather")
def _gather(op: OpInfo) -> Iterator[Choice]:
    """`inputs[0]` is the table; a ResourceGather has the value of its variable there, in updates its handle."""
    table, indices = op.inputs[:2]
    takes_handle = table.dtype == tf.resource
    axis = [0] if len(op.inputs) == 2 else constant_ints(op.inputs[2])
    if table.shape is None or indices.shape is None or axis is None:
        return
    batch_dims = op.attrs.get("batch_dims", 0)
    if batch_dims < 0:
        batch_dims += len(indices.shape)
    at = axis[0] % len(table.shape)
    shared: Labels = [f"b{dim}" for dim in range(batch_dims)]
    before: Labels = [f"t{dim}" for dim in range(batch_dims, at)]
    after: Labels = [f"t{dim}" for dim in range(at + 1, len(table.shape))]
    found: Labels = [f"i{dim}" for dim in range(batch_dims, len(indices.shape))]
    rows: Labels = list(shared) + list(before) + [None] + list(after)
    asked: Labels = list(shared) + list(found)
    more: List[Labels] = [[]] * (len(op.inputs) - 2)
    result: Labels = list(shared) + list(before) + list(found) + list(after)
    of_value = op.type == "ResourceGather" and not takes_handle
    choices = [
        choice._replace(emit=_emit_of_value if of_value else None)
        for choice in labelled(op, [rows, asked] + more, [result])
    ]
    # The gradient reshapes to an unknown size, except of whole rows, where it is sparse.
    yield from never_empty(choices) if at or batch_dims else choices
    if not batch_dims and not takes_handle:
        cut: Labels = [None] * at + ["v"] + [None] * len(after)
        for choice in labelled(op, [cut, []] + more, [[]], summed=["v"]):
            if choice.inputs[0].sizes is not None:
                yield choice._replace(emit=_emit_masked_gather(choice.inputs[0]))
    if op.type != "ResourceGather":
        yield from linear(op, 0)


def look_up(op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
    """The output of a ResourceGather or ResourceGatherNd, from the value of its variable."""
    if op.type == "ResourceGatherNd":
        return [tf.gather_nd(inputs[0], inputs[1])]
    return [tf.gather(inputs[0], inputs[1], batch_dims=op.attrs.get("batch_dims", 0))]


def _emit_of_value(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
    return look_up(op, inputs)


def _emit_masked_gather(placement: Placement) -> Emit:
    """The first or the last rank looks up an index outside of the table, so that TensorFlow's check refuses it."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        table, indices = inputs[:2]
        dtype = indices.dtype.base_dtype
        limits = np.iinfo(dtype.as_numpy_dtype)
        begins = offsets(placement.sizes or ())
        first = emission.own((limits.min,) + begins[1:], dtype)
        end = emission.own(begins[1:] + (limits.max,), dtype)
        flat = tf.reshape(indices, [-1])
        places = tf.where_v2((flat >= first) & (flat < end))
        own = tf.gather_nd(flat, places) - own_offset(emission, placement, dtype)
        front = tf.gather(table, own) if placement.dim == 0 else tf.gather(table, own, axis=placement.dim)
        return [_spread(front, places, indices, placement.dim)]

    return emit


def _spread(found: tf.Tensor, places: tf.Tensor, indices: tf.Tensor, axis: int) -> tf.Tensor:
    """Zeros with the found rows at their places; the shape of the indices replaces dimension `axis`."""
    rank = known_ndims(found)
    front = [axis] + [dim for dim in range(rank) if dim != axis]
    moved = found if axis == 0 else tf.transpose(found, front)
    rest = tf.shape(moved)[1:]
    count = tf.size(indices)
    spread = tf.scatter_nd(tf.cast(places, tf.int32), moved, tf.concat([[count], rest], axis=0))
    spread = tf.reshape(spread, tf.concat([tf.shape(indices), rest], axis=0))
    outer = known_ndims(indices)
    spread.set_shape(indices.shape.concatenate(moved.shape[1:]))
    order = list(range(outer, outer + axis)) + list(range(outer)) + list(range(outer + axis, outer + rank - 1))
    return spread if axis == 0 else tf.transpose(spread, order)


@rule("GatherNd", "ResourceGatherNd")
def _gather_nd(op: OpInfo) -> Iterator[Choice]:
    """For the table of a ResourceGatherNd see `_gather`."""
    table, indices = op.inputs
    if table.shape is None or indices.shape is None or indices.shape[-1] is None:
        return
    found: Labels = [f"i{dim}" for dim in range(len(indices.shape) - 1)]
    rest: Labels = [f"t{dim}" for dim in range(indices.shape[-1], len(table.shape))]
    rows: Labels = [None] * indices.shape[-1] + list(rest)
    for choice in labelled(op, [rows, list(found) + [None]], [list(found) + list(rest)]):
        of_variable = op.type == "ResourceGatherNd" and table.dtype != tf.resource
        yield from never_empty([choice._replace(emit=_emit_of_value) if of_variable else choice])
    if op.type == "GatherNd":
        yield from linear(op, 0)


@rule("OneHot")
def _one_hot(op: OpInfo) -> Iterator[Choice]:
    """Where the classes are cut, indices are counted from this rank's first class."""
    if not known_ranks(op):
        return
    rank = len(op.outputs[0].shape or ())
    at = op.attrs.get("axis", -1) % rank
    data: Labels = [dim if dim < at else dim + 1 for dim in range(rank - 1)]

    def emitter(outputs: Tuple[Placement, ...]) -> Emit:
        placement = outputs[0]

        def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
            indices, depth = inputs[:2]
            if placement.dim != at:
                return emission.same(inputs)
            # 8-bit indices could wrap around when the offset is subtracted.
            own = tf.cast(indices, tf.int64) - own_offset(emission, placement, tf.int64)
            return emission.same([own, emission.own(placement.sizes or (), depth.dtype)] + inputs[2:], TI=tf.int64)

        return emit

    for choice in labelled(op, [data, [], [], []], [range(rank)], emitter=emitter, created=True):
        if choice.outputs[0].sizes is not None or choice.inputs[0].is_shard:
            yield choice


# ---- Sums by index


@rule("ScatterNd")
def _scatter_nd(op: OpInfo) -> Iterator[Choice]:
    """Shards of the list of updates give partial sums; a cut dimension inside of each update is cut in the result."""
    indices, updates, _ = op.inputs
    if not known_ranks(op) or indices.shape is None or indices.shape[-1] is None:
        return
    rows: Labels = [f"i{dim}" for dim in range(len(indices.shape) - 1)]
    rest: Labels = [f"t{dim}" for dim in range(len(updates.shape or ()) - len(rows))]
    result: Labels = [None] * indices.shape[-1] + list(rest)

    def emitter(outputs: Tuple[Placement, ...]) -> Emit:
        def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
            return emission.same(inputs[:2] + [own_shape(emission, op.outputs[0], inputs[2], filled(outputs[0]))])

        return emit

    inputs: List[Labels] = [list(rows) + [None], list(rows) + list(rest), []]
    yield from never_empty(labelled(op, inputs, [result], summed=list(rows), emitter=emitter))
    yield from linear(op, 1)


@rule("UnsortedSegmentSum")
def _unsorted_segment_sum(op: OpInfo) -> Iterator[Choice]:
    if known_ranks(op):
        rows = dimensions(op.inputs[1])
        data = dimensions(op.inputs[0])
        yield from labelled(op, [data, rows, []], [[None] + list(data[len(rows) :])], summed=rows)
    yield from linear(op, 0)


@rule("SegmentSum", "SegmentMean", "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
def _segment_sum(op: OpInfo) -> Iterator[Choice]:
    yield from _segments(op)
    yield from linear(op, 0)


@rule("SegmentMax", "SegmentMin", "SegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _segments(op: OpInfo) -> Iterator[Choice]:
    """The dimensions inside of a row can be cut: they are computed element by element."""
    if known_ranks(op):
        outer = 1 if not op.type.startswith("Unsorted") else len(op.inputs[1].shape or ())
        rest: List[Optional[Hashable]] = list(dimensions(op.inputs[0])[outer:])
        more: List[Labels] = [[]] * (len(op.inputs) - 1)
        yield from labelled(op, [[None] * outer + rest, *more], [[None] + rest])
