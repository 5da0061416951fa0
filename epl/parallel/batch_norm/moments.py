"""Moments over the rows of a batch, as batch norms without the fused kernel take them: `tf.nn.moments`.

With `batch_norm.sync` they are computed from sums that pass two *markers*, identities in the user's graph:

    x --> n * mean, sum of (x - mean)^2 + n * mean^2, n --> marker --> mean, variance --> ...
                                             gradient <--  marker  <-- gradient

The pass of synchronise.py gives each marker the sums of all replicas in place of its own. Sums are float64, so that
the difference between the mean square and the squared mean is as exact as the values of x.
"""

import inspect
from typing import Any, Callable, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.utils import tf_compat
from epl.utils.errors import NotAvailableError

# Marks an identity of sums: FORWARD or BACKWARD.
SUMS_ATTR = "_epl_batch_norm_sums"
FORWARD, BACKWARD = b"forward", b"backward"

_GRADIENTS = {FORWARD: "EplBatchNormSums", BACKWARD: "EplBatchNormSumsGrad"}
_HALF = (tf.float16, tf.bfloat16)


def batch_moments(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Tuple[tf.Tensor, tf.Tensor]:
    """`tf.nn.moments`; with `batch_norm.sync`, moments over all dimensions but that of the channels are of all rows."""
    graph = tf.get_default_graph()
    env = Env.get()
    if not env.is_ready or not env.config.batch_norm.sync or tf_compat.is_function_graph(graph):
        return original(*args, **kwargs)
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    x = tf.convert_to_tensor(given["x"])
    axes = _axes_of_batch_norm(x, given["axes"])
    if axes is None or _is_in_loop(graph):
        return original(*args, **kwargs)
    keepdims = given.get("keep_dims") or given.get("keepdims")
    with tf.name_scope(given.get("name"), "moments", [x]):
        return _moments_of_all_rows(x, axes, bool(keepdims))


def _axes_of_batch_norm(x: tf.Tensor, axes: Any) -> Optional[List[int]]:
    """The axes, if they are all but one other than the first, or all; else None: of a layer norm, for example."""
    constant = tf.get_static_value(axes) if tf.is_tensor(axes) else axes
    if constant is None or not x.shape.ndims or not x.dtype.is_floating:
        return None
    taken = sorted({int(axis) % x.shape.ndims for axis in ([constant] if isinstance(constant, int) else constant)})
    return taken if 0 in taken and len(taken) >= x.shape.ndims - 1 else None


def _is_in_loop(graph: tf.Graph) -> bool:
    context = tf_compat.current_context(graph)
    while context is not None:
        if context.IsWhileContext():
            return True
        context = context.outer_context
    return False


def _moments_of_all_rows(x: tf.Tensor, axes: List[int], keepdims: bool) -> Tuple[tf.Tensor, tf.Tensor]:
    dtype = tf.float32 if x.dtype in _HALF else x.dtype
    y = tf.cast(x, dtype)
    rows = tf.cast(tf.reduce_prod(tf.gather(tf.shape(y), axes)), tf.float64)
    own_rows = tf.maximum(rows, 1.0)
    total = tf.reduce_sum(y, axes, keepdims=True)
    mean = tf.stop_gradient(total / tf.cast(own_rows, dtype))
    squares = tf.reduce_sum(tf.math.squared_difference(y, mean), axes, keepdims=True)
    total, squares = (tf.reshape(tf.cast(one, tf.float64), [-1]) for one in (total, squares))
    sums = _marked(tf.concat([total, squares + tf.square(total) / own_rows, [rows]], 0), FORWARD)
    rows_of_all = sums[-1]
    all_means, all_squares = tf.split(sums[:-1] / rows_of_all, 2)
    variance = tf.maximum(all_squares - tf.square(all_means), 0.0)
    shape = [1 if dim in axes else size for dim, size in enumerate(_sizes(x))]
    shape = shape if keepdims else [size for dim, size in enumerate(shape) if dim not in axes]
    mean_of_all, variance_of_all = (tf.cast(tf.reshape(one, shape), x.dtype) for one in (all_means, variance))
    return tf.identity(mean_of_all, "mean"), tf.identity(variance_of_all, "variance")


def _sizes(x: tf.Tensor) -> List[Any]:
    """The sizes of the dimensions: numbers where they are known."""
    return [tf.shape(x)[dim] if size is None else size for dim, size in enumerate(x.shape.as_list())]


def _marked(sums: tf.Tensor, which: bytes) -> tf.Tensor:
    """An identity of sums, with the attribute that tells the pass what to put in place of them."""
    with tf.get_default_graph().gradient_override_map({"Identity": _GRADIENTS[which]}):
        made = tf.identity(sums, "of_all_rows")
    tf_compat.set_attr(made.op, SUMS_ATTR, tf.AttrValue(s=which))
    return made


@tf.RegisterGradient("EplBatchNormSums")
def _sums_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    return _marked(grad, BACKWARD)


@tf.RegisterGradient("EplBatchNormSumsGrad")
def _sums_grad_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    raise NotAvailableError(
        "batch_norm.sync with gradients of gradients",
        f"{op.name!r} is the gradient of a batch norm, and is differentiated again. Leave batch_norm.sync off.",
    )
