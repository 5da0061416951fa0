"""Images cut along their height or width: each rank computes its part of the result, and takes halos for it.

A halo is what a window at the edge of a part reaches of the neighbour's part: FlexFlow's "attribute" dimension. With 2
ranks, 8 rows of pixels, a window of 3 and SAME padding:

    rank 0     padding  [0 1 2 3]  4              the rows of its part, and the halos
    rank 1            3 [4 5 6 7]  padding

Parts are equal and begin at a multiple of the stride, so that every rank runs the same op, with VALID padding, on its
part and two halos. Where the windows do not overlap there is no halo, and the op runs on the part as it is.
"""

from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import REPLICATED, shard
from epl.parallel.sharding.rules.common import assumed_bytes, shape_without, text_attr
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, Inside, OpInfo
from epl.parallel.sharding.slices import pad_along


class _Reach(NamedTuple):
    """How many rows (or columns) the windows of a result reach beyond the image that it is computed from."""

    before: int
    after: int


def cut_positions(
    op: OpInfo, positions: Sequence[int], windows: Sequence[Optional[int]], filled_with: Optional[float]
) -> Iterator[Choice]:
    """The choices of an op on a batch of images, its first input, which cut one of its positions.

    Args:
      op: takes images, and maybe a kernel; gives images.
      positions: the dimensions of an image that windows move along.
      windows: the size of a window along each; None if it is not known.
      filled_with: what the op takes for pixels beyond the image; None: no number does, so that there are no halos.
    """
    image, ratios = op.inputs[0], op.ratios or (1,)
    found = {dim: _reach(op, dim, window) for dim, window in zip(positions, windows)}
    reaches = {dim: reach for dim, reach in found.items() if reach is not None}
    for dim, reach in reaches.items():
        step = op.ranks * op.attrs["strides"][dim]
        size = None if image.shape is None else image.shape[dim]
        if size is None or size % step or dim == image.batch or len(set(ratios)) > 1:
            continue
        emit: Optional[Emit] = None
        inside: Tuple[Inside, ...] = ()
        if any(reach):
            if filled_with is None or len(reaches) < len(found) or max(reach) > size // op.ranks:
                continue
            emit = _with_halos(dim, reaches, filled_with)
            inside = _exchanged(op, dim, reaches)
        into, out = (shard(dim, (part // op.ranks,) * op.ranks) for part in (size, size // op.attrs["strides"][dim]))
        yield Choice((into, *[REPLICATED] * (len(op.inputs) - 1)), (out,), emit, inside)


def _reach(op: OpInfo, dim: int, window: Optional[int]) -> Optional[_Reach]:
    """The padding of one dimension; None if it is not known, or windows leave out a part of the image."""
    image, stride = op.inputs[0], op.attrs["strides"][dim]
    size = None if image.shape is None else image.shape[dim]
    padding = text_attr(op, "padding")
    if size is None or window is None or padding not in ("SAME", "VALID"):
        return None
    extent = (window - 1) * (op.attrs.get("dilations") or [1] * len(op.attrs["strides"]))[dim] + 1
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    if padding == "VALID" and total:
        return None
    return _Reach(total // 2, total - total // 2)


def _exchanged(op: OpInfo, dim: int, reaches: Dict[int, _Reach]) -> Tuple[Inside, ...]:
    """The halos that are sent, and their gradients: as many bytes as the rank has that sends most.

    The op takes a copy of the part, with its halos and with the padding along the other positions.
    """
    image, reach = op.inputs[0], reaches[dim]
    lines = sum(reach) if op.ranks > 2 else max(reach)
    sent = lines * assumed_bytes(shape_without(image, [dim]), image.dtype.size)
    nbytes = sent * op.ranks / (op.ranks - 1)
    held = assumed_bytes(shape_without(image, reaches), image.dtype.size)
    for other, around in reaches.items():
        size = (image.shape or ())[other] or 0
        held *= size // (op.ranks if other == dim else 1) + sum(around)
    return Inside("all-to-all", nbytes, held=held), Inside("all-to-all", nbytes, True)


def _with_halos(dim: int, reaches: Dict[int, _Reach], filled_with: float) -> Emit:
    """Runs the op on the part with its halos, padded along the other positions as SAME does."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        image = emission.with_halos(inputs[0], dim, reaches[dim].before, reaches[dim].after, filled_with)
        others = {other: reach for other, reach in reaches.items() if other != dim and any(reach)}
        return emission.same([pad_along(image, others, filled_with)] + inputs[1:], padding="VALID")

    return emit
