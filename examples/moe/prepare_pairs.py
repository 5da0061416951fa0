"""Makes records of pairs of sentences, with a vocabulary that is given or learnt from them.

python examples/moe/prepare_pairs.py --pairs deu.txt --vocabulary_size 8000 --output pairs
"""

import argparse
import os
import sys
from typing import Any, Iterator, List

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import sentence_pairs
import subwords

RECORDS, VOCABULARY = "train.tfrecord", "vocab.txt"  # files of the output


def prepare(options: argparse.Namespace) -> sentence_pairs.Summary:
    """Writes vocabulary and records; returns what they hold."""
    texts = list(sentence_pairs.read(options.pairs, tuple(column - 1 for column in options.columns)))
    if options.vocabulary:
        pieces = subwords.read_vocabulary(options.vocabulary)
    else:
        pieces = subwords.learn_subwords([text for pair in texts for text in pair], options.vocabulary_size)
    known = subwords.Subwords(pieces)
    long: List[int] = []

    def encoded() -> Iterator[sentence_pairs.Pair]:
        for texts_of_pair in texts:
            source, target = [known.encode(text) for text in texts_of_pair]
            if max(len(source), len(target)) <= options.max_length:
                yield source, target
            else:
                long.append(max(len(source), len(target)))

    os.makedirs(options.output, exist_ok=True)
    with open(os.path.join(options.output, VOCABULARY), "w", encoding="utf-8") as target_file:
        target_file.writelines(piece + "\n" for piece in pieces)
    found = sentence_pairs.write(os.path.join(options.output, RECORDS), encoded(), len(pieces))
    if long:
        print(f"{len(long)} pairs with more than {options.max_length} pieces are left out")
    return found


def main(arguments: Any = None) -> None:
    """Prepares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", required=True, help="text, in each line a sentence, a tab, and its translation")
    parser.add_argument(
        "--columns", type=int, nargs=2, default=[1, 2], help="of sentence and translation, from 1 (default: 1 2)"
    )
    parser.add_argument("--vocabulary", help="word pieces, one per line; not given: learnt from the pairs")
    parser.add_argument("--vocabulary_size", type=int, default=8000, help="pieces to learn (default: %(default)s)")
    parser.add_argument("--max_length", type=int, default=64, help="pieces of a sentence (default: %(default)s)")
    parser.add_argument("--output", required=True, help="folder of vocabulary and records")
    found = prepare(parser.parse_args(arguments))
    print(f"{found.pairs} pairs, {found.vocabulary} pieces in the vocabulary")


if __name__ == "__main__":
    main()
