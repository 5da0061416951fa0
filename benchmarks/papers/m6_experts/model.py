"""A Transformer of 10 trillion weights, nearly all of them experts in `epl.split`, of the size of M6-MoE-10T."""

import argparse
import os
import sys
from typing import Any

import tensorflow.compat.v1 as tf

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "../../..")))

# Below the line above, since this file is run as a script.
import epl
from benchmarks.papers import transformer

CONFIG = {"cluster.colocate_split_and_replicate": True}
LAYERS, WIDTH, HEADS, WORDS, LENGTH = 24, 1024, 16, 21_128, 512
EXPERTS, INNER = 9_728, 20_992  # of each layer, and the units of one


def build(experts: int = EXPERTS) -> tf.Tensor:
    """The loss on placeholders; `experts`: of each layer."""
    ids = tf.placeholder(tf.int32, [None, LENGTH], "ids")
    labels = tf.placeholder(tf.int32, [None, LENGTH], "labels")
    epl.set_default_strategy(epl.replicate(1))
    x = transformer.embedded(ids, WORDS, WIDTH)
    for layer in range(LAYERS):
        with tf.variable_scope(f"layer_{layer}"):
            x = transformer.attention(x, HEADS)
            with tf.variable_scope("output"):
                x = transformer.normalized(x + _experts(x, experts))
    return transformer.word_loss(x, labels, WORDS)


def _experts(x: tf.Tensor, experts: int) -> tf.Tensor:
    """Each word of a row goes to its best expert, which takes one of a row (Fedus et al. 2021); shaped as `x`."""
    probabilities = tf.nn.softmax(tf.layers.dense(x, experts, use_bias=False, name="gate"))
    best = tf.one_hot(tf.argmax(probabilities, -1), experts)  # [rows, words, experts]
    first = best * tf.cast(tf.cumsum(best, 1) < 2.0, tf.float32)
    combine = probabilities * first
    with epl.split():
        inner = tf.get_variable("inner", [experts, WIDTH, INNER], initializer=_initial(WIDTH))
        outer = tf.get_variable("outer", [experts, INNER, WIDTH], initializer=_initial(INNER))
        taken = tf.einsum("gse,gsm->egm", first, x)
        given = tf.einsum("egh,ehm->egm", tf.nn.relu(tf.einsum("egm,emh->egh", taken, inner)), outer)
        return tf.einsum("gse,egm->gsm", combine, given)


def _initial(inputs: int) -> Any:
    return tf.truncated_normal_initializer(stddev=inputs**-0.5)


def main() -> None:
    """Trains on random words."""
    parser = argparse.ArgumentParser(description="a Transformer with experts")
    parser.add_argument("--experts", type=int, default=EXPERTS, help="of each layer")
    parser.add_argument("--rows", type=int, default=1, help="of the batch that is fed")
    options = parser.parse_args()
    epl.init(epl.Config(CONFIG))
    words = transformer.random_words
    transformer.train(
        build(options.experts),
        lambda: {name: words(WORDS, options.rows, LENGTH) for name in ("ids:0", "labels:0")},
    )


if __name__ == "__main__":
    main()
