"""Rules of ops that move elements: transpose, concatenate, split, slice, tile, reverse. Reshape has its own file."""

from typing import Iterator, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import PARTIAL, REPLICATED, Placement
from epl.parallel.sharding.rules.common import (
    Labels,
    all_reduced,
    constant_axes,
    constant_ints,
    dimensions,
    known_ranks,
    labelled,
    linear,
    never_empty,
    open_batch,
    own_shape,
    own_size,
    rank_of,
    replaced,
    text_attr,
    without,
)
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, OpInfo, rule


@rule("Transpose", "ConjugateTranspose")
def _transpose(op: OpInfo) -> Iterator[Choice]:
    order = constant_ints(op.inputs[1])
    if order is not None:
        yield from labelled(op, [range(len(order)), []], [order])
    yield from linear(op, 0)


@rule("ExpandDims")
def _expand_dims(op: OpInfo) -> Iterator[Choice]:
    rank, at = rank_of(op.inputs[0]), constant_ints(op.inputs[1])
    if rank is not None and at is not None:
        data: List[Optional[int]] = list(range(rank))
        place = at[0] % (rank + 1)
        yield from labelled(op, [data, []], [data[:place] + [None] + data[place:]])
    yield from linear(op, 0)


@rule("Squeeze")
def _squeeze(op: OpInfo) -> Iterator[Choice]:
    """All dimensions of size 1 go if none is named; the op on shards names them, as a shard may have size 1 as well."""
    shape = op.inputs[0].shape
    if shape is not None:
        dims = [dim % len(shape) for dim in op.attrs.get("squeeze_dims") or ()]
        if dims or None not in shape:
            dims = dims or [dim for dim, size in enumerate(shape) if size == 1]
            data = dimensions(op.inputs[0])
            kept = [dim for dim in data if dim not in dims]
            result = op.outputs[0].shape
            if result is not None and len(result) != len(kept):  # a shard of size 1 has lost one dimension more
                return

            def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
                return emission.same(inputs, squeeze_dims=dims) if dims else [tf.identity(inputs[0])]

            yield from labelled(op, [without(data, dims)], [kept], emitter=lambda outputs: emit)
    yield from linear(op, 0)


# ---- Concatenations and splits. The dimension along which they work is not cut.


@rule("Concat", "ConcatV2")
def _concat(op: OpInfo) -> Iterator[Choice]:
    axis_at = 0 if op.type == "Concat" else len(op.inputs) - 1
    values = [index for index in range(len(op.inputs)) if index != axis_at]
    rank, axis = rank_of(op.outputs[0]), constant_ints(op.inputs[axis_at])
    if rank is not None and axis is not None:
        data = without(range(rank), [axis[0] % rank])
        yield from labelled(op, [[] if index == axis_at else data for index in range(len(op.inputs))], [data])
    yield from linear(op, *values)


@rule("Split", "SplitV")
def _split(op: OpInfo) -> Iterator[Choice]:
    value_at, axis_at = (1, 0) if op.type == "Split" else (0, 2)
    rank, axis = rank_of(op.inputs[value_at]), constant_ints(op.inputs[axis_at])
    if rank is not None and axis is not None:
        data = without(range(rank), [axis[0] % rank])
        inputs: List[Labels] = [data if index == value_at else [] for index in range(len(op.inputs))]
        yield from labelled(op, inputs, [data] * len(op.outputs))
    yield from linear(op, value_at)


@rule("Pack")
def _pack(op: OpInfo) -> Iterator[Choice]:
    if rank_of(op.outputs[0]) is not None:
        data, joined = _stacked(op, len(op.outputs[0].shape or ()))
        yield from labelled(op, [data] * len(op.inputs), [joined])
    yield from linear(op, *range(len(op.inputs)))


@rule("Unpack")
def _unpack(op: OpInfo) -> Iterator[Choice]:
    if rank_of(op.inputs[0]) is not None and op.outputs:
        data, joined = _stacked(op, len(op.inputs[0].shape or ()))
        yield from labelled(op, [joined], [data] * len(op.outputs))
    yield from linear(op, 0)


def _stacked(op: OpInfo, rank: int) -> Tuple[Labels, Labels]:
    """Labels of one element of a stack, and of the stack."""
    axis = op.attrs["axis"] % rank
    data: List[Optional[int]] = list(range(rank - 1))
    return data, data[:axis] + [None] + data[axis:]


# ---- Slices. A dimension that is taken in full can be cut.


@rule("Slice")
def _slice(op: OpInfo) -> Iterator[Choice]:
    if known_ranks(op):
        begin, size = constant_ints(op.inputs[1]), constant_ints(op.inputs[2])
        data: List[Optional[int]] = []
        for dim, (had, left) in enumerate(zip(op.inputs[0].shape or (), op.outputs[0].shape or ())):
            asked = begin is not None and begin[dim] == 0 and size is not None and size[dim] == -1
            data.append(dim if asked or (had is not None and had == left) else None)
        yield from labelled(op, [data, [], []], [data], emitter=_emit_slice)
    yield from linear(op, 0)


