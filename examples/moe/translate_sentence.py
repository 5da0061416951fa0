"""Translates sentences by a SavedModel of export_translation.py.

python examples/moe/translate_sentence.py --saved_model my_saved_model "In the beginning was the Word."
"""

import argparse
import os
import sys
from typing import Any, List

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import saved_models
import subwords
import tensorflow.compat.v1 as tf
import translate
from prepare_pairs import VOCABULARY


def translations(saved_model: str, sentences: List[str]) -> List[str]:
    """Returns the translation of each sentence; what is longer than the longest trained one is cut."""
    known = subwords.read_subwords(saved_models.extra(saved_model, VOCABULARY))
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = saved_models.load(session, saved_model)
        graph = translate.Graph(*[tensors[name] for name in translate.Graph._fields])
        source = translate.filled([known.encode(text) for text in sentences], graph.source.shape[1].value)
        return [known.decode(row) for row in translate.translate(session, graph, source, known.end)]


def main(arguments: Any = None) -> None:
    """Prints the translations, one per line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--saved_model", required=True, help="folder, written by export_translation.py")
    parser.add_argument("sentences", nargs="+", help="what is translated")
    options = parser.parse_args(arguments)
    print("\n".join(translations(options.saved_model, options.sentences)))


if __name__ == "__main__":
    main()
