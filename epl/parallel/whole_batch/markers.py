"""Markers (`epl/parallel/rewriting/row_markers.py`) of what a loss adds up or gathers over the replicas.

    sum over rows --> SUMS --> loss                      rows --> ROWS --> loss
    gradient    <-- SUMS_BACK <-- gradient           gradient <-- ROWS_BACK <-- gradient

synchronise.py puts collectives before them.
"""

import tensorflow.compat.v1 as tf

from epl.parallel.rewriting import row_markers
from epl.utils import tf_compat
from epl.utils.errors import NotAvailableError

FORWARD_ATTR = "_epl_all_rows_of"  # of a marker of the backward pass: the name of the one whose gradient it is
SUMS, SUMS_BACK, ROWS, ROWS_BACK = b"sums", b"sums_back", b"rows", b"rows_back"
FORWARD, BACKWARD = (SUMS, ROWS), (SUMS_BACK, ROWS_BACK)

_GRADIENTS = {SUMS: "EplAllRowsSums", ROWS: "EplAllRows", SUMS_BACK: "EplAllRowsBack", ROWS_BACK: "EplAllRowsBack"}


def marked(tensor: tf.Tensor, kind: bytes, forward: str = "") -> tf.Tensor:
    """A marker of a tensor; of the backward pass, with the name of the one `forward` whose gradient it is."""
    made = row_markers.marked(tensor, kind, _GRADIENTS[kind], kind.decode())
    if forward:
        tf_compat.set_attr(made.op, FORWARD_ATTR, tf.AttrValue(s=forward.encode()))
    return made


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
