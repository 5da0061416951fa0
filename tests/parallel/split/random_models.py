"""Small random models whose ops are computed on shards in many ways: chains with branches, in the sizes of real layers.

Their tensors are matrices: a row for each example, or transposed.
"""

import random
from typing import List

import tensorflow.compat.v1 as tf

ROWS = (4, 32, 256, 2048)  # of the batch of a rank
WIDTHS = (16, 128, 512, 2048)
FUNCTIONS = (tf.nn.relu, tf.tanh, tf.nn.softmax, tf.square, lambda x: x - tf.reduce_mean(x, 1, keepdims=True))
MOST_STEPS = 9  # beside the loss


def build(seed: int) -> tf.Tensor:
    """Builds a model in the default graph; its loss."""
    drawn = random.Random(seed)
    rows = drawn.choice(ROWS)
    there: List[tf.Tensor] = [tf.placeholder(tf.float32, [rows, drawn.choice(WIDTHS)], "x")]
    if drawn.random() < 0.3:
        there.append(tf.placeholder(tf.float32, [rows, drawn.choice(WIDTHS)], "z"))
    for number in range(drawn.randint(3, MOST_STEPS)):
        there.append(_step(drawn, there, number))
    unread = [one for one in there if not one.consumers() and one.op.type != "Placeholder"]
    return tf.add_n([tf.reduce_sum(one) for one in unread])


def _step(drawn: random.Random, there: List[tf.Tensor], number: int) -> tf.Tensor:
    """A random step of what is there, most often of what came last."""
    x = there[-1] if drawn.random() < 0.6 else drawn.choice(there)
    width = x.shape[1].value
    kind = drawn.choice(("dense", "dense", "bias", "function", "pair", "pair", "product", "scale"))
    alike = [one for one in there if one is not x and one.shape == x.shape]
    if kind == "pair" and alike:
        return drawn.choice((tf.add, tf.multiply, tf.maximum))(x, drawn.choice(alike))
    with_rows = [one for one in there if one is not x and one.shape[0] == x.shape[0]]
    if kind == "product" and with_rows:  # as of the tables of a factorization machine
        other = drawn.choice(with_rows)
        return tf.matmul(x, tf.matmul(x, other, transpose_a=True))
    if kind == "bias":
        return tf.nn.bias_add(x, tf.get_variable(f"bias{number}", [width]))
    if kind == "scale":
        return x * tf.get_variable(f"scale{number}", [width])
    if kind == "function":
        return drawn.choice(FUNCTIONS)(x)
    return tf.matmul(x, tf.get_variable(f"weights{number}", [width, drawn.choice(WIDTHS)]))
