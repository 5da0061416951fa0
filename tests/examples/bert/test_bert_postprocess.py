"""Answers from scores."""

import numpy as np
import pytest
import squad
from postprocess import Limits, candidates
from squad import Answer, Question, WindowSizes
from tokenization import SPECIAL, WordPieces

PIECES = WordPieces(list(SPECIAL) + list("abcdefghij"))


def windows_of(passage, length=32):
    asked = Question("1", "a", passage, (Answer("b", 0),))
    return list(squad.windows([asked], PIECES, WindowSizes(length, 2, 1)))


def scores(length, start, end):
    """Scores of 1 at the marked positions, else 0."""
    marks = np.zeros([2, length], np.float32)
    marks[0, start], marks[1, end] = 1, 1
    return marks[0], marks[1]


def best(passage, start, end, longest=30):
    found = candidates(windows_of(passage), [scores(32, start, end)], Limits(1, longest))
    return found[0].text if found else None


def test_the_answer_has_the_words_of_the_passage():
    assert best("A  B,\tÇ d", 4, 6) == "B,\tÇ"  # [CLS] a [SEP] A B , Ç


def test_an_answer_does_not_end_before_it_begins():
    assert best("a b c d", 5, 4) is None


def test_an_answer_is_not_too_long():
    assert best("a b c d", 3, 5, longest=3) == "a b c"
    assert best("a b c d", 3, 5, longest=2) is None


def test_question_separators_and_padding_are_no_answers():
    assert [best("a b", position, position) for position in (0, 1, 2, 5, 9)] == [None] * 5


def test_all_pairs_of_good_beginnings_and_ends_are_tried():
    starts, ends = np.zeros(32), np.zeros(32)
    starts[[5, 4]], ends[[3, 4]] = (9, 2), (9, 3)  # the best end lies before the best beginning
    assert candidates(windows_of("a b c"), [(starts, ends)], Limits(2, 30))[0].text == "b"


def test_a_beginning_counts_only_in_the_window_that_shows_most_around_it():
    windows = windows_of("a b c d e f", length=8)  # a b c d; c d e f
    no, yes = np.zeros(8), np.eye(8)
    first = [(yes[6], yes[6]), (no, no)]  # d, at the edge of the first window
    second = [(no, no), (yes[4], yes[4])]  # d in the second
    assert candidates(windows, first, Limits(1, 5)) == []
    assert candidates(windows, second, Limits(1, 5))[0].text == "d"


def test_a_text_that_stands_there_twice_counts_with_its_better_place():
    for starts in (np.arange(32.0), -np.arange(32.0)):  # the passage is in 3 to 5
        found = candidates(windows_of("a a b"), [(starts, np.zeros(32))], Limits(32, 1))
        assert {one.text: one.score for one in found} == {"a": max(starts[3:5]), "b": starts[5]}


def test_probabilities_of_the_candidates_add_up():
    found = candidates(windows_of("a a b"), [(np.arange(32.0), np.zeros(32))], Limits(32, 2))
    assert sum(candidate.probability for candidate in found) == pytest.approx(1.0)
    assert [one.score for one in found] == sorted([one.score for one in found], reverse=True)
