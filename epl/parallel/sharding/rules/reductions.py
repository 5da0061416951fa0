"""Rules of reductions along dimensions, of searches along one, and of running sums.

Along the dimension that is cut, a sum leaves partial sums; for other reductions the ranks exchange their results.
"""

from typing import Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import REPLICATED, Placement, shard
from epl.parallel.sharding.rules.common import (
    all_reduced,
    assumed_bytes,
    constant_axes,
    constant_ints,
    dimensions,
    filled,
    labelled,
    linear,
    open_batch,
    own_offset,
    rank_of,
    shape_without,
    weighted,
    with_element,
    without,
    without_element,
)
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, Inside, OpInfo, rule


class _Reduction:
    """A reduction whose axes are known: `axes`, and the labels of its output."""

    def __init__(self, op: OpInfo, axes: Sequence[int]) -> None:
        self.op = op
        self.axes = sorted(set(axes))
        self.data = dimensions(op.inputs[0])
        if op.attrs.get("keep_dims"):
            self.output = without(self.data, self.axes)
        else:
            self.output = [label for label in self.data if label not in self.axes]

    def rows(self) -> Iterator[Choice]:
        """Choices that cut a dimension that is not reduced."""
        return labelled(self.op, [without(self.data, self.axes), []], [self.output])

    def over(self, emit: Emit, inside: Tuple[Inside, ...]) -> Iterator[Choice]:
        """Choices that cut a dimension that is reduced, with a REPLICATED result."""
        kept = without(self.data, [axis for axis in self.data if axis not in self.axes])
        for choice in labelled(self.op, [kept, []], [[]], summed=self.axes):
            yield Choice(choice.inputs, (REPLICATED,), emit, inside)


def _reduction(op: OpInfo) -> Optional[_Reduction]:
    rank = rank_of(op.inputs[0])
    axes = None if rank is None else constant_axes(op.inputs[1], rank)
    return None if axes is None else _Reduction(op, axes)


def _exchanged(op: OpInfo, emit: Emit, inside: Tuple[Inside, ...]) -> Iterator[Choice]:
    """The choices of a reduction for which the ranks exchange the results of their shards."""
    found = _reduction(op)
    if found is not None:
        yield from found.rows()
        yield from found.over(emit, inside)


@rule("Sum")
def _sum(op: OpInfo) -> Iterator[Choice]:
    found = _reduction(op)
    if found is not None:
        yield from labelled(op, [found.data, []], [found.output], summed=found.axes)
    yield from linear(op, 0)


@rule("Mean")
def _mean(op: OpInfo) -> Iterator[Choice]:
    found = _reduction(op)
    dtype = op.outputs[0].dtype
    if found is not None:
        yield from found.rows()
    if dtype.is_integer:
        return
    if found is not None:
        for choice in labelled(op, [found.data, []], [found.output], summed=found.axes):
            if choice.inputs[0].dim in found.axes:
                inside = all_reduced((), 8, (1,)) if open_batch(op.inputs[0], choice.inputs[0]) else ()
                yield choice._replace(emit=_emit_mean(found, choice.inputs[0]), inside=inside, averages=True)
    yield from linear(op, 0)


