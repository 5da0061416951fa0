"""A Transformer of 10 billion weights in 8 stages, of the size of M6-10B."""

import argparse
import os
import sys

import tensorflow.compat.v1 as tf

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "../../..")))

# Below the line above, since this file is run as a script.
import epl
from benchmarks.papers import transformer

STAGES, MICRO_BATCHES = 8, 35  # as on the slides
LAYERS, WIDTH, HEADS, WORDS, LENGTH = 48, 4096, 32, 21_128, 512


def build() -> tf.Tensor:
    """The loss on placeholders: each word is predicted."""
    ids = tf.placeholder(tf.int32, [None, LENGTH], "ids")
    labels = tf.placeholder(tf.int32, [None, LENGTH], "labels")
    for stage in range(STAGES):
        with epl.replicate(1):
            if stage == 0:
                x = transformer.embedded(ids, WORDS, WIDTH)
            for layer in range(stage * LAYERS // STAGES, (stage + 1) * LAYERS // STAGES):
                with tf.variable_scope(f"layer_{layer}"):
                    x = transformer.layer(x, HEADS)
            if stage == STAGES - 1:
                loss = transformer.word_loss(x, labels, WORDS)
    return loss


def main() -> None:
    """Trains on random words."""
    parser = argparse.ArgumentParser(description="10 billion weights in 8 stages")
    parser.add_argument("--rows", type=int, default=35, help="of the batch that is fed")
    options = parser.parse_args()
    epl.init(epl.Config({"pipeline.num_micro_batch": MICRO_BATCHES}))
    words = transformer.random_words
    transformer.train(
        build(), lambda: {name: words(WORDS, options.rows, LENGTH) for name in ("ids:0", "labels:0")}
    )  # fmt: skip


if __name__ == "__main__":
    main()