def _emit_slice(outputs: Tuple[Placement, ...]) -> Emit:
    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        return emission.same(inputs[:2] + [replaced(inputs[2], outputs[0].dim, -1)])

    return emit


@rule("StridedSlice")
def _strided_slice(op: OpInfo) -> Iterator[Choice]:
    data, left = _strided_labels(op)
    if data is not None:
        yield from labelled(op, [data, [], [], []], [left])
    yield from linear(op, 0)


def _strided_labels(op: OpInfo) -> Tuple[Optional[Labels], Labels]:
    """Labels of the dimensions that are taken in full, before and after; an end beyond a shard takes all of it."""
    shape, strides = op.inputs[0].shape, constant_ints(op.inputs[3])
    if shape is None or strides is None:
        return None, []
    begin, end = constant_ints(op.inputs[1]), constant_ints(op.inputs[2])
    data: List[Optional[int]] = []
    left: List[Optional[int]] = []
    named = sum(1 for index in range(len(strides)) if not _in_mask(op, "new_axis_mask", index))
    named -= sum(1 for index in range(len(strides)) if _in_mask(op, "ellipsis_mask", index))
    for index, stride in enumerate(strides):
        dim = len(data)
        if _in_mask(op, "ellipsis_mask", index):
            skipped = range(dim, dim + len(shape) - named)
            data += skipped
            left += skipped
        elif _in_mask(op, "new_axis_mask", index):
            left.append(None)
        elif _in_mask(op, "shrink_axis_mask", index):
            data.append(None)
        else:
            from_start = _in_mask(op, "begin_mask", index) or (begin is not None and begin[index] == 0)
            size = shape[dim]
            to_end = _in_mask(op, "end_mask", index) or (end is not None and size is not None and end[index] >= size)
            data.append(dim if stride == 1 and from_start and to_end else None)
            left.append(data[-1])
    rest = range(len(data), len(shape))
    return data + list(rest), left + list(rest)


def _in_mask(op: OpInfo, mask: str, index: int) -> bool:
    return bool(op.attrs.get(mask, 0) >> index & 1)


# ---- Repeating and padding.


@rule("Pad", "PadV2", "MirrorPad")
def _pad(op: OpInfo) -> Iterator[Choice]:
    widths = constant_ints(op.inputs[1])
    if widths is not None:
        rank = len(widths) // 2
        data = without(range(rank), [dim for dim in range(rank) if widths[2 * dim] or widths[2 * dim + 1]])
        more: List[Labels] = [[]] * (len(op.inputs) - 1)
        cut = labelled(op, [data, *more], [data])
        yield from never_empty(cut) if op.type == "MirrorPad" else cut
    if op.type != "PadV2":
        yield from linear(op, 0)


@rule("Tile")
def _tile(op: OpInfo) -> Iterator[Choice]:
    """A dimension of size 1 is repeated as often as the shard has elements."""
    shape, multiples = op.inputs[0].shape, constant_ints(op.inputs[1])
    if shape is not None:
        data: List[Optional[int]] = []
        left: List[Optional[int]] = []
        for dim, size in enumerate(shape):
            kept = multiples is not None and multiples[dim] == 1
            data.append(dim if kept else None)
            left.append(dim if kept or size == 1 else None)
        for choice in labelled(op, [data, []], [left], emitter=_emit_tile, created=True):
            yield choice._replace(emit=None) if choice.inputs[0].is_shard else choice
    yield from linear(op, 0)


def _emit_tile(outputs: Tuple[Placement, ...]) -> Emit:
    placement = outputs[0]

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        given = inputs[1][placement.dim]
        size = (op.outputs[0].shape or ())[placement.dim]  # the given one may be that of one rank's batch
        own = own_size(emission, placement, given if size is None else tf.constant(size, given.dtype.base_dtype))
        return emission.same([inputs[0], replaced(inputs[1], placement.dim, own)])

    return emit


@rule("BroadcastTo")
def _broadcast_to(op: OpInfo) -> Iterator[Choice]:
    if known_ranks(op):
        shape, target = op.inputs[0].shape or (), op.outputs[0].shape or ()
        more = len(target) - len(shape)
        data: List[Optional[int]] = []
        for dim, size in enumerate(shape):
            same = size is not None and size == target[dim + more]
            data.append(dim + more if size != 1 and (same or op.inputs[0].batch == dim) else None)
        left = [dim if dim < more or shape[dim - more] == 1 or dim in data else None for dim in range(len(target))]
        yield from labelled(op, [data, []], [left], emitter=_emit_shape_last, created=True)
    yield from linear(op, 0)


