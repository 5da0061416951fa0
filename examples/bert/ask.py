"""Asks a SavedModel of export.py a question about a text.

python examples/bert/ask.py --saved_model my_saved_model --question "Who came?" --passage "In the evening a cat came."
"""

import argparse
import json
import os
import sys
from typing import Any, List

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import export
import postprocess
import predict
import saved_models
import squad
import tensorflow.compat.v1 as tf
from model import Inputs


def ask(saved_model: str, question: str, passage: str) -> List[postprocess.Candidate]:
    """Returns the best answers, best first."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = saved_models.load(session, saved_model)
        inputs = Inputs(*[tensors[name] for name in Inputs._fields])
        logits = [tensors[name] for name in predict.OUTPUTS]
        length = inputs.input_ids.shape[1].value
        sizes = squad.WindowSizes(length, max(1, length // 3), min(64, length // 4))
        asked = squad.Question("asked", question, passage, ())
        windows = list(squad.windows([asked], export.read_tokenizer(saved_model), sizes))
        return postprocess.candidates(windows, predict.run(session, inputs, logits, windows))


def main(arguments: Any = None) -> None:
    """Prints the answers as JSON, one per line, best first."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--saved_model", required=True, help="folder, written by export.py")
    parser.add_argument("--question", required=True, help="in one sentence")
    parser.add_argument("--passage", required=True, help="the text that has the answer")
    parser.add_argument("--answers", type=int, default=1, help="how many (default: %(default)s)")
    options = parser.parse_args(arguments)
    for found in ask(options.saved_model, options.question, options.passage)[: options.answers]:
        print(json.dumps({"answer": found.text, "probability": round(found.probability, 4)}, ensure_ascii=False))


if __name__ == "__main__":
    main()
