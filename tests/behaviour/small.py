"""The small model that the scripts of the behaviour tests train, when what they look at is not the model."""

from typing import Any, Dict, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense


class Small:
    """A two-layer classifier on placeholders, and its training op, computed in `dtype`.

    In float32 the last bits of slots depend on the order in which replicas are added.

    Attributes:
        x, y: placeholders whose first dimension is unknown.
        logits, loss, train_op: what the names say.
    """

    def __init__(self, rate: float = 0.1, prefix: str = "", dtype: tf.DType = tf.float32) -> None:
        self.data = samples()
        self.x = tf.placeholder(tf.float32, [None, FEATURES], prefix + "x")
        self.y = tf.placeholder(tf.int32, [None], prefix + "y")
        self.hidden = dense(tf.cast(self.x, dtype), 8, prefix + "hidden", tf.nn.tanh)
        self.logits = dense(self.hidden, CLASSES, prefix + "out")
        self.loss = cross_entropy(self.y, self.logits)
        self.train_op = tf.train.MomentumOptimizer(rate, 0.9).minimize(self.loss)

    def feed(self, ctx: Context, step: int = 0) -> Dict[tf.Tensor, np.ndarray]:
        """Returns the feed of this process."""
        return {self.x: ctx.step_rows(self.data.x, step), self.y: ctx.step_rows(self.data.y, step)}


def batches_of(sizes: Sequence[int]) -> tf.data.Dataset:
    """Returns the samples in their order, as batches of so many rows."""
    data = samples()
    ends = [0, *np.cumsum(sizes)]
    batches = [(data.x[a:b], data.y[a:b]) for a, b in zip(ends, ends[1:])]
    return tf.data.Dataset.from_generator(lambda: iter(batches), (tf.float32, tf.int32), ([None, FEATURES], [None]))


def error_of(call: Any, *arguments: Any, **keywords: Any) -> str:
    """Returns "Type: message" of the error that the call raises, or "no error"."""
    try:
        call(*arguments, **keywords)
    except Exception as error:  # pylint: disable=broad-except; which one it is, is the test's question
        kinds = ",".join(kind.__name__ for kind in type(error).__mro__)
        return "%s: %s" % (kinds, error)
    return "no error"
