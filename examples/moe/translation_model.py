"""An encoder and a decoder after T5, in which some feed-forward networks are mixtures of experts.

Owns the network (Raffel et al., 2020, "Exploring the Limits of Transfer Learning", section 2.1: norms before each block
and without offset, layers without bias, learnt biases of relative positions, one table for source, target and scores)
and its loss. Written as for one device: where the experts lie is the caller's, who gives a scope for them.
"""

import math
from typing import Any, List, NamedTuple, Optional, Tuple

import mixture
import numpy as np
import tensorflow.compat.v1 as tf

PAD, START = 0, 0  # ids: what fills a sequence up; what stands before the first piece of a translation

_BUCKETS, _FARTHEST = 32, 128  # of relative positions; from there on all distances are one
_MASKED = -1e9  # added to the score of a position that must not be attended to
_NORM_EPSILON = 1e-6


class Sizes(NamedTuple):
    """Sizes of a model.

    Attributes:
      vocabulary: pieces.
      width: of what flows between the layers.
      heads: of attention; each of width / heads.
      hidden: units of a feed-forward network, also of each expert.
      layers: of the encoder, and as many of the decoder.
      experts: networks of a mixture.
      every: each so many-th layer has a mixture; 0: none.
      gate, capacity_factor: of the mixtures, see there.
      dropout: share of what is dropped in training.
    """

    vocabulary: int
    width: int = 512
    heads: int = 8
    hidden: int = 2048
    layers: int = 6
    experts: int = 8
    every: int = 2
    gate: str = "top2"
    capacity_factor: float = 1.25
    dropout: float = 0.1


