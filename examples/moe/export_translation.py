"""Exports a trained model as a SavedModel, with its vocabulary.

    python examples/moe/export_translation.py --pairs pairs --checkpoint my_model/best --output my_saved_model

Plain TensorFlow on one device. It gives the best piece at each place of a translation, after the pieces before;
translate_sentence.py asks it piece by piece.
"""

import argparse
import os
import sys
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import best_checkpoint
import model_options
import saved_models
import sentence_pairs
import subwords
import tensorflow.compat.v1 as tf
import translate
from prepare_pairs import RECORDS, VOCABULARY


def export(options: argparse.Namespace) -> None:
    """Writes the SavedModel.

    Raises:
      ValueError: the folder exists, or there is no checkpoint.
    """
    checkpoint = best_checkpoint.find_checkpoint(options.checkpoint)
    vocabulary = os.path.join(options.pairs, VOCABULARY)
    trained = sentence_pairs.summary(os.path.join(options.pairs, RECORDS))
    sizes = model_options.sizes_of(options, len(subwords.read_subwords(vocabulary)))
    with tf.Graph().as_default(), tf.Session() as session:
        graph = translate.build(sizes, (trained.source_length, trained.target_length))
        tf.train.Saver().restore(session, checkpoint)
        inputs = dict(graph._asdict())
        outputs = {"best": inputs.pop("best")}
        saved_models.write(session, options.output, inputs, outputs)
    tf.io.gfile.copy(vocabulary, saved_models.extra(options.output, VOCABULARY))
    print(f"SavedModel of {checkpoint}: {options.output}")


def main(arguments: Any = None) -> None:
    """Exports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", required=True, help="folder of prepare_pairs.py that was trained with")
    parser.add_argument("--checkpoint", required=True, help="folder of the checkpoints, or one of them")
    parser.add_argument("--output", required=True, help="folder of the SavedModel; it must not exist")
    model_options.add(parser)
    export(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
