"""SQuAD v1.1: the questions of a JSON file, and the windows of tokens that the model reads.

Owns the file format and its checks, the cutting of a passage that is too long into overlapping windows, and where the
answer lies in each. Text to tokens is left to `tokenization.py`, and answers from scores to `postprocess.py`.

    [CLS] question [SEP] passage tokens first ... first + length - 1 [SEP] [PAD] ...
    segment 0 ---------> 1 ------------------------------------------> 0
                         ^ offset
"""

import json
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tokenization import CLASS, PAD, SEPARATOR, Token, WordPieces


class Answer(NamedTuple):
    """A right answer, and the character of the passage at which it starts."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a passage."""

    id: str
    text: str
    passage: str
    answers: Tuple[Answer, ...]


class WindowSizes(NamedTuple):
    """How many tokens a window has in all, by how many windows are apart, and how many a question may have."""

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64


class Window(NamedTuple):
    """What the model reads at once: a question and a part of its passage."""

    question: Question
    tokens: Tuple[Token, ...]  # all of the passage
    first: int  # the first token of the passage in this window
    length: int  # and how many there are
    offset: int  # where they begin in the window
    input_ids: Tuple[int, ...]
    input_mask: Tuple[int, ...]
    segment_ids: Tuple[int, ...]
    start_position: int  # of the answer in the window; 0 ([CLS]) where the window does not hold it
    end_position: int

    def is_best_for(self, token: int, others: Sequence["Window"]) -> bool:
        """Whether no other window of the question shows more of the passage on both sides of a token."""
        return self is max(others, key=lambda window: window.context_of(token))

    def context_of(self, token: int) -> float:
        """Returns how much of the passage this window shows around one of its tokens; below 0 without that token.

        The shorter side counts; among equals the longer window is a little better.
        """
        if not self.first <= token < self.first + self.length:
            return -1.0
        return min(token - self.first, self.first + self.length - 1 - token) + 0.01 * self.length


def read(path: str) -> List[Question]:
    """Returns the questions of a file in the format of SQuAD v1.1; without answers, `answers` is empty.

    Raises:
      ValueError: the file is no SQuAD file; the message names the place.
    """
    with open(path, encoding="utf-8") as source:
        content = json.load(source)
    questions: List[Question] = []
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                questions.extend(_questions(paragraph))
    except (KeyError, TypeError) as error:
        raise ValueError(
            "{} is not in the format of SQuAD v1.1: after {} question(s), {!r} is missing or of another kind. Expected "
            "data > paragraphs > context, qas > id, question, answers > text, answer_start.".format(
                path, len(questions), error.args[0]
            )
        ) from error
    return questions


def _questions(paragraph: Dict[str, Any]) -> Iterator[Question]:
    for entry in paragraph["qas"]:
        answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in entry.get("answers", ()))
        yield Question(entry["id"], entry["question"].strip(), paragraph["context"], answers)


def misplaced(questions: Sequence[Question]) -> List[str]:
    """Returns the ids of the questions of which an answer does not stand where the file says."""
    return [
        question.id
        for question in questions
        if any(not question.passage.startswith(answer.text, answer.start) for answer in question.answers)
    ]


def windows(questions: Sequence[Question], pieces: WordPieces, sizes: WindowSizes) -> Iterator[Window]:
    """Yields the windows of all questions, those of one question in the order of its passage.

    Raises:
      ValueError: the sizes leave no room for the passage.
    """
    if sizes.max_seq_length <= sizes.max_query_length + 3 or sizes.doc_stride < 1:
        raise ValueError(
            "a window of {0.max_seq_length} tokens with up to {0.max_query_length} of a question and 3 separators has "
            "no room for a passage, or the stride {0.doc_stride} is below 1; make max_seq_length larger.".format(sizes)
        )
    passage = ""
    tokens: Tuple[Token, ...] = ()
    for question in questions:
        if question.passage != passage:  # a file has the questions of a passage in a row
            passage, tokens = question.passage, tuple(pieces.tokenize(question.passage))
        yield from _windows_of(question, tokens, pieces, sizes)


def _windows_of(
    question: Question, tokens: Tuple[Token, ...], pieces: WordPieces, sizes: WindowSizes
) -> Iterator[Window]:
    asked = [token.text for token in pieces.tokenize(question.text)[: sizes.max_query_length]]
    head = [CLASS] + asked + [SEPARATOR]
    room = sizes.max_seq_length - len(head) - 1
    span = _answer_span(question, tokens)
    first = 0
    while True:
        length = min(room, len(tokens) - first)
        texts = head + [token.text for token in tokens[first : first + length]] + [SEPARATOR]
        padding = sizes.max_seq_length - len(texts)
        start, end = _positions(span, first, length, len(head))
        yield Window(
            question,
            tokens,
            first,
            length,
            len(head),
            tuple(pieces.id_of(text) for text in texts + [PAD] * padding),
            (1,) * len(texts) + (0,) * padding,
            (0,) * len(head) + (1,) * (length + 1) + (0,) * padding,
            start,
            end,
        )
        if first + length >= len(tokens):
            return
        first += min(length, sizes.doc_stride)


def _answer_span(question: Question, tokens: Sequence[Token]) -> Optional[Tuple[int, int]]:
    """The first and the last token of the first answer; None without an answer, or where it has no token."""
    if not question.answers:
        return None
    start = question.answers[0].start
    end = start + len(question.answers[0].text)
    inside = [number for number, token in enumerate(tokens) if token.start < end and token.end > start]
    return (inside[0], inside[-1]) if inside else None


def _positions(span: Optional[Tuple[int, int]], first: int, length: int, offset: int) -> Tuple[int, int]:
    if span is None or span[0] < first or span[1] >= first + length:
        return 0, 0
    return span[0] - first + offset, span[1] - first + offset
