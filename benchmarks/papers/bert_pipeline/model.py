"""BERT-Large in stages of a pipeline, pre-trained on masked words.

epl-plan --machine 8*v100-32 --rows 96 --set pipeline.num_micro_batch=8 benchmarks/papers/bert_pipeline/model.py
"""

import argparse
import os
import sys

import tensorflow.compat.v1 as tf

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "../../..")))

# Below the line above, since this file is run as a script.
import epl
from benchmarks.papers import transformer

LAYERS, WIDTH, HEADS, WORDS = 24, 1024, 16, 30_522  # Devlin et al. 2018
LENGTH, MASKED = 128, 20  # words of a row, and those of them that are predicted


def build(stages: int) -> tf.Tensor:
    """The loss on placeholders; the stages have equally many layers."""
    ids = tf.placeholder(tf.int32, [None, LENGTH], "ids")
    places = tf.placeholder(tf.int32, [None, MASKED], "places")
    labels = tf.placeholder(tf.int32, [None, MASKED], "labels")
    for stage in range(stages):
        with epl.replicate(1):
            if stage == 0:
                x = transformer.embedded(ids, WORDS, WIDTH)
            for layer in range(stage * LAYERS // stages, (stage + 1) * LAYERS // stages):
                with tf.variable_scope(f"layer_{layer}"):
                    x = transformer.layer(x, HEADS)
            if stage == stages - 1:
                masked = tf.matmul(tf.one_hot(places, LENGTH), x)
                loss = transformer.word_loss(masked, labels, WORDS)
    return loss


def main() -> None:
    """Trains on random words."""
    parser = argparse.ArgumentParser(description="BERT-Large in stages")
    parser.add_argument("--stages", type=int, default=4, help="a divisor of the 24 layers")
    parser.add_argument("--rows", type=int, default=48, help="of the batch that is fed")
    options = parser.parse_args()
    epl.init()
    words = transformer.random_words
    transformer.train(
        build(options.stages),
        lambda: {
            "ids:0": words(WORDS, options.rows, LENGTH),
            "places:0": words(LENGTH, options.rows, MASKED),
            "labels:0": words(WORDS, options.rows, MASKED),
        },
    )


if __name__ == "__main__":
    main()
