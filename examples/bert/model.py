"""BERT for graph-mode TensorFlow 1.x, with the variable names and the arithmetic of the published checkpoints.

Owns the configuration, the encoder (Devlin et al., 2018, "BERT: Pre-training of Deep Bidirectional Transformers",
section 3) and the head that marks the answer of a question as a span of tokens. Written as for one device; the only
word about distribution is that callers may give one context manager per stage, in which the layers of that stage are
made. Imports nothing but TensorFlow, so that other programs can use it.
"""

import json
import math
from contextlib import ExitStack
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

NORM_EPSILON = 1e-12
MASKED = -10000.0  # added to the score of a position that must not be attended to


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016), exact form."""
    return 0.5 * x * (1.0 + tf.erf(x / math.sqrt(2.0)))


ACTIVATIONS = {"gelu": gelu, "relu": tf.nn.relu, "tanh": tf.tanh}
# Keys of published configurations that say nothing about what is computed here.
IGNORED_KEYS = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)


class BertConfig(NamedTuple):
    """Sizes and rates of a model, by the keys of a published `bert_config.json`."""

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02

    def without_dropout(self) -> "BertConfig":
        """Returns the configuration for predictions."""
        return self._replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def read_config(path: str) -> BertConfig:
    """Returns the configuration in a JSON file.

    Raises:
      ValueError: a key is unknown or lacks, or the sizes do not fit each other.
    """
    with open(path, encoding="utf-8") as source:
        values = {key: value for key, value in json.load(source).items() if key not in IGNORED_KEYS}
    unknown = sorted(set(values) - set(BertConfig._fields))
    if unknown or "vocab_size" not in values:
        raise ValueError(
            "{} is no configuration of BERT: {}. Known keys: {}.".format(
                path,
                "unknown key(s) " + ", ".join(unknown) if unknown else "vocab_size is missing",
                ", ".join(BertConfig._fields),
            )
        )
    return checked(BertConfig(**values))


def checked(config: BertConfig) -> BertConfig:
    """Returns the configuration if its values fit each other, else raises ValueError."""
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            "hidden_size {} cannot be divided into {} heads; choose a multiple.".format(
                config.hidden_size, config.num_attention_heads
            )
        )
    if config.hidden_act not in ACTIVATIONS:
        raise ValueError("hidden_act {!r} is none of {}.".format(config.hidden_act, ", ".join(sorted(ACTIVATIONS))))
    return config


class Inputs(NamedTuple):
    """A batch of token sequences; every tensor is int32, [batch, sequence]."""

    input_ids: tf.Tensor
    input_mask: tf.Tensor  # 1 where there is a token, 0 for padding
    segment_ids: tf.Tensor  # 0 for the question, 1 for the passage


def deal(layers: int, stages: int) -> List[List[int]]:
    """Returns the numbers of the layers of each stage: in order, and as even as possible.

    The first stage also has the embeddings and the last one the head, so the stages between them get the odd layers.

    Raises:
      ValueError: there are more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers cannot be dealt over {stages} stages; choose 1 to {layers} stages.")
    order = list(range(1, stages - 1)) + [stages - 1, 0][: min(stages, 2)]
    counts = [layers // stages] * stages
    for stage in order[: layers % stages]:
        counts[stage] += 1
    firsts = [sum(counts[:stage]) for stage in range(stages)]
    return [list(range(first, first + count)) for first, count in zip(firsts, counts)]


def encode(config: BertConfig, inputs: Inputs, stages: Sequence[Any] = (ExitStack(),)) -> tf.Tensor:
    """Returns the output of the last layer, [batch, sequence, hidden].

    Args:
      config: the model; its dropout rates apply.
      inputs: the sequences; their length must be known when the graph is built.
      stages: a context manager for the layers of each stage; the embeddings belong to the first one.
    """
    checked(config)
    with tf.variable_scope("bert"):
        for scope, numbers in zip(stages, deal(config.num_hidden_layers, len(stages))):
            with scope:
                if numbers[0] == 0:
                    hidden = _embed(config, inputs)
                    bias = (1.0 - tf.cast(inputs.input_mask[:, tf.newaxis, tf.newaxis, :], tf.float32)) * MASKED
                for number in numbers:
                    with tf.variable_scope(f"encoder/layer_{number}"):
                        hidden = _layer(config, hidden, bias)
    return hidden


def span_logits(
    config: BertConfig, inputs: Inputs, stages: Sequence[Any] = (ExitStack(),)
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the scores of each token as first and as last token of the answer, both [batch, sequence]."""
    hidden = encode(config, inputs, stages)
    with stages[-1], tf.variable_scope("cls/squad"):
        weights = tf.get_variable("output_weights", [2, config.hidden_size], initializer=initializer(config))
        bias = tf.get_variable("output_bias", [2], initializer=tf.zeros_initializer())
        flat = tf.matmul(tf.reshape(hidden, [-1, config.hidden_size]), weights, transpose_b=True) + bias
        start, end = tf.unstack(tf.reshape(flat, [-1, hidden.shape[1].value, 2]), axis=2)
        return start, end


def span_loss(logits: Tuple[tf.Tensor, tf.Tensor], positions: Tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """Returns the mean cross entropy of first and last token; positions: two of [batch] int32."""
    losses = [
        tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=scores))
        for label, scores in zip(positions, logits)
    ]
    return (losses[0] + losses[1]) / 2.0


def word_embeddings(config: BertConfig) -> tf.Tensor:
    """Returns the table of the words, [vocabulary, hidden]; call it in the scope `bert/embeddings`."""
    return tf.get_variable("word_embeddings", [config.vocab_size, config.hidden_size], initializer=initializer(config))


def _embed(config: BertConfig, inputs: Inputs) -> tf.Tensor:
    length = inputs.input_ids.shape.as_list()[1]
    if length is None or length > config.max_position_embeddings:
        raise ValueError(
            "the sequences have the length {}; expected a known length of at most {} (max_position_embeddings).".format(
                length, config.max_position_embeddings
            )
        )
    with tf.variable_scope("embeddings"):
        size, start = config.hidden_size, initializer(config)
        types = tf.get_variable("token_type_embeddings", [config.type_vocab_size, size], initializer=start)
        places = tf.get_variable("position_embeddings", [config.max_position_embeddings, size], initializer=start)
        words = tf.nn.embedding_lookup(word_embeddings(config), inputs.input_ids)
        words += tf.nn.embedding_lookup(types, inputs.segment_ids) + places[:length]
        return dropout(layer_norm(words), config.hidden_dropout_prob)


def _layer(config: BertConfig, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Self attention, then the position-wise network, each with a residual and a norm after it."""
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = _attention(config, x, bias)
        with tf.variable_scope("output"):
            attended = dropout(dense("dense", context, config.hidden_size, config), config.hidden_dropout_prob)
            x = layer_norm(x + attended)
    with tf.variable_scope("intermediate"):
        inner = dense("dense", x, config.intermediate_size, config, ACTIVATIONS[config.hidden_act])
    with tf.variable_scope("output"):
        outer = dropout(dense("dense", inner, config.hidden_size, config), config.hidden_dropout_prob)
        return layer_norm(x + outer)


def _attention(config: BertConfig, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns what every position gathers from all others, [batch, sequence, hidden]; bias: [batch, 1, 1, sequence]."""
    length, heads = x.shape[1].value, config.num_attention_heads
    head_size = config.hidden_size // heads

    def to_heads(name: str) -> tf.Tensor:
        """[batch, sequence, hidden] -> [batch, heads, sequence, head_size]."""
        projected = tf.reshape(dense(name, x, config.hidden_size, config), [-1, length, heads, head_size])
        return tf.transpose(projected, [0, 2, 1, 3])

    query, key, value = to_heads("query"), to_heads("key"), to_heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(head_size) + bias
    weights = dropout(tf.nn.softmax(scores), config.attention_probs_dropout_prob)
    context = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
    return tf.reshape(context, [-1, length, config.hidden_size])


def dense(
    name: str, x: tf.Tensor, units: int, config: BertConfig, activation: Callable[[tf.Tensor], tf.Tensor] = None
) -> tf.Tensor:
    """A fully connected layer on the last dimension."""
    return tf.layers.dense(x, units, activation=activation, kernel_initializer=initializer(config), name=name)


def layer_norm(x: tf.Tensor) -> tf.Tensor:
    """Layer normalisation over the last dimension (Ba et al., 2016)."""
    with tf.variable_scope("LayerNorm"):
        size = x.shape[-1].value
        beta = tf.get_variable("beta", [size], initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", [size], initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * (tf.rsqrt(variance + NORM_EPSILON) * gamma) + beta


def dropout(x: tf.Tensor, rate: float) -> tf.Tensor:
    """Sets a share of the values to zero and scales the others; no op where the rate is 0."""
    return tf.nn.dropout(x, rate=rate) if rate else x


def initializer(config: BertConfig) -> Any:
    """How weights begin."""
    return tf.truncated_normal_initializer(stddev=config.initializer_range)
