"""Splits in mixed precision, and the same on one device that divides rows, columns and sums as two ranks do.

The rounding of float16 depends on how a product is divided. What ranks exchange is float32, and so are their sums.
"""

import contextlib
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import OPTIMIZERS
from tests.parity.scripts.splits import Scope, annotations, minimize

WIDE = 1003  # columns, which two ranks hold 502 and 501 of
RANKS = 2


def _variable(name: str, shape: Sequence[int]) -> tf.Variable:
    return tf.get_variable(name, shape, initializer=tf.random_normal_initializer(stddev=0.1, seed=3))


def _sent(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor for one of several ranks: their gradients are added in float32."""
    return tf.cast(tf.cast(tensor, tf.float64), tf.float32)


def _squares(logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Mean of the squares of what is missing to the targets: of sums, only the loss itself depends on their order."""
    return tf.reduce_mean(tf.square(y - logits))


def _by_columns(inputs: tf.Tensor, kernel: tf.Variable, parts: int) -> List[tf.Tensor]:
    """The product with each rank's columns."""
    if parts == 1:
        return [tf.matmul(inputs, kernel)]
    return [tf.matmul(_sent(inputs), columns) for columns in tf.split(kernel, _sizes(kernel.shape[1].value), 1)]


def _sizes(size: int) -> List[int]:
    return [(size + 1) // RANKS, size // RANKS]


def _added(products: List[tf.Tensor]) -> tf.Tensor:
    if len(products) == 1:
        return products[0]
    return tf.cast(tf.add_n([tf.cast(product, tf.float64) for product in products]), tf.float32)


def _features(x: tf.Tensor, replicate: Scope, parts: int) -> tf.Tensor:
    """A layer that each rank computes for rows of its own."""
    with replicate():
        kernel, bias = _variable("features/kernel", [FEATURES, 16]), _variable("features/bias", [16])
        pieces = tf.split(x, parts) if parts > 1 else [x]
        found = [tf.nn.tanh(tf.matmul(piece, kernel) + bias) for piece in pieces]
        return tf.concat(found, 0) if parts > 1 else found[0]


def head(x: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope, parts: int) -> tf.Tensor:
    """Replicated features, a wide classification head."""
    features = _features(x, replicate, parts)
    return head_alone(features, y, replicate, split, parts)


def head_alone(x: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope, parts: int) -> tf.Tensor:
    """A wide classification head of the inputs themselves."""
    with split():
        kernel, bias = _variable("head/kernel", [x.shape[1].value, WIDE]), _variable("head/bias", [WIDE])
        products = _by_columns(x, kernel, parts)
        return _squares((tf.concat(products, 1) if parts > 1 else products[0]) + bias, y)


def two_layers(x: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope, parts: int) -> tf.Tensor:
    """Columns of a first layer, rows of a second: what lies between is in half precision, the sum is not."""
    features = _features(x, replicate, parts)
    with split():
        first, second = _variable("first", [16, 512]), _variable("second", [512, CLASSES])
        hidden = [tf.nn.relu(product) for product in _by_columns(features, first, parts)]
        rows = tf.split(second, parts) if parts > 1 else [second]
        return _squares(_added([tf.matmul(part, row) for part, row in zip(hidden, rows)]), y[:, :CLASSES])


MODELS: Dict[str, Callable[..., tf.Tensor]] = {
    "head": head, "head_alone": head_alone, "two_layers": two_layers,
}  # fmt: skip


def train(
    ctx: Context,
    name: str,
    parts: int = 1,
    optimizer: str = "momentum",
    clip: Optional[float] = None,
    overflow_at: int = -1,
    groups: int = 1,
    ratios: Sequence[float] = (),
    **config: Any,
) -> None:
    """Trains a model in mixed precision.

    Args:
        ctx: the run.
        name: of the model.
        parts: ranks that the reference stands for; 1 under the plan.
        optimizer: its name.
        clip: the norm to which gradients are clipped.
        overflow_at: the run in which the gradient of the last columns overflows, that of the others does not.
        groups: of ranks that share a split; with several, it overflows in the last process alone.
        ratios: of the parts; if one rank has all, the reference divides no product.
        config: further configuration.
    """
    ctx.init(annotate=parts > 1, amp__level="O1", cluster__colocate_split_and_replicate=True, **config)
    x, y = tf.placeholder(tf.float32, [None, FEATURES]), tf.placeholder(tf.float32, [None, WIDE])
    scopes = (contextlib.suppress, contextlib.suppress) if parts > 1 else annotations(ctx, groups, ratios)
    loss = MODELS[name](x, y, *scopes, 1 if 0 in ratios else parts)
    train_op = minimize(OPTIMIZERS[optimizer](), loss, clip)
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for run in range(STEPS):
            overflows = run == overflow_at
            here = overflows and (groups == 1 or ctx.worker == ctx.workers - 1)
            feed = {x: ctx.step_rows(data.x, run), y: _targets(ctx.step_rows(data.ids, run), here)}
            value = sess.run([loss, train_op], feed)[0]
            ctx.record(loss=0.0 if overflows else value)
        ctx.results["variables"] = [sess.run({v.name.partition(":")[0]: v for v in tf.global_variables()})]


def _targets(ids: np.ndarray, overflow: bool) -> np.ndarray:
    """Of all columns of each row; with those of the last one the gradient overflows there, and nowhere else."""
    targets = np.zeros([len(ids), WIDE], np.float32)
    if overflow:
        targets[:, -1] = 1e6
    else:
        targets[range(len(ids)), (ids[:, 0] * 97 + ids[:, 1] * 31 + ids[:, 2]) % WIDE] = 1.0
    return targets
