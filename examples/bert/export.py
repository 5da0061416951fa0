"""Exports a trained model as a SavedModel, with its vocabulary.

    python examples/bert/export.py --config bert_config.json --checkpoint my_model/best --vocabulary vocab.txt \
        --max_seq_length 384 --output my_saved_model

Plain TensorFlow on one device. ask.py asks it.
"""

import argparse
import json
import os
import sys
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import best_checkpoint
import model
import predict
import saved_models
import tensorflow.compat.v1 as tf
from tokenization import WordPieces, read_vocabulary

VOCABULARY, TOKENIZER = "vocab.txt", "tokenizer.json"  # in assets.extra


def export(config: model.BertConfig, checkpoint: str, length: int, output: str) -> None:
    """Writes a SavedModel of inputs [batch, length] with the weights of a checkpoint.

    Raises:
      ValueError: the folder exists.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, logits = predict.scorer(config, length)
        tf.train.Saver(tf.trainable_variables()).restore(session, checkpoint)
        saved_models.write(session, output, dict(inputs._asdict()), dict(zip(predict.OUTPUTS, logits)))


def read_tokenizer(saved_model: str) -> WordPieces:
    """Returns the tokenizer of a SavedModel."""
    with tf.io.gfile.GFile(saved_models.extra(saved_model, TOKENIZER)) as source:
        return WordPieces(read_vocabulary(saved_models.extra(saved_model, VOCABULARY)), **json.load(source))


def main(arguments: Any = None) -> None:
    """Exports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, help="bert_config.json")
    parser.add_argument("--checkpoint", required=True, help="a checkpoint, or the folder with it")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt of the model")
    parser.add_argument("--cased", action="store_true", help="the vocabulary has upper case and accents")
    parser.add_argument("--max_seq_length", type=int, default=384, help="tokens of a window (default: %(default)s)")
    parser.add_argument("--output", required=True, help="folder of the SavedModel; it must not exist")
    options = parser.parse_args(arguments)
    checkpoint = best_checkpoint.find_checkpoint(options.checkpoint)
    export(model.read_config(options.config), checkpoint, options.max_seq_length, options.output)
    tf.io.gfile.copy(options.vocabulary, saved_models.extra(options.output, VOCABULARY))
    with tf.io.gfile.GFile(saved_models.extra(options.output, TOKENIZER), "w") as target:
        json.dump({"lower_case": not options.cased}, target)
    print(f"SavedModel of {checkpoint}: {options.output}")


if __name__ == "__main__":
    main()
