"""One function per native op: builds it, of native dtypes only, for one rank of a communicator.

`communicator.py` adds what users of collectives need: any dtype, lists of several dtypes, sparse tensors, means, and a
world of one. Gradients are in `gradients.py`. Both build their ops here.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.ops import native

Weight = Union[float, tf.Tensor]


# The rank for which an op is built: attributes communicator, rank, key, and the size of the communicator.
class CollectiveMember(NamedTuple):
    communicator: str
    rank: int
    key: str
    world: int


def all_reduce(
    member: CollectiveMember, tensors: Sequence[tf.Tensor], reduce_op: str = "sum", weight: Weight = 1.0
) -> List[tf.Tensor]:
    """EplAllReduce: the tensors (all of one dtype), times `weight`, reduced over the ranks."""
    return native.require().ops.epl_all_reduce(
        weight=_weight(weight),
        tensors=list(tensors),
        reduce_op=reduce_op,
        communicator=member.communicator,
        rank=member.rank,
        key=member.key,
    )


def reduce(
    member: CollectiveMember, tensors: Sequence[tf.Tensor], root: int, reduce_op: str = "sum", weight: Weight = 1.0
) -> List[tf.Tensor]:
    """EplReduce: the same on rank `root`; zeros on the others."""
    return native.require().ops.epl_reduce(
        weight=_weight(weight),
        tensors=list(tensors),
        root=root,
        reduce_op=reduce_op,
        communicator=member.communicator,
        rank=member.rank,
        key=member.key,
    )


def broadcast(member: CollectiveMember, tensors: Sequence[tf.Tensor], root: int) -> List[tf.Tensor]:
    """EplBroadcast: the tensors (all of one dtype) of rank `root`."""
    return native.require().ops.epl_broadcast(
        tensors=list(tensors), root=root, communicator=member.communicator, rank=member.rank, key=member.key
    )


def all_gather(member: CollectiveMember, tensor: tf.Tensor, equal_rows: bool = False) -> Tuple[tf.Tensor, tf.Tensor]:
    """EplAllGather: the rows of all ranks, and how many came from each."""
    output = native.require().ops.epl_all_gather(
        tensor=tensor,
        world=member.world,
        equal_rows=equal_rows,
        communicator=member.communicator,
        rank=member.rank,
        key=member.key,
    )
    return output.output, output.rows


def reduce_scatter(
    member: CollectiveMember, tensor: tf.Tensor, reduce_op: str = "sum", weight: Weight = 1.0
) -> tf.Tensor:
    """EplReduceScatter: this rank's part of the rows, times `weight`, reduced over the ranks."""
    return native.require().ops.epl_reduce_scatter(
        weight=_weight(weight),
        tensor=tensor,
        reduce_op=reduce_op,
        world=member.world,
        communicator=member.communicator,
        rank=member.rank,
        key=member.key,
    )


def all_to_all(
    member: CollectiveMember, tensor: tf.Tensor, row_splits: Optional[tf.Tensor] = None
) -> Tuple[tf.Tensor, Optional[tf.Tensor]]:
    """EplAllToAll, or with `row_splits` EplAllToAllV: the rows that each rank sent here; how many, None if equal."""
    ops = native.require().ops
    if row_splits is None:
        return ops.epl_all_to_all(
            tensor=tensor, world=member.world, communicator=member.communicator, rank=member.rank, key=member.key
        ), None
    output = ops.epl_all_to_all_v(
        tensor=tensor,
        row_splits=row_splits,
        world=member.world,
        communicator=member.communicator,
        rank=member.rank,
        key=member.key,
    )
    return output.output, output.received


def _weight(weight: Weight) -> tf.Tensor:
    """The weight as the ops take it: float64, so that a mean of float64 tensors is as exact as they are."""
    if tf.is_tensor(weight):
        return tf.cast(weight, tf.float64)
    # Made inside a control_dependencies block, it would take the control edge in place of the collective.
    with tf.control_dependencies(None):
        return tf.constant(weight, tf.float64, name="weight")
