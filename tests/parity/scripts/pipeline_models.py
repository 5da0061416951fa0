"""Models of four blocks that are dealt out to the stages of a pipeline, each a function from its inputs to the blocks.

A block takes what the one before it returned; the last one returns the loss. The number of stages changes no number,
so that one reference serves all of them.
"""

import contextlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.scripts.data import CLASSES, FEATURES, TOKENS, VOCABULARY
from tests.parity.scripts.models import cross_entropy, dense, initializer, weights

WIDTH = 8


# What is fed, and the scope of what is split in a stage.
class Inputs(NamedTuple):
    x: tf.Tensor
    ids: tf.Tensor
    y: tf.Tensor
    split: Callable[[], Any]


Inputs.__new__.__defaults__ = (contextlib.suppress,)
Block = Callable[[Any], Any]

MODELS: Dict[str, Callable[[Inputs], List[Block]]] = {}
# Variables that each replica has its own values of.
STATISTICS = "moving_"


def model(function: Callable[[Inputs], List[Block]]) -> Callable[[Inputs], List[Block]]:
    """Puts a model in the table under its name."""
    MODELS[function.__name__] = function
    return function


def placeholders(rows: Optional[int] = None, dtype: str = "float32") -> Inputs:
    """The inputs of a model of any number of rows, or of that many; `dtype` is that of real numbers."""
    return Inputs(
        tf.placeholder(dtype, [rows, FEATURES], "x"),
        tf.placeholder(tf.int32, [rows, TOKENS], "ids"),
        tf.placeholder(tf.int32, [rows], "y"),
    )


def build(name: str, inputs: Inputs, stages: int = 1, scope: Callable[[], Any] = contextlib.suppress) -> tf.Tensor:
    """Returns the loss of a model whose blocks are dealt out to the stages, the ops of each in a scope of its own."""
    hidden = None
    for blocks in np.array_split(MODELS[name](inputs), stages):
        with scope():
            for block in blocks:
                hidden = block(hidden)
    return hidden


@model
def mlp(inputs: Inputs) -> List[Block]:
    """Dense layers; the labels go to the last stage alone."""
    return [
        lambda _: dense(inputs.x, WIDTH, "first", tf.nn.tanh),
        lambda hidden: dense(hidden, WIDTH, "second", tf.nn.tanh),
        lambda hidden: dense(hidden, WIDTH, "third", tf.nn.tanh),
        lambda hidden: cross_entropy(inputs.y, dense(hidden, CLASSES, "out")),
    ]


