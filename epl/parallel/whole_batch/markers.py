"""Markers in the user's graph where a replica is to take values of all replicas: identities, forward and backward.

    sum over rows --> SUMS --> loss                      rows --> ROWS --> loss
    gradient    <-- SUMS_BACK <-- gradient           gradient <-- ROWS_BACK <-- gradient

synchronise.py puts collectives in place of what they take. A graph that is not rewritten has one replica, whose rows
are all rows: there a marker is what it looks like.
"""

from typing import List

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.utils import tf_compat
from epl.utils.errors import NotAvailableError

KIND_ATTR = "_epl_all_rows"
FORWARD_ATTR = "_epl_all_rows_of"  # of a marker of the backward pass: the name of the one whose gradient it is
SUMS, SUMS_BACK, ROWS, ROWS_BACK = b"sums", b"sums_back", b"rows", b"rows_back"
FORWARD, BACKWARD = (SUMS, ROWS), (SUMS_BACK, ROWS_BACK)

_GRADIENTS = {SUMS: "EplAllRowsSums", ROWS: "EplAllRows", SUMS_BACK: "EplAllRowsBack", ROWS_BACK: "EplAllRowsBack"}


def marked(tensor: tf.Tensor, kind: bytes, forward: str = "") -> tf.Tensor:
    """An identity of a tensor, with the attributes that tell the pass what to put in place of it."""
    with tf.get_default_graph().gradient_override_map({"Identity": _GRADIENTS[kind]}):
        made = tf.identity(tensor, kind.decode())
    tf_compat.set_attr(made.op, KIND_ATTR, tf.AttrValue(s=kind))
    if forward:
        tf_compat.set_attr(made.op, FORWARD_ATTR, tf.AttrValue(s=forward.encode()))
    return made


def find_markers(view: GraphView, *kinds: bytes) -> List[int]:
    """The markers of some kinds."""
    found = view.of_attrs(lambda attrs: attrs[KIND_ATTR].s if KIND_ATTR in attrs else b"")
    return [node for node, kind in enumerate(found) if kind in kinds and view.types[node] == "Identity"]


@tf.RegisterGradient("EplAllRowsSums")
def _sums_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    return marked(tf.convert_to_tensor(grad), SUMS_BACK, op.name)


@tf.RegisterGradient("EplAllRows")
def _rows_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    back = marked(tf.convert_to_tensor(grad), ROWS_BACK, op.name)
    back.set_shape(op.inputs[0].shape)
    return back


@tf.RegisterGradient("EplAllRowsBack")
def _grad_of_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    raise NotAvailableError(
        'replicate.batch "all" with gradients of gradients',
        f'{op.name!r} is a gradient, and is differentiated again. Set replicate.batch to "each".',
    )
