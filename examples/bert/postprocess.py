"""From scores of tokens to answers in the words of the passage.

Owns the choice of spans over all windows of a question: a span lies in one window, in its passage, has at most so many
tokens, and begins with a token that no other window shows in more context. The answer is the piece of the original text
from the first character of the first token to the last of the last one.
"""

import math
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
from squad import Window


class Limits(NamedTuple):
    """How many answers are kept for a question, and how many tokens one may have."""

    n_best: int = 20
    max_answer_length: int = 30


DEFAULT_LIMITS = Limits()


class Candidate(NamedTuple):
    """A possible answer: its text, its score, and its share among the candidates that are kept."""

    text: str
    score: float
    probability: float


def candidates(
    windows: Sequence[Window], logits: Sequence[Tuple[np.ndarray, np.ndarray]], limits: Limits = DEFAULT_LIMITS
) -> List[Candidate]:
    """Returns the best answers to one question, best first; none when no window has a legal span.

    Args:
      windows: all windows of the question.
      logits: for each of them the scores of its tokens as first and as last token.
      limits: what is kept.
    """
    best: Dict[str, float] = {}
    for window, (starts, ends) in zip(windows, logits):
        for text, score in _spans(window, windows, starts, ends, limits):
            if score > best.get(text, -math.inf):
                best[text] = score
    kept = sorted(best.items(), key=lambda item: -item[1])[: limits.n_best]
    weights = [math.exp(score - kept[0][1]) for _, score in kept]
    return [Candidate(text, score, weight / sum(weights)) for (text, score), weight in zip(kept, weights)]


def _spans(
    window: Window, others: Sequence[Window], starts: np.ndarray, ends: np.ndarray, limits: Limits
) -> Iterator[Tuple[str, float]]:
    """Yields text and score of the legal spans whose first and last token are among the best of the window."""
    passage = range(window.offset, window.offset + window.length)
    best_ends = [end for end in _best(ends, limits.n_best) if end in passage]
    for start in _best(starts, limits.n_best):
        if start not in passage or not window.is_best_for(window.first + start - window.offset, others):
            continue
        for end in best_ends:
            if start <= end < start + limits.max_answer_length:
                yield _text(window, start, end), float(starts[start] + ends[end])


def _best(scores: np.ndarray, count: int) -> List[int]:
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]


def _text(window: Window, start: int, end: int) -> str:
    first = window.tokens[window.first + start - window.offset]
    last = window.tokens[window.first + end - window.offset]
    return window.question.passage[first.start : last.end]
