"""Sums of gradients that are kept between runs, in variables of which nobody else knows.

A sparse gradient stays sparse, so that an optimizer sees the rows of all micro steps and no others. Rows of one index
can be added up: then the sum takes at most the memory of the variable. Before a norm is taken they must not be, as
TensorFlow's norm of a sparse gradient is that of its rows one by one.
"""

from typing import Any, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient

Parts = Tuple[tf.Tensor, ...]  # a dense gradient, or values and indices of a sparse one
Storage = Tuple[tf.Tensor, ...]  # a handle for each part


def parts_of(gradient: Gradient) -> Parts:
    """The tensors that are kept of a gradient. (Variables of int32 cannot be on a GPU.)"""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values, tf.cast(gradient.indices, tf.int64)
    return (gradient,)


def gradient_of(parts: Parts, like: Gradient) -> Gradient:
    """The gradient that `parts` are the sum of, as the micro step's own gradient `like`."""
    if isinstance(like, tf.IndexedSlices):
        return tf.IndexedSlices(parts[0], tf.cast(parts[1], like.indices.dtype), like.dense_shape)
    return parts[0]


def mean_of(parts: Parts, count: int) -> Parts:
    """The sum divided by the number of micro steps."""
    if count == 1:
        return parts
    return (parts[0] / tf.constant(count, parts[0].dtype),) + parts[1:]


def new_storage(parts: Parts) -> Storage:
    """Variables that hold nothing yet. Without an initializer: the first micro step writes them.

    Parts of a sparse gradient have another number of rows in each run, and are kept as lists of one tensor. The
    optimizer of graphs believes that all values of a variable have the shape of one of them, and computes sizes by it.
    """
    if len(parts) == 1:
        return (new_variable(parts[0].dtype, parts[0].shape),)
    return tuple(new_variable(tf.variant, []) for _ in parts)


def new_variable(dtype: tf.DType, shape: Any) -> tf.Tensor:
    """Handle of a variable that is in no collection and has no initializer."""
    with tf.name_scope("kept") as scope:
        return tf.raw_ops.VarHandleOp(
            container="", shared_name=scope.rstrip("/"), dtype=dtype, shape=tf.TensorShape(shape), name="handle"
        )


def write(storage: Storage, parts: Parts) -> tf.Operation:
    """Keeps `parts`. The variables take over their memory, nothing is copied."""
    values = parts if len(parts) == 1 else [_listed(part) for part in parts]
    return tf.group(
        *[tf.raw_ops.AssignVariableOp(resource=handle, value=value) for handle, value in zip(storage, values)]
    )


def add(storage: Storage, parts: Parts) -> tf.Operation:
    """Adds `parts` to what is kept; a dense gradient in place."""
    if len(parts) == 1:
        return tf.raw_ops.AssignAddVariableOp(resource=storage[0], value=parts[0])
    return write(storage, total(storage, parts))


def total(storage: Storage, parts: Parts, add_rows: bool = True) -> Parts:
    """What is kept and `parts` together; nothing is written. `add_rows`: each index of a sparse gradient once."""
    if len(parts) == 1:
        return (tf.raw_ops.ReadVariableOp(resource=storage[0], dtype=parts[0].dtype) + parts[0],)
    values, indices = (tf.concat([_unlisted(handle, part), part], 0) for handle, part in zip(storage, parts))
    if not add_rows:
        return values, indices
    unique, positions = tf.unique(indices)
    return tf.unsorted_segment_sum(values, positions, tf.size(unique)), unique


def _listed(part: tf.Tensor) -> tf.Tensor:
    empty = tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=1, element_dtype=part.dtype)
    return tf.raw_ops.TensorListPushBack(input_handle=empty, tensor=part)


def _unlisted(handle: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    kept = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.variant)
    part = tf.raw_ops.TensorListGetItem(input_handle=kept, index=0, element_shape=-1, element_dtype=like.dtype)
    if like.shape.ndims is not None:
        part.set_shape([None] + like.shape.as_list()[1:])
    return part
