"""Turns a SQuAD file into the windows that train.py reads.

python examples/bert/prepare.py --data train-v1.1.json --vocabulary vocab.txt --output train.tfrecord
"""

import argparse
import os
import sys
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import records
import squad
from tokenization import WordPieces, read_vocabulary


def add_window_options(parser: argparse.ArgumentParser) -> None:
    """Adds what decides how text becomes windows; the same values belong to training and to prediction."""
    sizes = squad.WindowSizes()
    parser.add_argument("--data", required=True, help="a file of SQuAD v1.1")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt of the model")
    parser.add_argument("--cased", action="store_true", help="the vocabulary has upper case and accents")
    parser.add_argument("--max_questions", type=int, help="take only the first ones")
    for name, value in sizes._asdict().items():
        parser.add_argument("--" + name, type=int, default=value, help="tokens (default: %(default)s)")


def window_sizes(options: argparse.Namespace) -> squad.WindowSizes:
    """Returns the sizes that the options say."""
    return squad.WindowSizes(*[getattr(options, name) for name in squad.WindowSizes._fields])


def questions_and_pieces(options: argparse.Namespace) -> Any:
    """Returns the questions and the tokenizer that the options name."""
    pieces = WordPieces(read_vocabulary(options.vocabulary), lower_case=not options.cased)
    return squad.read(options.data)[: options.max_questions], pieces


def main(arguments: Any = None) -> None:
    """Writes the records."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_window_options(parser)
    parser.add_argument("--output", required=True, help="the records, x.tfrecord; x.tfrecord.json is written beside it")
    options = parser.parse_args(arguments)
    questions, pieces = questions_and_pieces(options)
    misplaced = set(squad.misplaced(questions))
    if misplaced:
        message = "{} question(s) are left out: their answer does not stand where the file says, such as in {}."
        print(message.format(len(misplaced), min(misplaced)), file=sys.stderr)
    unanswered = [question.id for question in questions if not question.answers]
    if unanswered:
        message = "{} has {} question(s) without an answer, such as {}; training needs one for each."
        parser.error(message.format(options.data, len(unanswered), unanswered[0]))
    kept = [question for question in questions if question.id not in misplaced]
    sizes = window_sizes(options)
    summary = records.write(options.output, squad.windows(kept, pieces, sizes), sizes)
    print(f"{len(kept)} questions in {summary.windows} windows: {options.output}")


if __name__ == "__main__":
    main()
