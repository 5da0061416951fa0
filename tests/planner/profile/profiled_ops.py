"""Signatures of small ops, for tests of what measures them."""

import tensorflow.compat.v1 as tf

from epl.parallel.costs import backward
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.shapes import TensorType


def signature(op_type, inputs, outputs, wanted, constants=None, variables=(), **attrs):
    """An op by its types: (shape, dtype) of inputs and outputs; attributes as values that NodeDef takes."""
    node = tf.NodeDef()
    for key, value in attrs.items():
        node.attr[key].CopyFrom(value)
    parts = []
    for key in sorted(node.attr):
        one = tf.NodeDef()
        one.attr[key].CopyFrom(node.attr[key])
        parts.append(one.SerializeToString())
    return Signature(
        op_type,
        tuple(parts),
        tuple(TensorType(*one) for one in inputs),
        tuple(TensorType(*one) for one in outputs),
        tuple(constants or [None] * len(inputs)),
        tuple(wanted),
        (True,) * len(outputs),
        variables,
    )


def dtype_attr(dtype):
    return tf.AttrValue(type=dtype.as_datatype_enum)


def matmul(rows=64, inner=128, columns=64, wanted=(True, True)):
    types = [((rows, inner), tf.float32), ((inner, columns), tf.float32)]
    return signature("MatMul", types, [((rows, columns), tf.float32)], wanted, T=dtype_attr(tf.float32))


def gather(rows, indices=32):
    return signature(
        "GatherV2",
        [((rows, 16), tf.float32), ((indices,), tf.int32), ((), tf.int32)],
        [((indices, 16), tf.float32)],
        (True, False, False),
        [None, None, (0,)],
        Tparams=dtype_attr(tf.float32),
        Tindices=dtype_attr(tf.int32),
        Taxis=dtype_attr(tf.int32),
    )


def resource_gather():
    return signature(
        "ResourceGather",
        [((), tf.resource), ((32,), tf.int32)],
        [((32, 16), tf.float32)],
        (True, False),
        variables=(TensorType((100, 16), tf.float32), None),
        dtype=dtype_attr(tf.float32),
        Tindices=dtype_attr(tf.int32),
    )


def pad(paddings=None):
    return signature(
        "Pad",
        [((8, 8), tf.float32), ((2, 2), tf.int32)],
        [((10, 10), tf.float32)],
        (True, False),
        T=dtype_attr(tf.float32),
        Tpaddings=dtype_attr(tf.int32),
    )


assert backward.differentiate([matmul()])[matmul()].is_known
