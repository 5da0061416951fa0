"""Models of the literature at full size, built but never run, with their FLOPs and parameters by formula.

Each function returns the loss, and the forward FLOPs of its convolutions and products, two for each multiply-add.
"""

from typing import List, Tuple

import tensorflow.compat.v1 as tf


def alexnet(batch: int) -> Tuple[tf.Tensor, float]:
    """Krizhevsky et al. 2012, in one column: 5 convolutions, 3 fully connected layers, pictures of 227 x 227."""
    flops = 0.0
    x = tf.placeholder(tf.float32, [batch, 227, 227, 3])
    for width, kernel, stride, padding, pools in (
        (96, 11, 4, "valid", True),
        (256, 5, 1, "same", True),
        (384, 3, 1, "same", False),
        (384, 3, 1, "same", False),
        (256, 3, 1, "same", True),
    ):
        channels = int(x.shape[-1])
        x = tf.layers.conv2d(x, width, kernel, stride, padding, activation=tf.nn.relu)
        flops += 2.0 * int(x.shape.num_elements()) * kernel * kernel * channels
        x = tf.nn.max_pool(x, 3, 2, "VALID") if pools else x
    x = tf.reshape(x, [batch, -1])
    for width in (4096, 4096, 1000):
        flops += 2.0 * batch * int(x.shape[-1]) * width
        x = tf.layers.dense(x, width, None if width == 1000 else tf.nn.relu)
    return _classified(x), flops


def resnet50(batch: int, size: int = 224) -> Tuple[tf.Tensor, float]:
    """He et al. 2015 with the stride in the 3 x 3 convolution ("v1.5"), pictures of 224 x 224 or another size."""
    flops: List[float] = []

    def conv(x: tf.Tensor, width: int, kernel: int, stride: int = 1) -> tf.Tensor:
        y = tf.layers.conv2d(x, width, kernel, stride, "same", use_bias=False)
        flops.append(2.0 * int(y.shape.num_elements()) * kernel * kernel * int(x.shape[-1]))
        return tf.layers.batch_normalization(y, training=True)

    x = tf.nn.relu(conv(tf.placeholder(tf.float32, [batch, size, size, 3]), 64, 7, 2))
    x = tf.nn.max_pool(x, 3, 2, "SAME")
    for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if number and not block else 1
            shortcut = x if block else conv(x, 4 * width, 1, stride)
            y = tf.nn.relu(conv(x, width, 1))
            y = tf.nn.relu(conv(y, width, 3, stride))
            x = tf.nn.relu(conv(y, 4 * width, 1) + shortcut)
    x = tf.reduce_mean(x, [1, 2])
    flops.append(2.0 * batch * 2048 * 1000)
    return _classified(tf.layers.dense(x, 1000)), sum(flops)


def bert(
    layers: int, width: int, heads: int, batch: int, length: int, answers: bool = False
) -> Tuple[tf.Tensor, float]:
    """Devlin et al. 2018 without the next sentence: a vocabulary of 30,522, all positions predicted.

    With `answers` it finds the begin and the end of an answer instead, as when it is trained for SQuAD.
    """
    ids = tf.placeholder(tf.int32, [batch, length])
    table = tf.get_variable("words", [30522, width])
    x = tf.nn.embedding_lookup(table, ids)
    x = _norm(x + tf.get_variable("positions", [512, width])[:length], "embedding")
    for number in range(layers):
        with tf.variable_scope(f"layer_{number}"):
            query, key, value = [_heads(tf.layers.dense(x, width), heads) for _ in range(3)]
            scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / (width / heads) ** 0.5)
            context = tf.reshape(tf.transpose(tf.matmul(scores, value), [0, 2, 1, 3]), [batch, length, width])
            x = _norm(x + tf.layers.dense(context, width), "attention")
            hidden = tf.layers.dense(x, 4 * width)
            hidden = 0.5 * hidden * (1.0 + tf.math.erf(hidden / 2.0**0.5))
            x = _norm(x + tf.layers.dense(hidden, width), "output")
    tokens = float(batch * length)
    of_layer = 2.0 * tokens * (12 * width * width + 2 * length * width)
    if answers:
        places = tf.placeholder(tf.int32, [2, batch])
        logits = tf.transpose(tf.layers.dense(x, 2), [2, 0, 1])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=places, logits=logits))
        return loss, layers * of_layer + 2.0 * tokens * width * 2
    logits = tf.matmul(tf.reshape(x, [-1, width]), table, transpose_b=True)
    labels = tf.placeholder(tf.int32, [batch * length])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, layers * of_layer + 2.0 * tokens * width * 30522


def lstm(batch: int, steps: int, width: int) -> Tuple[tf.Tensor, float]:
    """One recurrent layer in a loop; a product for each step."""
    x = tf.placeholder(tf.float32, [batch, steps, width])
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(width), x, dtype=tf.float32)
    return tf.reduce_mean(tf.square(outputs)), 2.0 * batch * steps * 2 * width * 4 * width


def _classified(logits: tf.Tensor) -> tf.Tensor:
    labels = tf.placeholder(tf.int32, [int(logits.shape[0])])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _heads(x: tf.Tensor, heads: int) -> tf.Tensor:
    batch, length, width = x.shape.as_list()
    return tf.transpose(tf.reshape(x, [batch, length, heads, width // heads]), [0, 2, 1, 3])


def _norm(x: tf.Tensor, name: str) -> tf.Tensor:
    width = int(x.shape[-1])
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    scale = tf.get_variable(name + "_scale", [width], initializer=tf.ones_initializer())
    offset = tf.get_variable(name + "_offset", [width], initializer=tf.zeros_initializer())
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-12)
