"""Layers of a Transformer in plain TensorFlow, for the models of several figures."""

from typing import Any, Callable, Dict

import numpy as np
import tensorflow.compat.v1 as tf


def embedded(ids: tf.Tensor, words: int, width: int) -> tf.Tensor:
    """Vectors of words and positions; [rows, words of a row, width]."""
    length = int(ids.shape[1])
    x = tf.nn.embedding_lookup(tf.get_variable("words", [words, width]), ids)
    with tf.variable_scope("embedding"):
        return normalized(x + tf.get_variable("positions", [length, width]))


def layer(x: tf.Tensor, heads: int) -> tf.Tensor:
    """Attention, and a feed-forward network of four times the width; shaped as `x`, [rows, words of a row, width]."""
    width = int(x.shape[-1])
    x = attention(x, heads)
    hidden = tf.layers.dense(x, 4 * width, name="inner")
    hidden = 0.5 * hidden * (1.0 + tf.math.erf(hidden / 2.0**0.5))
    with tf.variable_scope("output"):
        return normalized(x + tf.layers.dense(hidden, width, name="outer"))


def attention(x: tf.Tensor, heads: int) -> tf.Tensor:
    """Attention with its residual; shaped as `x`."""
    length, width = int(x.shape[1]), int(x.shape[2])

    def by_heads(name: str) -> tf.Tensor:
        y = tf.reshape(tf.layers.dense(x, width, name=name), [-1, length, heads, width // heads])
        return tf.transpose(y, [0, 2, 1, 3])

    query, key, value = [by_heads(name) for name in ("query", "key", "value")]
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / (width / heads) ** 0.5)
    context = tf.reshape(tf.transpose(tf.matmul(scores, value), [0, 2, 1, 3]), [-1, length, width])
    with tf.variable_scope("attention"):
        return normalized(x + tf.layers.dense(context, width, name="result"))


def normalized(x: tf.Tensor) -> tf.Tensor:
    """Layer norm."""
    width = int(x.shape[-1])
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    scale = tf.get_variable("scale", [width], initializer=tf.ones_initializer())
    offset = tf.get_variable("offset", [width], initializer=tf.zeros_initializer())
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-12)


def word_loss(x: tf.Tensor, labels: tf.Tensor, words: int) -> tf.Tensor:
    """The mean cross entropy of words.

    Args:
      x: [rows, predicted words, width].
      labels: [rows, predicted words].
      words: of the vocabulary.
    """
    logits = tf.layers.dense(tf.reshape(x, [-1, int(x.shape[-1])]), words, name="head")
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=logits)
    return tf.reduce_mean(each)


def train(loss: tf.Tensor, feed: Callable[[], Dict[str, Any]], steps: int = 3) -> None:
    """Trains with Adam, and prints the losses; `feed`: makes the arrays of a step."""
    train_op = tf.train.AdamOptimizer(1e-4).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            print(session.run([loss, train_op], feed())[0])


def random_words(words: int, rows: int, length: int) -> np.ndarray:
    """Random ids of words, [rows, length]."""
    return np.random.randint(0, words, [rows, length])
