"""A checkpoint as published, and what its model computes, both written a second time with NumPy alone."""

import math

import numpy as np
import tensorflow.compat.v1 as tf


def shapes(config):
    """Names and shapes of the variables of a published checkpoint, those of the pre-training tasks included."""
    hidden, inner = config.hidden_size, config.intermediate_size

    def dense(name, rows, columns):
        return {name + "/kernel": [rows, columns], name + "/bias": [columns]}

    def norm(name):
        return {name + "/LayerNorm/beta": [hidden], name + "/LayerNorm/gamma": [hidden]}

    found = {
        "bert/embeddings/word_embeddings": [config.vocab_size, hidden],
        "bert/embeddings/token_type_embeddings": [config.type_vocab_size, hidden],
        "bert/embeddings/position_embeddings": [config.max_position_embeddings, hidden],
    }
    found.update(norm("bert/embeddings"))
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}/"
        for name in ("query", "key", "value"):
            found.update(dense(layer + "attention/self/" + name, hidden, hidden))
        found.update(dense(layer + "attention/output/dense", hidden, hidden))
        found.update(norm(layer + "attention/output"))
        found.update(dense(layer + "intermediate/dense", hidden, inner))
        found.update(dense(layer + "output/dense", inner, hidden))
        found.update(norm(layer + "output"))
    found.update(dense("bert/pooler/dense", hidden, hidden))
    found.update(dense("cls/predictions/transform/dense", hidden, hidden))
    found.update(norm("cls/predictions/transform"))
    found.update({"cls/predictions/output_bias": [config.vocab_size]})
    found.update({"cls/seq_relationship/output_weights": [2, hidden], "cls/seq_relationship/output_bias": [2]})
    return found


def save(path, config, seed=0):
    """Writes a checkpoint of random values and returns them by name."""
    random = np.random.RandomState(seed)
    values = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in sorted(shapes(config).items())}
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in values.items():
            tf.get_variable(name, initializer=value)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, path, write_meta_graph=False)
    return values


def encoder_output(config, values, ids, mask, segments):
    """The output of the last layer, [batch, sequence, hidden], in float64."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    table = {name: values[f"bert/embeddings/{name}_embeddings"] for name in ("word", "token_type", "position")}
    x = table["word"][ids] + table["token_type"][segments] + table["position"][: ids.shape[1]]
    x = _norm(values, "bert/embeddings", x)
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}/"
        context = _attention(config, values, layer + "attention/self/", x, mask)
        x = _norm(values, layer + "attention/output", x + _dense(values, layer + "attention/output/dense", context))
        inner = _gelu(_dense(values, layer + "intermediate/dense", x))
        x = _norm(values, layer + "output", x + _dense(values, layer + "output/dense", inner))
    return x


def _dense(values, name, x):
    return x @ values[name + "/kernel"] + values[name + "/bias"]


def _norm(values, name, x):
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return normal * values[name + "/LayerNorm/gamma"] + values[name + "/LayerNorm/beta"]


def _gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _attention(config, values, name, x, mask):
    size = config.hidden_size // config.num_attention_heads
    outputs = []
    for head in range(config.num_attention_heads):
        columns = slice(head * size, (head + 1) * size)
        query, key, value = (_dense(values, name + part, x)[..., columns] for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(size) + (1 - mask[:, np.newaxis]) * -10000.0
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ value)
    return np.concatenate(outputs, axis=-1)
