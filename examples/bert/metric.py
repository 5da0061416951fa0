"""The official measure of SQuAD v1.1: exact match and F1, in percent.

    python examples/bert/metric.py dev-v1.1.json predictions.json

Owns how answers are compared (Rajpurkar et al., 2016, section 6.1): in lower case, without punctuation and articles, as
words. A question counts with the right answer that fits best; one that was not answered counts as 0.
"""

import argparse
import json
import re
import string
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from squad import Question, read

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(answer: str) -> List[str]:
    """Returns the words that count."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def exact_match(given: str, right: str) -> float:
    """Returns 1 if the answers have the same words in the same order, else 0."""
    return float(normalized(given) == normalized(right))


def f1(given: str, right: str) -> float:
    """Returns the harmonic mean of precision and recall of the words, each counted as often as it occurs."""
    given_words, right_words = normalized(given), normalized(right)
    common = sum((Counter(given_words) & Counter(right_words)).values())
    return 2.0 * common / (len(given_words) + len(right_words)) if common else 0.0


def evaluate(questions: Iterable[Question], predictions: Dict[str, str]) -> Tuple[Dict[str, float], List[str]]:
    """Returns `exact_match` and `f1` over all questions, in percent, and the ids of those that were not answered.

    Raises:
      ValueError: there is no question, or one without a right answer.
    """
    questions = list(questions)
    unknown = [question.id for question in questions if not question.answers]
    if unknown or not questions:
        raise ValueError(
            "{} question(s), {} of them without a right answer ({}); expected the answers of SQuAD v1.1.".format(
                len(questions), len(unknown), ", ".join(unknown[:3])
            )
        )
    answered = [question for question in questions if question.id in predictions]
    measures: Sequence[Tuple[str, Callable[[str, str], float]]] = (("exact_match", exact_match), ("f1", f1))
    totals = {
        name: sum(
            max(measure(predictions[question.id], right.text) for right in question.answers) for question in answered
        )
        for name, measure in measures
    }
    scores = {name: 100.0 * total / len(questions) for name, total in totals.items()}
    return scores, [question.id for question in questions if question.id not in predictions]


def main(arguments: Any = None) -> None:
    """Prints the two figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", help="a file of SQuAD v1.1, with answers")
    parser.add_argument("predictions", help="JSON: question id to answer")
    options = parser.parse_args(arguments)
    with open(options.predictions, encoding="utf-8") as source:
        scores, unanswered = evaluate(read(options.data), json.load(source))
    if unanswered:
        print(f"{len(unanswered)} question(s) are not answered and count as 0, such as {unanswered[0]}.")
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