def _emit_shape_last(outputs: Tuple[Placement, ...]) -> Emit:
    """The op with this rank's shape for its last input."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        return emission.same(inputs[:-1] + [own_shape(emission, op.outputs[0], inputs[-1], outputs[0])])

    return emit


@rule("Fill")
def _fill(op: OpInfo) -> Iterator[Choice]:
    def emitter(outputs: Tuple[Placement, ...]) -> Emit:
        def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
            return emission.same([own_shape(emission, op.outputs[0], inputs[0], outputs[0]), inputs[1]])

        return emit

    yield from labelled(op, [[], []], [dimensions(op.outputs[0])], emitter=emitter, created=True)


# ---- Reversals.


@rule("Reverse", "ReverseV2", "Roll")
def _turned(op: OpInfo) -> Iterator[Choice]:
    rank = rank_of(op.inputs[0])
    if rank is not None:
        turned = _turned_dims(op, rank)
        if turned is not None:
            data = without(range(rank), turned)
            yield from labelled(op, [data] + [[]] * (len(op.inputs) - 1), [data])
    yield from linear(op, 0)


def _turned_dims(op: OpInfo, rank: int) -> Optional[List[int]]:
    if op.type == "Reverse":  # a boolean for each dimension
        given = constant_ints(op.inputs[1])
        return None if given is None else [dim for dim, turned in enumerate(given) if turned]
    return constant_axes(op.inputs[-1], rank)


@rule("ReverseSequence")
def _reverse_sequence(op: OpInfo) -> Iterator[Choice]:
    rank = rank_of(op.inputs[0])
    if rank is not None:
        data = without(range(rank), [op.attrs["seq_dim"] % rank])
        yield from labelled(op, [data, [op.attrs["batch_dim"] % rank]], [data])
    yield from linear(op, 0)


# ---- Shapes of tensors.


@rule("Shape", "Size", "Rank")
def _shape(op: OpInfo) -> Iterator[Choice]:
    """The shape of the full tensor, from a shard or a partial sum."""
    for choice in labelled(op, [dimensions(op.inputs[0])], [[]], summed=dimensions(op.inputs[0])):
        placement = choice.inputs[0]
        adds_up = op.type != "Rank" and open_batch(op.inputs[0], placement)
        inside = all_reduced((), op.outputs[0].dtype.size, (1,)) if adds_up else ()
        yield Choice((placement,), (REPLICATED,), _emit_shape(placement), inside)
    yield Choice((PARTIAL,), (REPLICATED,))


def _emit_shape(placement: Placement) -> Emit:
    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        dtype = op.outputs[0].dtype
        if op.type == "Rank":
            return emission.same(inputs)
        shape = tf.shape(inputs[0], out_type=dtype)
        size = (op.inputs[0].shape or ())[placement.dim]
        if size is not None:
            full = tf.constant(size, dtype)
        else:
            full = emission.sum_partial(shape[placement.dim])
        shape = replaced(shape, placement.dim, full)
        return [tf.reduce_prod(shape) if op.type == "Size" else shape]

    return emit


# ---- Ops on the last dimensions, or on positions and channels, of each element of a batch.

# Op type -> how many of the last dimensions of each data input and of the output belong to one element.
_LAST = {
    "Cholesky": ((2,), 2),
    "FFT": ((1,), 1),
    "IFFT": ((1,), 1),
    "MatrixBandPart": ((2, 0, 0), 2),
    "MatrixDeterminant": ((2,), 0),
    "MatrixDiag": ((1,), 2),
    "MatrixDiagPart": ((2,), 1),
    "MatrixInverse": ((2,), 2),
    "MatrixSetDiag": ((2, 1), 2),
    "MatrixSolve": ((2, 2), 2),
    "MatrixTriangularSolve": ((2, 2), 2),
}


@rule(*_LAST)
def _last_dimensions(op: OpInfo) -> Iterator[Choice]:
    inputs, output = _LAST[op.type]
    if known_ranks(op):
        outer = len(op.outputs[0].shape or ()) - output
        labels = [
            list(range(min(outer, len(tensor.shape or ())))) + [None] * count
            for tensor, count in zip(op.inputs, inputs)
        ]
        yield from labelled(op, labels, [list(range(outer)) + [None] * output])
    if op.type in ("MatrixBandPart", "MatrixDiag", "MatrixDiagPart"):
        yield from linear(op, 0)


@rule("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea")
def _resize(op: OpInfo) -> Iterator[Choice]:
    yield from never_empty(labelled(op, [["n", None, None, "c"], []], [["n", None, None, "c"]]))


@rule("SpaceToDepth", "DepthToSpace", "ExtractImagePatches")
def _patches(op: OpInfo) -> Iterator[Choice]:
    """Channels are mixed with positions, so only images are cut."""
    if text_attr(op, "data_format") != "NCHW_VECT_C":
        yield from never_empty(labelled(op, [["n", None, None, None]], [["n", None, None, None]]))
    yield from linear(op, 0)