def _emit_mean(found: _Reduction, placement: Placement) -> Emit:
    """The sum of the shard, divided by the number of elements of all shards."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        part, axes = inputs
        count = tf.constant(1, tf.int64)
        for axis in found.axes:
            size = (op.inputs[0].shape or ())[axis]
            own = tf.shape(part, out_type=tf.int64)[axis]
            if size is not None:
                count *= size
            else:
                count *= emission.sum_partial(own) if axis == placement.dim else own
        total = tf.reduce_sum(part, axes, keepdims=bool(op.attrs.get("keep_dims")))
        return [total / tf.cast(count, total.dtype)]

    return emit


@rule("Max", "Min")
def _extremum(op: OpInfo) -> Iterator[Choice]:
    found = _reduction(op)
    if found is not None:
        yield from found.rows()
        result = op.outputs[0]
        if result.dtype != tf.bool:
            ties = (1,) if result.dtype.is_floating else ()  # they are counted for the gradient
            inside = all_reduced(result.shape, result.dtype.size, (1, *ties))
            yield from found.over(_emit_extremum, inside)


def _emit_extremum(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
    """Equal extreme elements share the gradient evenly, as in TensorFlow."""
    part, axes = inputs
    largest = op.type == "Max"
    own = (tf.reduce_max if largest else tf.reduce_min)(part, axes, keepdims=True)
    best = tf.stop_gradient(emission.all_max(own) if largest else emission.all_min(own))
    if part.dtype.is_floating:
        ties = tf.cast(tf.equal(part, best), part.dtype)
        count = emission.sum_partial(tf.stop_gradient(tf.reduce_sum(ties, axes, keepdims=True)))
        best = weighted(emission, best, part, tf.stop_gradient(ties / count))
    return [best if op.attrs.get("keep_dims") else tf.squeeze(best, _static_axes(op))]


def _static_axes(op: OpInfo) -> List[int]:
    return sorted(set(constant_axes(op.inputs[1], len(op.inputs[0].shape or ())) or ()))


@rule("Prod", "EuclideanNorm")
def _gathered(op: OpInfo) -> Iterator[Choice]:
    """The results of the shards are gathered, and each rank reduces them again."""
    inside = Inside("all-gather", op.ranks * assumed_bytes(op.outputs[0].shape, op.outputs[0].dtype.size))
    found = _exchanged(op, _emit_gathered, (inside,))
    # Several ranks may have copies of the same rows.
    return (choice for choice in found if choice.emit is None or choice.inputs[0].sizes is not None)


def _emit_gathered(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
    own = tf.expand_dims(emission.same(inputs)[0], 0)
    results = emission.gather(own, shard(0, (1,) * emission.ranks))
    return emission.same([results, tf.constant([0], inputs[1].dtype)], keep_dims=False)


@rule("All", "Any")
def _logical(op: OpInfo) -> Iterator[Choice]:
    return _exchanged(op, _emit_logical, all_reduced(op.outputs[0].shape, tf.int32.size, (1,)))


def _emit_logical(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
    own = tf.cast(emission.same(inputs)[0], tf.int32)
    return [tf.cast(emission.all_min(own) if op.type == "All" else emission.all_max(own), tf.bool)]


@rule("L2Loss")
def _l2_loss(op: OpInfo) -> Iterator[Choice]:
    data = dimensions(op.inputs[0])
    return labelled(op, [data], [[]], summed=data)


@rule("ArgMax", "ArgMin")
def _arg(op: OpInfo) -> Iterator[Choice]:
    rank = rank_of(op.inputs[0])
    axes = None if rank is None else constant_axes(op.inputs[1], rank)
    if not axes:
        return
    data = dimensions(op.inputs[0])
    yield from labelled(op, [without(data, axes), []], [[label for label in data if label not in axes]])
    rows = shape_without(op.inputs[0], axes)
    inside = sum((all_reduced(rows, one.dtype.size, (1,)) for one in (op.inputs[0], op.outputs[0])), ())
    for choice in labelled(op, [data, []], [[]], summed=axes):
        if choice.inputs[0].sizes is not None:
            yield Choice(choice.inputs, (REPLICATED,), _emit_arg(choice.inputs[0]), inside)


def _emit_arg(placement: Placement) -> Emit:
    """The first position of the largest (smallest) element counts, if several ranks have it.

    An empty shard has the least possible element, which no rank takes before another one.
    """

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        part = inputs[0]
        largest = op.type == "ArgMax"
        own = (tf.reduce_max if largest else tf.reduce_min)(part, placement.dim)
        best = emission.all_max(own) if largest else emission.all_min(own)
        position = emission.same([with_element(emission, part, placement), inputs[1]])[0]
        position += own_offset(emission, placement, position.dtype)
        last = tf.constant(sum(placement.sizes or ()) - 1, position.dtype)
        return [emission.all_min(tf.where_v2(tf.equal(own, best), position, last))]

    return emit


@rule("TopKV2")
def _top_k(op: OpInfo) -> Iterator[Choice]:
    if op.inputs[0].shape is None:
        return
    data = dimensions(op.inputs[0])
    rows = without(data, data[-1:])
    yield from labelled(op, [rows, []], [rows, rows])
    count = constant_ints(op.inputs[1])
    if count is None:
        return
    each = assumed_bytes(shape_without(op.inputs[0], data[-1:]), count[0] * op.ranks)  # of one byte
    inside = tuple(Inside("all-gather", each * one.dtype.size) for one in op.outputs)
    for choice in labelled(op, [without(data, data[:-1]), []], [[], []], summed=data[-1:]):
        if choice.inputs[0].sizes is not None:
            yield Choice(choice.inputs, (REPLICATED, REPLICATED), _emit_top_k(choice.inputs[0], count[0]), inside)


def _emit_top_k(placement: Placement, count: int) -> Emit:
    """The top k of all ranks' top k. Equal elements stay in their order, by rank and position."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        part, number = inputs
        candidates = shard(placement.dim, [min(count, size) for size in placement.sizes or ()])
        asked = emission.own(filled(candidates).sizes or (), number.dtype)
        found = emission.same([with_element(emission, part, placement), asked], sorted=True)
        values, positions = [without_element(emission, one, candidates) for one in found]
        values = emission.gather(values, candidates)
        positions = emission.gather(positions + own_offset(emission, placement, positions.dtype), candidates)
        best, places = emission.same([values, number])
        return [best, tf.gather(positions, places, axis=placement.dim, batch_dims=placement.dim)]

    return emit


@rule("Cumsum")
def _cumsum(op: OpInfo) -> Iterator[Choice]:
    yield from _along_one_axis(op)
    yield from linear(op, 0)


@rule("Cumprod", "CumulativeLogsumexp")
def _along_one_axis(op: OpInfo) -> Iterator[Choice]:
    rank = rank_of(op.inputs[0])
    axes = None if rank is None else constant_axes(op.inputs[1], rank)
    if axes is not None:
        data = without(dimensions(op.inputs[0]), axes)
        yield from labelled(op, [data, []], [data])
