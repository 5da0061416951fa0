"""Sums over the rows of a batch, from which batch norms take mean and variance (`batch_norm.sync`).

They pass two markers (`epl/parallel/rewriting/row_markers.py`):

    n * mean, sum of (x - mean)^2 + n * mean^2, n --> marker --> mean, variance --> ...
                                   gradient <--  marker  <-- gradient

The pass of synchronise.py gives each marker the sums of all replicas in place of its own. Sums are float64, so that
the difference between the mean square and the squared mean is as exact as the values of x.
"""

from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.parallel.rewriting.row_markers import marked
from epl.utils import tf_compat
from epl.utils.errors import NotAvailableError

FORWARD, BACKWARD = b"batch_norm", b"batch_norm_back"  # kinds of markers

_GRADIENTS = {FORWARD: "EplBatchNormSums", BACKWARD: "EplBatchNormSumsGrad"}
_HALF = (tf.float16, tf.bfloat16)


class Statistics(NamedTuple):
    """Statistics of the rows of all replicas, in float64.

    Attributes:
      mean, variance: by channel.
      rows: the number of values of a channel.
    """

    mean: tf.Tensor
    variance: tf.Tensor
    rows: tf.Tensor


def are_of_all_rows() -> bool:
    """Whether batch norms that are built now are to take statistics of all rows; not in functions and loops."""
    graph = tf.get_default_graph()
    env = Env.get()
    if not env.is_ready or not env.config.batch_norm.sync or tf_compat.is_function_graph(graph):
        return False
    return not _is_in_loop(graph)


def _is_in_loop(graph: tf.Graph) -> bool:
    context = tf_compat.current_context(graph)
    while context is not None:
        if context.IsWhileContext():
            return True
        context = context.outer_context
    return False


def statistics_dtype(x: tf.Tensor) -> Any:
    """The type in which a replica sums values: float32 for those in half precision."""
    return tf.float32 if x.dtype in _HALF else x.dtype


def rows_over(x: tf.Tensor, axes: Any) -> tf.Tensor:
    """The number of values of x in a sum over axes, in float64."""
    return tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), axes)), tf.float64)


def of_all_rows(total: tf.Tensor, squares: tf.Tensor, rows: tf.Tensor) -> Statistics:
    """Statistics of all rows.

    Args:
      total: sum of the values of each channel, on this replica.
      squares: sum of (value - mean)^2, with the mean of this replica.
      rows: their number, float64.
    """
    total, squares = (tf.reshape(tf.cast(one, tf.float64), [-1]) for one in (total, squares))
    own = tf.concat([total, squares + tf.square(total) / tf.maximum(rows, 1.0), [rows]], 0)
    sums = _marked(own, FORWARD)
    rows_of_all = sums[-1]
    means, mean_squares = tf.split(sums[:-1] / rows_of_all, 2)
    return Statistics(means, tf.maximum(mean_squares - tf.square(means), 0.0), rows_of_all)


def _marked(sums: tf.Tensor, which: bytes) -> tf.Tensor:
    return marked(sums, which, _GRADIENTS[which], "of_all_rows")


@tf.RegisterGradient("EplBatchNormSums")
def _sums_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    return _marked(grad, BACKWARD)


@tf.RegisterGradient("EplBatchNormSumsGrad")
def _sums_grad_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    raise NotAvailableError(
        "batch_norm.sync with gradients of gradients",
        f"{op.name!r} is the gradient of a batch norm, and is differentiated again. Leave batch_norm.sync off.",
    )
