"""Models whose steps on one device are timed, and what times them, in a process of its own: one thread, CPU time.

python -m tests.planner.timed_models "bert, 4 layers"      prints the seconds of a step
"""

import statistics
import sys
import time
from typing import Callable, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from tests.planner import known_models

_SECONDS = 2.0  # for which a model is timed at least
_FEWEST_STEPS = 5
_BOUND = 1000  # of whole numbers that are fed: classes, words


class TimedModel(NamedTuple):
    """A model.

    Attributes:
      name: with its size.
      build: returns the loss.
      profiled: builds the model that is profiled in its place, of another depth or length; None: itself.
    """

    name: str
    build: Callable[[], tf.Tensor]
    profiled: Optional[Callable[[], tf.Tensor]] = None


def mlp(rows: int, width: int, layers: int) -> tf.Tensor:
    """Dense layers of one width."""
    x = tf.placeholder(tf.float32, [rows, width])
    for _ in range(layers):
        x = tf.layers.dense(x, width, tf.nn.relu)
    return _classified(x)


def convolutions(rows: int, size: int, width: int, layers: int) -> tf.Tensor:
    """Convolutions of 3 x 3 with batch norm, all of one width."""
    x = tf.layers.conv2d(tf.placeholder(tf.float32, [rows, size, size, 3]), width, 3, padding="same")
    for _ in range(layers):
        x = tf.nn.relu(tf.layers.batch_normalization(tf.layers.conv2d(x, width, 3, padding="same"), training=True))
    return _classified(tf.reduce_mean(x, [1, 2]))


def vgg(rows: int, size: int) -> tf.Tensor:
    """Simonyan and Zisserman 2014, four of its blocks: convolutions with bias, max pools, dense layers."""
    x = tf.placeholder(tf.float32, [rows, size, size, 3])
    for width in (32, 64, 128, 256):
        for _ in range(2):
            x = tf.layers.conv2d(x, width, 3, padding="same", activation=tf.nn.relu)
        x = tf.layers.max_pooling2d(x, 2, 2)
    return _classified(tf.layers.dense(tf.layers.flatten(x), 512, tf.nn.relu))


def mixture(tokens: int, width: int, experts: int, layers: int) -> tf.Tensor:
    """Layers of experts, of which each token goes to one (Fedus et al. 2021), by products with one-hot tensors."""
    capacity = 2 * tokens // experts
    x = tf.placeholder(tf.float32, [tokens, width])
    for layer in range(layers):
        gates = tf.nn.softmax(tf.layers.dense(x, experts))
        chosen = tf.one_hot(tf.argmax(gates, -1), experts)
        places = tf.cast(tf.reduce_sum((tf.cumsum(chosen, 0) - 1.0) * chosen, -1), tf.int32)
        dispatch = tf.expand_dims(chosen, -1) * tf.expand_dims(tf.one_hot(places, capacity), 1)
        dispatch = tf.reshape(dispatch, [tokens, experts * capacity])
        hidden = tf.reshape(tf.matmul(dispatch, x, transpose_a=True), [experts, capacity, width])
        for number, shape in enumerate(([experts, width, 4 * width], [experts, 4 * width, width])):
            hidden = tf.matmul(hidden, tf.get_variable(f"experts{layer}_{number}", shape))
            hidden = hidden if number else tf.nn.relu(hidden)
        mixed = tf.matmul(dispatch, tf.reshape(hidden, [experts * capacity, width]))
        x = x + mixed * tf.reduce_max(gates, -1, keepdims=True)
    return _classified(x)


def lstm(steps: int) -> tf.Tensor:
    """The recurrent layer of `known_models`, 32 rows of width 256."""
    return known_models.lstm(32, steps, 256)[0]


def bert(layers: int, width: int, rows: int, length: int) -> tf.Tensor:
    """The BERT of `known_models`, with heads of 64."""
    return known_models.bert(layers, width, width // 64, rows, length)[0]


def _classified(logits: tf.Tensor) -> tf.Tensor:
    labels = tf.placeholder(tf.int32, [int(logits.shape[0])])
    logits = tf.layers.dense(logits, _BOUND)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


MODELS = (
    TimedModel("mlp, 4 layers of 512", lambda: mlp(64, 512, 4)),
    TimedModel("mlp, 8 layers of 1024", lambda: mlp(128, 1024, 8), lambda: mlp(128, 1024, 2)),
    TimedModel("convolutions, 6 layers", lambda: convolutions(16, 32, 64, 6), lambda: convolutions(16, 32, 64, 2)),
    TimedModel("vgg, 64 px", lambda: vgg(8, 64)),
    TimedModel("resnet-50, 64 px", lambda: known_models.resnet50(4, 64)[0]),
    TimedModel("bert, 2 layers of 256", lambda: bert(2, 256, 4, 64)),
    TimedModel("bert, 6 layers of 256", lambda: bert(6, 256, 4, 64), lambda: bert(2, 256, 4, 64)),
    TimedModel("bert, 4 layers of 128", lambda: bert(4, 128, 4, 128), lambda: bert(1, 128, 4, 128)),
    TimedModel("lstm, 16 steps", lambda: lstm(16)),
    TimedModel("lstm, 32 steps", lambda: lstm(32), lambda: lstm(16)),
    TimedModel("experts, 1 layer", lambda: mixture(256, 256, 4, 1)),
    TimedModel("experts, 4 layers", lambda: mixture(128, 256, 8, 4), lambda: mixture(128, 256, 8, 1)),
)  # fmt: skip


def step_seconds(model: TimedModel) -> float:
    """CPU time of a step of one thread: forward, backward, update; the median."""
    train = tf.train.MomentumOptimizer(1e-4, 0.9).minimize(model.build())
    fed: List[tf.Tensor] = [op.outputs[0] for op in tf.get_default_graph().get_operations() if op.type == "Placeholder"]
    random = np.random.RandomState(0)
    values = [
        random.uniform(-1, 1, one.shape) if one.dtype.is_floating else random.randint(_BOUND, size=one.shape)
        for one in fed
    ]
    values = [value.astype(one.dtype.as_numpy_dtype) for one, value in zip(fed, values)]
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        step = session.make_callable(train, fed)
        step(*values)
        step(*values)
        found: List[float] = []
        while len(found) < _FEWEST_STEPS or sum(found) < _SECONDS:
            begin = time.process_time()
            step(*values)
            found.append(time.process_time() - begin)
    return statistics.median(found)


if __name__ == "__main__":
    print(step_seconds(next(one for one in MODELS if one.name == sys.argv[1])))