def loss(
    sizes: Sizes, source: tf.Tensor, target: tf.Tensor, scope: Any = None, balance: float = 0.01
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns what training makes small, and the mean cross entropy of the pieces of the translations in it.

    Args:
      sizes: of the model.
      source: [batch, length], ids, the end filled up with PAD; the length is known.
      target: [batch, length], the translation, likewise.
      scope: context manager in which experts are made.
      balance: weight of the balance of the mixtures.
    """
    present = _present(target)
    previous = tf.pad(target[:, :-1], [[0, 0], [1, 0]], constant_values=START)
    scores, balances = logits(sizes, source, previous, present, scope)
    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=scores)
    entropy = tf.reduce_sum(errors * present) / tf.reduce_sum(present)
    return entropy + balance * tf.add_n(balances) if balances else entropy, entropy


def logits(
    sizes: Sizes, source: tf.Tensor, previous: tf.Tensor, present: tf.Tensor, scope: Any = None
) -> Tuple[tf.Tensor, List[tf.Tensor]]:
    """Returns the scores of each piece, [batch, length, vocabulary], and the balance of each mixture.

    Args:
      sizes: of the model.
      source: as for `loss`.
      previous: [batch, length], the piece before each place of the translation.
      present: [batch, length], 1 at the places that count.
      scope: context manager in which experts are made.
    """
    if sizes.width % sizes.heads:
        message = "width {} cannot be divided into {} heads; choose a multiple."
        raise ValueError(message.format(sizes.width, sizes.heads))
    table = tf.get_variable("pieces", [sizes.vocabulary, sizes.width], initializer=tf.random_normal_initializer())
    stack = _Stack(sizes, scope)
    known = _present(source)
    with tf.variable_scope("encoder"):
        hidden = stack.run(tf.nn.embedding_lookup(table, source), known, _hiding(known), None)
    with tf.variable_scope("decoder"):
        hidden = stack.run(tf.nn.embedding_lookup(table, previous), present, None, (hidden, _hiding(known)))
    flat = tf.reshape(hidden, [-1, sizes.width]) * sizes.width**-0.5
    scores = tf.matmul(flat, table, transpose_b=True)
    return tf.reshape(scores, [-1, previous.shape[1].value, sizes.vocabulary]), stack.balances


class _Stack:
    """The layers of encoder and decoder.

    Attributes:
      balances: of the mixtures that were built.
    """

    def __init__(self, sizes: Sizes, scope: Any) -> None:
        self._sizes = sizes
        self._scope = scope
        self.balances: List[tf.Tensor] = []

    def run(self, x: tf.Tensor, present: tf.Tensor, hidden: Any, memory: Optional[Tuple]) -> tf.Tensor:
        """All layers; with a `memory`, what is attended to and what of it is hidden, those of the decoder."""
        bias = _relative(x.shape[1].value, self._sizes.heads, memory is not None)
        bias = bias if hidden is None else bias + hidden
        x = self._dropped(x)
        for number in range(self._sizes.layers):
            with tf.variable_scope(f"layer_{number}"):
                x += self._dropped(self._attention("self", _norm(x, "self_norm"), None, bias))
                if memory is not None:
                    x += self._dropped(self._attention("memory", _norm(x, "memory_norm"), *memory))
                x += self._dropped(self._feed_forward(_norm(x, "norm"), present, number))
        return self._dropped(_norm(x, "norm"))

    def _attention(self, name: str, x: tf.Tensor, memory: Optional[tf.Tensor], bias: tf.Tensor) -> tf.Tensor:
        heads, size = self._sizes.heads, self._sizes.width // self._sizes.heads

        def to_heads(part: str, given: tf.Tensor) -> tf.Tensor:
            projected = tf.reshape(_dense(given, heads * size, part), [-1, given.shape[1].value, heads, size])
            return tf.transpose(projected, [0, 2, 1, 3])

        with tf.variable_scope(name):
            memory = x if memory is None else memory
            query, key, value = to_heads("query", x), to_heads("key", memory), to_heads("value", memory)
            weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / math.sqrt(size) + bias)
            found = tf.transpose(tf.matmul(self._dropped(weights), value), [0, 2, 1, 3])
            return _dense(tf.reshape(found, [-1, x.shape[1].value, heads * size]), self._sizes.width, "joined")

    def _feed_forward(self, x: tf.Tensor, present: tf.Tensor, number: int) -> tf.Tensor:
        sizes = self._sizes
        if not sizes.every or (number + 1) % sizes.every:
            return _dense(self._dropped(tf.nn.relu(_dense(x, sizes.hidden, "inner"))), sizes.width, "outer")
        with tf.variable_scope("mixture"):
            y, balance = mixture.layer(
                x, present, sizes.experts, sizes.hidden, sizes.gate, sizes.capacity_factor, self._scope
            )
        self.balances.append(balance)
        return y

    def _dropped(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.dropout(x, rate=self._sizes.dropout) if self._sizes.dropout else x


def _present(ids: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.not_equal(ids, PAD), tf.get_variable_scope().dtype)


def _hiding(present: tf.Tensor) -> tf.Tensor:
    """Added to scores: hides what is not present, [batch, 1, 1, length]."""
    return (1.0 - present[:, tf.newaxis, tf.newaxis, :]) * _MASKED


def _relative(length: int, heads: int, causal: bool) -> tf.Tensor:
    """What a head adds to the score of a position by its distance, [1, heads, length, length]."""
    table = tf.get_variable("distances", [_BUCKETS, heads], initializer=tf.random_normal_initializer(stddev=0.1))
    distance = np.arange(length)[np.newaxis, :] - np.arange(length)[:, np.newaxis]
    bias = tf.transpose(tf.nn.embedding_lookup(table, bucket(distance, causal)), [2, 0, 1])[tf.newaxis]
    return bias + (distance > 0).astype(np.float32) * _MASKED if causal else bias


def bucket(distance: np.ndarray, causal: bool) -> np.ndarray:
    """The bucket of each distance: half of them for one distance each, the others for ranges that grow.

    Args:
      distance: from the position that looks to the one that is looked at.
      causal: only what lies behind is looked at; else half of the buckets are for what lies ahead.
    """
    buckets, first = (_BUCKETS, 0) if causal else (_BUCKETS // 2, (distance > 0) * (_BUCKETS // 2))
    far = np.maximum(-distance, 0) if causal else np.abs(distance)
    single = buckets // 2
    growing = np.log(np.maximum(far, 1) / single) / math.log(_FARTHEST / single) * (buckets - single)
    ranges = np.minimum(single + np.maximum(growing, 0).astype(np.int32), buckets - 1)
    return first + np.where(far < single, far, ranges)


def _norm(x: tf.Tensor, name: str) -> tf.Tensor:
    """Scaled to a mean square of 1 (Zhang and Sennrich, 2019)."""
    with tf.variable_scope(name):
        scale = tf.get_variable("scale", [x.shape[-1].value], initializer=tf.ones_initializer())
    return x * tf.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + _NORM_EPSILON) * scale


def _dense(x: tf.Tensor, units: int, name: str) -> tf.Tensor:
    initial = tf.truncated_normal_initializer(stddev=x.shape[-1].value ** -0.5)
    return tf.layers.dense(x, units, use_bias=False, name=name, kernel_initializer=initial)
