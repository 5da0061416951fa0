"""Boundaries: the identities that gradients pass through, so that they can be given another source later."""

from typing import Any, Optional, Union

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.graph import Gradient, first_tensor
from epl.utils import tf_compat


def boundary(gradient: Gradient) -> Gradient:
    """The gradient behind identities: one, or one for each part of a sparse gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.dense_shape
        return tf.IndexedSlices(
            identity(gradient.values), identity(gradient.indices), None if shape is None else identity(shape)
        )
    return identity(gradient)


def identity(tensor: tf.Tensor) -> tf.Tensor:
    """An identity on the device of the tensor's op, in its TaskGraph."""
    graph = tensor.graph
    with in_taskgraph(graph, taskgraph_index(tensor.op)), graph.colocate_with(tensor.op, ignore_existing=True):
        return tf.identity(tensor, name="epl_boundary")


def source_of(bound: Gradient) -> Gradient:
    """What the identities of a boundary are taken from."""
    if isinstance(bound, tf.IndexedSlices):
        shape = bound.dense_shape
        return tf.IndexedSlices(
            bound.values.op.inputs[0], bound.indices.op.inputs[0], None if shape is None else shape.op.inputs[0]
        )
    return bound.op.inputs[0]


def times(gradient: Gradient, factor: Union[float, tf.Tensor]) -> Gradient:
    """The product of a gradient and a number, of its dtype if that is a tensor; a sparse gradient stays sparse."""
    product = first_tensor(gradient) * factor
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(product, gradient.indices, gradient.dense_shape)
    return product


def readiness(gradient: Gradient) -> int:
    """Creation number of the op that computes a gradient: backward ops are created in the order in which they run."""
    op = first_tensor(gradient).op
    while op.type == "Identity":
        op = op.inputs[0].op
    return tf_compat.op_id(op)


def variable_name(x: Any) -> Optional[str]:
    """The name of the variable op behind what was given to tf.gradients or an optimizer, or None."""
    handle = getattr(x, "handle", None)
    tensor = handle if isinstance(handle, tf.Tensor) else x
    op = getattr(tensor, "op", None)
    return op.name if op is not None and op.type in op_types.VARIABLES else None
