"""Packed collectives: one reduce-scatter for several gradients, one all-gather for several weights.

    a [4, 2]   b [2, 3]                 packed [2 ranks, 4 + 3]
    a0 a1  |   b0 b1 b2      <=>        a0..a3  b0 b1 b2        of rank 0
    ...    |   b3 b4 b5                 a4..a7  b3 b4 b5        of rank 1

A shard that is smaller than the largest one is padded with zeros.
"""

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import Placement, shard
from epl.parallel.sharding.resharding import Resharder, from_front, is_uneven, to_front


class Member(NamedTuple):
    """A tensor of a packed collective.

    Attributes:
      shape: of the full tensor.
      placement: how it is cut; with sizes.
    """

    shape: Tuple[int, ...]
    placement: Placement


def reduce_scatter(
    tensors: Sequence[tf.Tensor],
    members: Sequence[Member],
    resharder: Resharder,
    scatter: Callable[[tf.Tensor], tf.Tensor],
) -> List[tf.Tensor]:
    """This rank's shards of tensors of one dtype, reduced over the ranks.

    Args:
      tensors: full tensors.
      members: their shapes and placements.
      resharder: makes constants that differ between ranks.
      scatter: reduces [ranks, n] over the ranks, and gives this rank's row, [1, n].
    """
    lines = [_lines(tensor, member) for tensor, member in zip(tensors, members)]
    own = tf.reshape(scatter(tf.concat(lines, axis=1)), [-1])
    parts = []
    for member, flat in zip(members, tf.split(own, [_length(member) for member in members])):
        front = tf.reshape(flat, [max(_sizes(member))] + _others(member))
        if is_uneven(member.placement):
            front = front[: resharder.own(_sizes(member), tf.int32)]
        parts.append(from_front(front, member.placement.dim))
    return parts


def all_gather(parts: Sequence[tf.Tensor], members: Sequence[Member], resharder: Resharder) -> List[tf.Tensor]:
    """The full tensors of one dtype; no gradient.

    Args:
      parts: the shards of this rank.
      members: shapes and placements of the full tensors.
      resharder: of this rank; the collective runs after those that it has built before.
    """
    lengths = [_length(member) for member in members]
    own = tf.concat([tf.reshape(_filled(*one, resharder=resharder), [-1]) for one in zip(parts, members)], axis=0)
    own.set_shape([sum(lengths)])
    every = resharder.gather(own, shard(0, [sum(lengths)] * resharder.ranks))
    lines = tf.split(tf.reshape(every, [resharder.ranks, sum(lengths)]), lengths, axis=1)
    return [_whole(line, member) for line, member in zip(lines, members)]


def _filled(part: tf.Tensor, member: Member, resharder: Resharder) -> tf.Tensor:
    """A shard with the cut dimension first, padded to the size of the largest shard."""
    front = to_front(part, member.placement.dim)
    if not is_uneven(member.placement):
        return front
    others = [[0, 0]] * len(_others(member))
    missing = [[[0, max(_sizes(member)) - size]] + others for size in _sizes(member)]
    return tf.pad(front, resharder.own(missing, tf.int32))


def _whole(line: tf.Tensor, member: Member) -> tf.Tensor:
    """The full tensor, from the shards of all ranks."""
    most = max(_sizes(member))
    front = tf.reshape(line, [len(_sizes(member)) * most] + _others(member))
    kept = _kept(member)
    whole = from_front(front if kept is None else tf.gather(front, kept), member.placement.dim)
    whole.set_shape(member.shape)
    return whole


def _kept(member: Member) -> Optional[List[int]]:
    """The indices of the rows that are no padding, in the rows of all ranks; None if there is no padding."""
    if not is_uneven(member.placement):
        return None
    most = max(_sizes(member))
    return [rank * most + row for rank, size in enumerate(_sizes(member)) for row in range(size)]


def _lines(tensor: tf.Tensor, member: Member) -> tf.Tensor:
    """[ranks, length]: for each rank its shard of a full tensor, padded and flattened."""
    front = to_front(tensor, member.placement.dim)
    if not is_uneven(member.placement):
        return tf.reshape(front, [len(_sizes(member)), _length(member)])
    padding = [[0, 0]] * len(_others(member))
    pieces = [
        tf.pad(piece, [[0, max(_sizes(member)) - size]] + padding)
        for piece, size in zip(tf.split(front, _sizes(member)), _sizes(member))
    ]
    return tf.stack([tf.reshape(piece, [_length(member)]) for piece in pieces])


def _length(member: Member) -> int:
    length = max(_sizes(member))
    for size in _others(member):
        length *= size
    return length


def _others(member: Member) -> List[int]:
    """The sizes of the dimensions that are not cut."""
    return [size for dim, size in enumerate(member.shape) if dim != member.placement.dim]


def _sizes(member: Member) -> Sequence[int]:
    assert member.placement.sizes is not None
    return member.placement.sizes