@model
def cnn(inputs: Inputs) -> List[Block]:
    """Convolutions with batch normalisation in every block but the last, half of them fused."""

    def convolution(name: str, fused: bool) -> Block:
        def block(maps: tf.Tensor) -> tf.Tensor:
            # No bias: normalisation takes it away, and its gradient would be rounding alone.
            maps = tf.layers.conv2d(
                maps, 4, 2, padding="same", use_bias=False, name=name, kernel_initializer=initializer()
            )
            is_fused = fused and maps.dtype == tf.float32
            return tf.nn.relu(
                tf.layers.batch_normalization(maps, training=True, momentum=0.8, fused=is_fused, name=name + "_norm")
            )

        return block

    first, second, third = convolution("first", True), convolution("second", False), convolution("third", True)
    return [
        # Means away from zero: those near it are rounding.
        lambda _: first(1.0 + tf.reshape(inputs.x, [-1, 3, FEATURES // 3, 1])),
        second,
        third,
        lambda maps: cross_entropy(inputs.y, dense(tf.layers.flatten(maps), CLASSES, "out")),
    ]


@model
def contrast(inputs: Inputs) -> List[Block]:
    """Rows against all rows, a masked mean, and a layer that is centered over the batch."""

    def loss(hidden: tf.Tensor) -> tf.Tensor:
        logits, mask = dense(hidden, CLASSES, "out"), tf.cast(inputs.y > 1, hidden.dtype)
        of_each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs.y, logits=logits)
        scores = tf.exp(tf.matmul(hidden, hidden, transpose_b=True) / 4)
        masked = tf.reduce_sum(mask * of_each) / tf.reduce_sum(mask)
        return masked + tf.reduce_mean(tf.math.log(tf.reduce_mean(scores, 1)))

    def centered(hidden: tf.Tensor) -> tf.Tensor:
        return dense(hidden - tf.reduce_mean(hidden, 0), WIDTH, "second", tf.nn.tanh)

    return [
        lambda _: dense(inputs.x, WIDTH, "first", tf.nn.tanh),
        centered,
        lambda hidden: dense(hidden, WIDTH, "third", tf.nn.tanh),
        loss,
    ]


@model
def lstm(inputs: Inputs) -> List[Block]:
    """Two layers of tf.nn.dynamic_rnn: a while loop in the forward and the backward pass of their stages."""

    def recurrent(name: str) -> Block:
        cell = tf.nn.rnn_cell.LSTMCell(6, initializer=initializer(), name=name)
        return lambda steps: tf.nn.dynamic_rnn(cell, steps, dtype=tf.float32, scope=name)[0]

    return [
        lambda _: dense(tf.reshape(inputs.x, [-1, 4, FEATURES // 4]), WIDTH, "project", tf.nn.tanh),
        recurrent("lower"),
        recurrent("upper"),
        lambda steps: cross_entropy(inputs.y, dense(steps[:, -1], CLASSES, "out")),
    ]


@model
def keras_recurrent(inputs: Inputs) -> List[Block]:
    """Recurrent layers of Keras: variables are read in their loops, and once before, for a shape."""

    def layer(cell: Any, name: str, **arguments: Any) -> Block:
        return cell(6, kernel_initializer=initializer(), recurrent_initializer=initializer(4), name=name, **arguments)

    return [
        lambda _: dense(tf.reshape(inputs.x, [-1, 4, FEATURES // 4]), WIDTH, "project", tf.nn.tanh),
        layer(tf.keras.layers.GRU, "gru", return_sequences=True),
        layer(tf.keras.layers.LSTM, "lstm"),
        lambda state: cross_entropy(inputs.y, dense(state, CLASSES, "out")),
    ]


@model
def encoder(inputs: Inputs) -> List[Block]:
    """A small BERT: the matrix of token embeddings of the first block makes the logits of the last one."""
    table = weights("table", [VOCABULARY, WIDTH])

    def embed(_: None) -> tuple:
        places = weights("places", [TOKENS, WIDTH])
        mask = tf.cast(tf.equal(inputs.ids, 0), tf.float32)[:, None, :] * -1e4
        return _normalized(tf.nn.embedding_lookup(table, inputs.ids) + places, "embed"), mask

    def attend(state: tuple) -> tf.Tensor:
        return _attention(state[0], state[1])

    def feed_forward(hidden: tf.Tensor) -> tf.Tensor:
        return _normalized(hidden + dense(dense(hidden, 2 * WIDTH, "inner", tf.nn.tanh), WIDTH, "outer"), "layer")

    def predict(hidden: tf.Tensor) -> tf.Tensor:
        hidden = _normalized(dense(hidden, WIDTH, "transform", tf.nn.tanh), "predict")
        logits = tf.matmul(tf.reshape(hidden, [-1, WIDTH]), table, transpose_b=True)
        return cross_entropy(tf.reshape(tf.reverse(inputs.ids, [1]), [-1]), logits)

    return [embed, attend, feed_forward, predict]


@model
def embedding(inputs: Inputs) -> List[Block]:
    """An embedding whose gradient is sparse in the first block, dense layers after it."""
    return [
        lambda _: tf.reduce_sum(tf.nn.embedding_lookup(weights("table", [VOCABULARY, WIDTH]), inputs.ids), 1),
        lambda hidden: dense(hidden, WIDTH, "second", tf.nn.tanh),
        lambda hidden: dense(hidden, WIDTH, "third", tf.nn.tanh),
        lambda hidden: cross_entropy(inputs.y, dense(hidden, CLASSES, "out")),
    ]


def _attention(hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Attention with one head."""
    query, value = dense(hidden, WIDTH, "query"), dense(hidden, WIDTH, "value")
    # A bias of the keys changes nothing: its gradient is rounding alone.
    key = tf.layers.dense(hidden, WIDTH, use_bias=False, name="key", kernel_initializer=initializer())
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / WIDTH**0.5 + mask)
    return _normalized(hidden + dense(tf.matmul(scores, value), WIDTH, "output"), "attention")


def _normalized(values: tf.Tensor, name: str) -> tf.Tensor:
    """Layer normalisation."""
    with tf.variable_scope(name):
        gain = tf.get_variable("gain", [WIDTH], initializer=tf.ones_initializer())
        offset = tf.get_variable("offset", [WIDTH], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(values, [-1], keepdims=True)
    return tf.nn.batch_normalization(values, mean, variance, offset, gain, 1e-6)
