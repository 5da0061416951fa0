"""A BERT encoder with a masked language model and a classification head, for graph-mode TensorFlow.

Owns the architecture (Devlin et al., 2018, "BERT: Pre-training of Deep Bidirectional Transformers", section 3) and
named sizes of it. Knows nothing of devices or distribution. The optimizer is left to ``benchmarks/models/adamw.py``.
"""
import math
from typing import Callable, NamedTuple, Optional

import tensorflow.compat.v1 as tf

BertConfig = NamedTuple('BertConfig', [
    ('layers', int),
    ('hidden', int),
    ('heads', int),
    ('vocabulary', int),
    ('sequence', int),
    ('intermediate', int),
    ('max_positions', int),
    ('token_types', int),
    ('dropout', float),
])

Batch = NamedTuple('Batch', [
    ('tokens', tf.Tensor),  # [batch, sequence] int32
    ('mask', tf.Tensor),  # [batch, sequence] float32, 1 where there is a token
    ('types', tf.Tensor),  # [batch, sequence] int32
    ('masked_positions', tf.Tensor),  # [batch, predictions] int32
    ('masked_tokens', tf.Tensor),  # [batch, predictions] int32
])


def config(layers: int, hidden: int, heads: int, vocabulary: int = 30522, sequence: int = 128,
           dropout: float = 0.1) -> BertConfig:
    """Returns a configuration with the proportions of the paper (intermediate size = 4 x hidden).

    Raises:
        ValueError: the hidden size cannot be divided into the heads.
    """
    if hidden % heads:
        raise ValueError('hidden size %d cannot be divided into %d heads; choose a multiple' % (hidden, heads))
    return BertConfig(layers, hidden, heads, vocabulary, sequence, 4 * hidden, max(512, sequence), 2, dropout)


TINY = config(layers=2, hidden=128, heads=2)
SMALL = config(layers=12, hidden=256, heads=4, vocabulary=8192)
BASE = config(layers=12, hidden=768, heads=12)
LARGE = config(layers=24, hidden=1024, heads=16)


def encode(sizes: BertConfig, batch: Batch) -> tf.Tensor:
    """Returns the encoder's output, [batch, sequence, hidden]."""
    with tf.variable_scope('embeddings'):
        hidden = _embed(sizes, batch.tokens, batch.types)
    # [batch, 1, 1, sequence]: broadcast over heads and over the querying positions.
    bias = (1.0 - batch.mask[:, tf.newaxis, tf.newaxis, :]) * -10000.0
    for layer in range(sizes.layers):
        with tf.variable_scope('layer_%d' % layer):
            hidden = _transformer_layer(sizes, hidden, bias)
    return hidden


def masked_lm_loss(sizes: BertConfig, batch: Batch) -> tf.Tensor:
    """Returns the mean cross entropy of the masked tokens; the output projection is the embedding table."""
    with tf.variable_scope('bert', reuse=tf.AUTO_REUSE):
        hidden = encode(sizes, batch)
        with tf.variable_scope('embeddings'):
            table = _embedding_table('tokens', sizes.vocabulary, sizes.hidden)
        with tf.variable_scope('masked_lm'):
            picked = tf.batch_gather(hidden, batch.masked_positions)
            picked = _layer_norm(_dense('transform', picked, sizes.hidden, activation=gelu))
            flat = tf.reshape(picked, [-1, sizes.hidden])
            bias = tf.get_variable('bias', [sizes.vocabulary], initializer=tf.zeros_initializer())
            logits = tf.matmul(flat, table, transpose_b=True) + bias
            labels = tf.reshape(batch.masked_tokens, [-1])
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def classification_loss(sizes: BertConfig, batch: Batch, labels: tf.Tensor, classes: int) -> tf.Tensor:
    """Returns the mean cross entropy of a classifier on the first token; labels: [batch] int32."""
    with tf.variable_scope('bert', reuse=tf.AUTO_REUSE):
        first = encode(sizes, batch)[:, 0]
        with tf.variable_scope('classifier'):
            pooled = _dropout(sizes, _dense('pool', first, sizes.hidden, activation=tf.tanh))
            logits = _dense('logits', pooled, classes)
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016), exact form."""
    return 0.5 * x * (1.0 + tf.erf(x / math.sqrt(2.0)))


def _embed(sizes: BertConfig, tokens: tf.Tensor, types: tf.Tensor) -> tf.Tensor:
    by_token = tf.nn.embedding_lookup(_embedding_table('tokens', sizes.vocabulary, sizes.hidden), tokens)
    by_type = tf.nn.embedding_lookup(_embedding_table('types', sizes.token_types, sizes.hidden), types)
    by_position = _embedding_table('positions', sizes.max_positions, sizes.hidden)[:sizes.sequence]
    return _dropout(sizes, _layer_norm(by_token + by_type + by_position))


def _embedding_table(name: str, rows: int, columns: int) -> tf.Tensor:
    return tf.get_variable(name, [rows, columns], initializer=_initializer())


def _transformer_layer(sizes: BertConfig, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Self attention, then the position-wise network, each with a residual and a norm after it."""
    with tf.variable_scope('attention'):
        attended = _dropout(sizes, _attention(sizes, x, bias))
        x = _layer_norm(x + attended)
    with tf.variable_scope('feed_forward'):
        inner = _dense('expand', x, sizes.intermediate, activation=gelu)
        contracted = _dropout(sizes, _dense('contract', inner, sizes.hidden))
        return _layer_norm(x + contracted)


def _attention(sizes: BertConfig, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    head_size = sizes.hidden // sizes.heads

    def to_heads(name: str) -> tf.Tensor:
        """[batch, sequence, hidden] -> [batch, heads, sequence, head_size]."""
        projected = tf.reshape(_dense(name, x, sizes.hidden), [-1, sizes.sequence, sizes.heads, head_size])
        return tf.transpose(projected, [0, 2, 1, 3])

    query, key, value = to_heads('query'), to_heads('key'), to_heads('value')
    scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(head_size) + bias
    weights = _dropout(sizes, tf.nn.softmax(scores))
    context = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
    return _dense('output', tf.reshape(context, [-1, sizes.sequence, sizes.hidden]), sizes.hidden)


def _dense(name: str, x: tf.Tensor, units: int,
           activation: Optional[Callable[[tf.Tensor], tf.Tensor]] = None) -> tf.Tensor:
    return tf.layers.dense(x, units, activation=activation, kernel_initializer=_initializer(), name=name)


def _layer_norm(x: tf.Tensor) -> tf.Tensor:
    """Layer normalisation over the last dimension (Ba et al., 2016)."""
    with tf.variable_scope('norm'):
        size = x.shape[-1].value
        scale = tf.get_variable('scale', [size], initializer=tf.ones_initializer())
        shift = tf.get_variable('shift', [size], initializer=tf.zeros_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * (tf.rsqrt(variance + 1e-12) * scale) + shift


def _dropout(sizes: BertConfig, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.dropout(x, rate=sizes.dropout) if sizes.dropout else x


def _initializer() -> tf.keras.initializers.Initializer:
    return tf.truncated_normal_initializer(stddev=0.02)
