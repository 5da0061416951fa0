"""Gradients of the collective ops.

The loss is the sum of the losses of all ranks, so the gradient of a collective is its adjoint across ranks: that of a
sum is a sum, that of a gather is a scatter. A gradient collective belongs to the same communicator and rank, has the
key `<key>/grad`, and waits for the forward op. Only sums have gradients.

| forward | gradient |
| --- | --- |
| all_reduce(w * x) | w * all_reduce(g) |
| reduce(w * x) to root | w * broadcast(g) from root |
| broadcast from root | reduce(g) to root, zeros elsewhere |
| all_gather | reduce_scatter if the rows are known to be equal, else an all_to_all of each rank's rows and a sum |
| reduce_scatter(w * x) | w * all_gather(g) |
| all_to_all | all_to_all, with the received row counts as splits |
"""

from typing import Any, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ops import collectives
from epl.ops.collectives import CollectiveMember


def _member(op: tf.Operation, world: int = 0) -> CollectiveMember:
    key = op.get_attr("key").decode() + "/grad"
    return CollectiveMember(op.get_attr("communicator").decode(), op.get_attr("rank"), key, world)


def _differentiable(op: tf.Operation) -> bool:
    return op.get_attr("T") in (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def _require_sum(op: tf.Operation) -> None:
    reduce_op = op.get_attr("reduce_op").decode()
    if reduce_op != "sum":
        raise NotImplementedError(
            '{} "{}" (key "{}") reduces with {}, which has no gradient; only sum and mean have. Use '
            "tf.stop_gradient on its input if none is wanted.".format(
                op.type, op.name, op.get_attr("key").decode(), reduce_op
            )
        )


def _weigh(weight: tf.Tensor, grads: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """w * g; a weight that is constantly 1 costs nothing."""
    constant = tf.get_static_value(weight)
    if constant is not None and constant == 1:
        return list(grads)
    return [grad * tf.cast(weight, grad.dtype) for grad in grads]


class _After:
    """Builds on the device of the forward op, and after it."""

    def __init__(self, op: tf.Operation) -> None:
        self._device = tf.device(op.device)
        self._dependencies = tf.control_dependencies([op])

    def __enter__(self) -> None:
        self._device.__enter__()
        self._dependencies.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._dependencies.__exit__(*error)
        self._device.__exit__(*error)


@tf.RegisterGradient("EplAllReduce")
def _all_reduce_grad(op: tf.Operation, *grads: Any) -> List[Optional[tf.Tensor]]:
    if not _differentiable(op):
        return [None] * len(op.inputs)
    _require_sum(op)
    dense = _dense(grads)
    with _After(op):
        summed = collectives.all_reduce(_member(op), dense)
        return [None] + _weigh(op.inputs[0], summed)


@tf.RegisterGradient("EplReduce")
def _reduce_grad(op: tf.Operation, *grads: Any) -> List[Optional[tf.Tensor]]:
    if not _differentiable(op):
        return [None] * len(op.inputs)
    _require_sum(op)
    dense = _dense(grads)
    with _After(op):
        sent = collectives.broadcast(_member(op), dense, op.get_attr("root"))
        return [None] + _weigh(op.inputs[0], sent)


@tf.RegisterGradient("EplBroadcast")
def _broadcast_grad(op: tf.Operation, *grads: Any) -> List[Optional[tf.Tensor]]:
    if not _differentiable(op):
        return [None] * len(op.inputs)
    dense = _dense(grads)
    with _After(op):
        return list(collectives.reduce(_member(op), dense, op.get_attr("root")))


@tf.RegisterGradient("EplAllGather")
def _all_gather_grad(op: tf.Operation, grad: Any, _: Any) -> Optional[tf.Tensor]:
    if not _differentiable(op):
        return None
    world = op.get_attr("world")
    tensor = op.inputs[0]
    grad = tf.convert_to_tensor(grad)
    with _After(op):
        if op.get_attr("equal_rows") and tensor.shape.ndims not in (0, None):
            return collectives.reduce_scatter(_member(op, world), grad)
        # The core's reduce_scatter cuts the rows evenly, but they were gathered in unequal numbers. An all_to_all moves
        # as many bytes as a reduce_scatter would, and half of what an all_reduce with a slice of it would.
        parts, _ = collectives.all_to_all(_member(op, world), grad, op.outputs[1])
        own = tf.shape(tensor)
        return tf.reduce_sum(tf.reshape(parts, tf.concat([[world], own], axis=0)), axis=0)


@tf.RegisterGradient("EplReduceScatter")
def _reduce_scatter_grad(op: tf.Operation, grad: Any) -> List[Optional[tf.Tensor]]:
    if not _differentiable(op):
        return [None, None]
    _require_sum(op)
    grad = tf.convert_to_tensor(grad)
    with _After(op):
        gathered, _ = collectives.all_gather(_member(op, op.get_attr("world")), grad)
        gathered.set_shape(op.inputs[1].shape)
        return [None] + _weigh(op.inputs[0], [gathered])


@tf.RegisterGradient("EplAllToAll")
def _all_to_all_grad(op: tf.Operation, grad: Any) -> Optional[tf.Tensor]:
    if not _differentiable(op):
        return None
    grad = tf.convert_to_tensor(grad)
    with _After(op):
        return collectives.all_to_all(_member(op, op.get_attr("world")), grad)[0]


@tf.RegisterGradient("EplAllToAllV")
def _all_to_all_v_grad(op: tf.Operation, grad: Any, _: Any) -> List[Optional[tf.Tensor]]:
    if not _differentiable(op):
        return [None, None]
    grad = tf.convert_to_tensor(grad)
    with _After(op):
        returned, _ = collectives.all_to_all(_member(op, op.get_attr("world")), grad, op.outputs[1])
        returned.set_shape(op.inputs[0].shape)
        return [returned, None]


def _dense(grads: Sequence[Any]) -> List[tf.Tensor]:
    return [tf.convert_to_tensor(grad) for grad in grads]
