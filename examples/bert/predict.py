"""Answers the questions of a SQuAD file with a trained model, and measures the answers where the right ones are known.

    python examples/bert/predict.py --data dev-v1.1.json --vocabulary vocab.txt --config bert_config.json \
        --checkpoint my_model --output predictions.json

Plain TensorFlow on one device: what EPL trained is an ordinary checkpoint, whatever the plan was.
"""

import argparse
import json
import os
import sys
from itertools import groupby
from typing import Any, Dict, List, Sequence, Tuple

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import best_checkpoint
import metric
import model
import numpy as np
import postprocess
import prepare
import squad
import tensorflow.compat.v1 as tf

OUTPUTS = ("start_logits", "end_logits")  # what is scored, by the names in a SavedModel

_Scores = Tuple[np.ndarray, np.ndarray]


def scorer(config: model.BertConfig, length: int) -> Tuple[model.Inputs, _Scores]:
    """Builds the model for windows of a length: the placeholders that it takes, and the scores, [batch, length]."""
    inputs = model.Inputs(*[tf.placeholder(tf.int32, [None, length], name) for name in model.Inputs._fields])
    return inputs, model.span_logits(config.without_dropout(), inputs)


def run(
    session: tf.Session, inputs: model.Inputs, logits: Any, windows: Sequence[squad.Window], batch_size: int = 32
) -> List[_Scores]:
    """Returns for each window the scores of its tokens as first and last token of the answer."""
    scores: List[_Scores] = []
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        feed = {tensor: [getattr(window, name) for window in batch] for name, tensor in inputs._asdict().items()}
        scores.extend(zip(*session.run(logits, feed)))
    return scores


def score(config: model.BertConfig, checkpoint: str, windows: Sequence[squad.Window], batch_size: int) -> List[_Scores]:
    """Returns the scores of all windows by a checkpoint, in a graph of its own."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, logits = scorer(config, len(windows[0].input_ids))
        tf.train.Saver(tf.trainable_variables()).restore(session, checkpoint)
        return run(session, inputs, logits, windows, batch_size)


def answer(
    windows: Sequence[squad.Window], scores: Sequence[_Scores], limits: postprocess.Limits
) -> Dict[str, List[postprocess.Candidate]]:
    """Returns the best answers to each question."""
    found = {}
    pairs = zip(windows, scores)
    for question, of_question in groupby(pairs, key=lambda pair: pair[0].question.id):
        group = list(of_question)
        found[question] = postprocess.candidates([pair[0] for pair in group], [pair[1] for pair in group], limits)
    return found


def texts(answers: Dict[str, List[postprocess.Candidate]]) -> Dict[str, str]:
    """Returns the text of the best answer to each question; "" where there is none."""
    return {question: found[0].text if found else "" for question, found in answers.items()}


def measure(
    config: model.BertConfig, checkpoint: str, questions: Sequence[squad.Question], windows: Sequence[squad.Window]
) -> Dict[str, float]:
    """Returns `exact_match` and `f1` of a checkpoint, in percent."""
    answers = answer(windows, score(config, checkpoint, windows, 32), postprocess.DEFAULT_LIMITS)
    return metric.evaluate(questions, texts(answers))[0]


def main(arguments: Any = None) -> None:
    """Writes the answers and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    prepare.add_window_options(parser)
    parser.add_argument("--config", required=True, help="bert_config.json")
    parser.add_argument("--checkpoint", required=True, help="a checkpoint, or the folder with it")
    parser.add_argument("--output", required=True, help="JSON: question id to answer")
    parser.add_argument("--n_best_output", help="JSON: question id to the best answers, with their probabilities")
    parser.add_argument("--batch_size", type=int, default=32, help="windows (default: %(default)s)")
    for name, value in postprocess.DEFAULT_LIMITS._asdict().items():
        parser.add_argument("--" + name, type=int, default=value, help="(default: %(default)s)")
    options = parser.parse_args(arguments)

    questions, pieces = prepare.questions_and_pieces(options)
    windows = list(squad.windows(questions, pieces, prepare.window_sizes(options)))
    checkpoint = best_checkpoint.find_checkpoint(options.checkpoint)
    scores = score(model.read_config(options.config), checkpoint, windows, options.batch_size)
    answers = answer(windows, scores, postprocess.Limits(options.n_best, options.max_answer_length))
    best = texts(answers)
    _write(options.output, best)
    if options.n_best_output:
        _write(options.n_best_output, {name: [one._asdict() for one in found] for name, found in answers.items()})
    print(f"{len(best)} answers: {options.output}")
    if all(question.answers for question in questions):
        print(json.dumps(metric.evaluate(questions, best)[0]))


def _write(path: str, content: Any) -> None:
    with open(path, "w", encoding="utf-8") as target:
        json.dump(content, target, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
