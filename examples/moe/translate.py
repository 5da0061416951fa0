"""Translates sentences with a trained model, and says how much of given translations it finds: plain TensorFlow.

python examples/moe/translate.py --pairs pairs --checkpoint my_model --text newstest.txt --output translations.txt
"""

import argparse
import json
import os
import sys
from typing import Any, Iterator, List, NamedTuple, Sequence, Tuple

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import best_checkpoint
import model_options
import numpy as np
import sentence_pairs
import subwords
import tensorflow.compat.v1 as tf
import translation_model
from prepare_pairs import RECORDS, VOCABULARY


class Graph(NamedTuple):
    """A model to be asked for the best piece at every place."""

    source: tf.Tensor
    previous: tf.Tensor
    present: tf.Tensor
    best: tf.Tensor


class Pairs(NamedTuple):
    """Sentences and their translations as a trained model takes them: ids, [pairs, longest that was trained with]."""

    known: subwords.Subwords
    source: np.ndarray
    target: np.ndarray

    @property
    def lengths(self) -> Tuple[int, int]:
        """Places of a sentence and of a translation."""
        return self.source.shape[1], self.target.shape[1]

    def batches(self, size: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yields them in their order, at most so many at a time."""
        for first in range(0, len(self.source), size):
            yield self.source[first : first + size], self.target[first : first + size]


def read_pairs(folder: str, text: str, columns: Sequence[int]) -> Pairs:
    """Returns the pairs in a text file for a model that was trained with a folder of prepare_pairs.py."""
    trained = sentence_pairs.summary(os.path.join(folder, RECORDS))
    known = subwords.read_subwords(os.path.join(folder, VOCABULARY))
    first, second = columns
    sides = zip(*sentence_pairs.read(text, (first - 1, second - 1)))
    lengths = (trained.source_length, trained.target_length)
    return Pairs(known, *[filled([known.encode(text) for text in side], n) for side, n in zip(sides, lengths)])


def build(sizes: translation_model.Sizes, lengths: Tuple[int, int]) -> Graph:
    """Returns the model, for sentences and translations of at most these lengths."""
    source = tf.placeholder(tf.int32, [None, lengths[0]], "source")
    previous = tf.placeholder(tf.int32, [None, lengths[1]], "previous")
    present = tf.placeholder(tf.float32, [None, lengths[1]], "present")
    scores, _ = translation_model.logits(sizes, source, previous, present)
    return Graph(source, previous, present, tf.argmax(scores, -1, output_type=tf.int32))


def translate(session: tf.Session, graph: Graph, source: np.ndarray, end: int) -> np.ndarray:
    """Returns translations, found piece by piece, each the best one after those before: [batch, length]."""
    rows, length = len(source), graph.previous.shape[1].value
    found = np.full([rows, length + 1], translation_model.START, np.int32)
    present = np.zeros([rows, length], np.float32)
    for place in range(length):
        present[:, place] = 1.0
        feeds = {graph.source: source, graph.previous: found[:, :-1], graph.present: present}
        found[:, place + 1] = session.run(graph.best, feeds)[:, place]
        if (found == end).any(1).all():
            break
    return found[:, 1:]


def right_pieces(session: tf.Session, graph: Graph, source: np.ndarray, target: np.ndarray) -> Tuple[int, int]:
    """Returns how many pieces of given translations are the best ones after those before, and how many there are."""
    present = target != translation_model.PAD
    previous = np.pad(target[:, :-1], [(0, 0), (1, 0)], mode="constant", constant_values=translation_model.START)
    best = session.run(graph.best, {graph.source: source, graph.previous: previous, graph.present: present})
    return int(((best == target) & present).sum()), int(present.sum())


def filled(sentences: Sequence[List[int]], length: int) -> np.ndarray:
    """Returns sentences as rows, filled up; those that are longer are cut."""
    rows = np.full([len(sentences), length], translation_model.PAD, np.int32)
    for row, sentence in zip(rows, sentences):
        row[: min(length, len(sentence))] = sentence[:length]
    return rows


def measure(sizes: translation_model.Sizes, checkpoint: str, pairs: Pairs, batch_size: int) -> float:
    """Returns the share of the pieces of given translations that a checkpoint finds, in a graph of its own."""
    with tf.Graph().as_default(), tf.Session() as session:
        graph = build(sizes, pairs.lengths)
        tf.train.Saver().restore(session, checkpoint)
        right, pieces = np.sum([right_pieces(session, graph, *batch) for batch in pairs.batches(batch_size)], axis=0)
    return right / pieces


def run(options: argparse.Namespace) -> Any:
    """Writes the translations; returns what is right of those that are given."""
    path = best_checkpoint.find_checkpoint(options.checkpoint)
    pairs = read_pairs(options.pairs, options.text, options.columns)
    known = pairs.known
    graph = build(model_options.sizes_of(options, len(known)), pairs.lengths)
    right = pieces = whole = 0
    with tf.Session() as session, open(options.output, "w", encoding="utf-8") as output:
        tf.train.Saver().restore(session, path)
        for source, target in pairs.batches(options.batch_size):
            counts = right_pieces(session, graph, source, target)
            right, pieces = right + counts[0], pieces + counts[1]
            for row, given in zip(translate(session, graph, source, known.end), target):
                sentence = known.decode(row)
                output.write(sentence + "\n")
                whole += sentence == known.decode(given)
    count = len(pairs.source)
    return {"sentences": count, "pieces_right": right / pieces, "sentences_right": whole / count}


def main(arguments: Any = None) -> None:
    """Translates."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", required=True, help="folder of prepare_pairs.py that was trained with")
    parser.add_argument("--checkpoint", required=True, help="folder of the checkpoints, or one of them")
    parser.add_argument("--text", required=True, help="pairs of sentences, as --pairs of prepare_pairs.py")
    parser.add_argument(
        "--columns", type=int, nargs=2, default=[1, 2], help="of sentence and translation, from 1 (default: 1 2)"
    )
    parser.add_argument("--output", required=True, help="the translations, one per line")
    parser.add_argument("--batch_size", type=int, default=64, help="(default: %(default)s)")
    model_options.add(parser)
    print(json.dumps(run(parser.parse_args(arguments)), sort_keys=True))


if __name__ == "__main__":
    main()
