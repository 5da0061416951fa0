"""The BERT that the benchmarks train: the encoder of `examples/bert`, with the tasks that it is measured on.

Owns named sizes and the heads of the masked language model and of a classifier, under the names of the published
checkpoints. Knows nothing of devices or distribution. The optimizer is `examples/bert/optimizer.py`.
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from examples.bert import model
from examples.bert.model import BertConfig

SEQUENCE = 128  # tokens


class Batch(NamedTuple):
    tokens: tf.Tensor
    mask: tf.Tensor
    types: tf.Tensor
    masked_positions: tf.Tensor
    masked_tokens: tf.Tensor


def config(layers: int, hidden: int, heads: int, vocabulary: int = 30522, dropout: float = 0.1) -> BertConfig:
    """Returns a configuration with the proportions of the paper (intermediate size = 4 x hidden).

    Raises:
        ValueError: the hidden size cannot be divided into the heads.
    """
    return model.checked(
        BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


SMALL = config(layers=12, hidden=256, heads=4, vocabulary=8192)
BASE = config(layers=12, hidden=768, heads=12)


def masked_lm_loss(sizes: BertConfig, batch: Batch) -> tf.Tensor:
    """Returns the mean cross entropy of the masked tokens; the output projection is the embedding table."""
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        hidden = _encode(sizes, batch)
        with tf.variable_scope("bert/embeddings"):
            table = model.word_embeddings(sizes)
        with tf.variable_scope("cls/predictions"):
            picked = tf.batch_gather(hidden, batch.masked_positions)
            with tf.variable_scope("transform"):
                picked = model.layer_norm(model.dense("dense", picked, sizes.hidden_size, sizes, model.gelu))
            flat = tf.reshape(picked, [-1, sizes.hidden_size])
            bias = tf.get_variable("output_bias", [sizes.vocab_size], initializer=tf.zeros_initializer())
            logits = tf.matmul(flat, table, transpose_b=True) + bias
            labels = tf.reshape(batch.masked_tokens, [-1])
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def classification_loss(sizes: BertConfig, batch: Batch, labels: tf.Tensor, classes: int) -> tf.Tensor:
    """Returns the mean cross entropy of a classifier on the first token; labels: [batch] int32."""
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        first = _encode(sizes, batch)[:, 0]
        with tf.variable_scope("bert/pooler"):
            pooled = model.dense("dense", first, sizes.hidden_size, sizes, tf.tanh)
        with tf.variable_scope("cls/classifier"):
            logits = model.dense("dense", model.dropout(pooled, sizes.hidden_dropout_prob), classes, sizes)
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _encode(sizes: BertConfig, batch: Batch) -> tf.Tensor:
    return model.encode(sizes, model.Inputs(batch.tokens, batch.mask, batch.types))
