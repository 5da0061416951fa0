"""Several gradients that are cut into parts go in one collective, a reduce-scatter.

    a [4, 2]   b [2, 3]                 bundle [2 ranks, 4 + 3]
    a0 a1  |   b0 b1 b2      =>         a0..a3  b0 b1 b2        what rank 0 gets
    ...    |   b3 b4 b5                 a4..a7  b3 b4 b5        rank 1

A part that is smaller than the largest one is filled up with zeros.
"""

from typing import Callable, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.split.conversions import Exchange, from_front, is_uneven, rows_of_all
from epl.parallel.split.layouts import Layout

Member = NamedTuple("Member", [("shape", Tuple[int, ...]), ("layout", Layout)])
Member.__doc__ = """A tensor of a bundle.

Attributes:
  shape: of the whole.
  layout: how it is cut; with sizes.
"""


def reduce_scatter(
    tensors: Sequence[tf.Tensor],
    members: Sequence[Member],
    exchange: Exchange,
    scatter: Callable[[tf.Tensor], tf.Tensor],
) -> List[tf.Tensor]:
    """This rank's parts of tensors of one dtype.

    Args:
      tensors: whole.
      members: what they are.
      exchange: knows what differs between ranks.
      scatter: reduces [ranks, n] over the ranks, and gives the row of this one, [1, n].
    """
    lines = [_lines(tensor, member) for tensor, member in zip(tensors, members)]
    own = tf.reshape(scatter(tf.concat(lines, axis=1)), [-1])
    parts = []
    for member, flat in zip(members, tf.split(own, [_length(member) for member in members])):
        front = tf.reshape(flat, [max(_sizes(member))] + _others(member))
        if is_uneven(member.layout):
            front = front[: exchange.own(_sizes(member), tf.int32)]
        parts.append(from_front(front, member.layout.dim))
    return parts


def _lines(tensor: tf.Tensor, member: Member) -> tf.Tensor:
    """[ranks, length]: what each rank gets of a whole tensor."""
    front = rows_of_all(tensor, member.layout)
    if not is_uneven(member.layout):
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
    return [size for dim, size in enumerate(member.shape) if dim != member.layout.dim]


def _sizes(member: Member) -> Sequence[int]:
    assert member.layout.sizes is not None
    return member.layout.sizes
