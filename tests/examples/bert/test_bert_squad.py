"""The file format, the windows, and where the answers lie in them."""

import json
import os

import pytest
import squad
from squad import Answer, Question, WindowSizes
from tokenization import SPECIAL, WordPieces, read_vocabulary

LETTERS = "abcdefghijklmnop"
PIECES = WordPieces(list(SPECIAL) + list(LETTERS))
PASSAGE = " ".join(LETTERS)  # sixteen tokens


def question(answer="", passage=PASSAGE, text="a b"):
    answers = (Answer(answer, passage.index(answer)),) if answer else ()
    return Question("1", text, passage, answers)


def windows(asked, length=10, stride=3):
    return list(squad.windows([asked], PIECES, WindowSizes(length, stride, 4)))


def texts(window):
    vocabulary = list(SPECIAL) + list(LETTERS)
    return " ".join(vocabulary[number] for number in window.input_ids)


def write(tmp_path, content):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_file_is_read(tmp_path):
    entry = {"id": "x", "question": " Who? ", "answers": [{"text": "b", "answer_start": 2}]}
    path = write(tmp_path, {"data": [{"paragraphs": [{"context": "a b", "qas": [entry]}]}]})
    assert squad.read(path) == [Question("x", "Who?", "a b", (Answer("b", 2),))]


def test_another_format_is_refused(tmp_path):
    path = write(tmp_path, {"data": [{"paragraphs": [{"text": "a b"}]}]})
    with pytest.raises(ValueError, match=r"not in the format of SQuAD v1.1: after 0 question.*'qas' is missing"):
        squad.read(path)


def test_an_answer_that_stands_elsewhere_is_found():
    wrong = Question("w", "?", "a b", (Answer("b", 1),))
    assert squad.misplaced([question("b"), wrong]) == ["w"]


def test_a_short_passage_is_one_window_with_padding():
    (window,) = windows(question(passage="c d"))
    assert texts(window) == "[CLS] a b [SEP] c d [SEP] [PAD] [PAD] [PAD]"
    assert window.input_mask == (1,) * 7 + (0,) * 3
    assert window.segment_ids == (0,) * 4 + (1,) * 3 + (0,) * 3


def test_a_long_passage_is_cut_into_windows_that_overlap():
    assert [texts(window).split(" ", 4)[4] for window in windows(question())] == [
        "a b c d e [SEP]",
        "d e f g h [SEP]",
        "g h i j k [SEP]",
        "j k l m n [SEP]",
        "m n o p [SEP] [PAD]",
    ]


def test_a_long_question_is_cut():
    (window,) = windows(question(passage="c", text="a b c d e f"))
    assert texts(window).startswith("[CLS] a b c d [SEP] c [SEP]")


def test_the_answer_is_marked_in_the_windows_that_hold_all_of_it():
    found = [(window.start_position, window.end_position) for window in windows(question("g h"))]
    assert found == [(0, 0), (7, 8), (4, 5), (0, 0), (0, 0)]


def test_an_answer_within_a_word_marks_the_word():
    pieces = WordPieces(list(SPECIAL) + ["1", "##980", "s"])
    asked = Question("1", "", "1 1980s", (Answer("1980", 2),))
    unknown = Question("2", "", "1 1980", (Answer("98", 3),))
    one, other = squad.windows([asked, unknown], pieces, WindowSizes(10, 3, 4))
    assert (one.start_position, one.end_position) == (3, 3)  # 1980s is one unknown word
    assert (other.start_position, other.end_position) == (4, 4)  # ##980


def test_a_token_belongs_to_the_window_that_shows_most_around_it():
    found = windows(question())
    best = [[window.is_best_for(token, found) for window in found].index(True) for token in range(16)]
    assert best == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_of_equal_contexts_the_longer_window_is_better():
    (window,) = windows(question(passage="c d e"))
    assert window.context_of(1) < window._replace(length=4).context_of(1) < 2


def test_an_answer_beside_a_mark_is_the_word_alone():
    pieces = WordPieces(list(SPECIAL) + ["(", "x", ")"])
    (window,) = squad.windows([Question("1", "", "(x)", (Answer("x", 1),))], pieces, WindowSizes(10, 3, 4))
    assert (window.start_position, window.end_position) == (3, 3)


def test_windows_without_room_are_refused():
    with pytest.raises(ValueError, match="make max_seq_length larger"):
        windows(question(), length=7)


def test_every_answer_of_the_set_that_ships_stands_where_it_says(bert_folder):
    questions = squad.read(os.path.join(bert_folder, "data", "small-v1.1.json"))
    assert squad.misplaced(questions) == []
    assert 100 <= len(questions) == len({asked.id for asked in questions}) == len({asked.text for asked in questions})
    assert all(asked.answers for asked in questions)


def test_marked_tokens_of_the_set_that_ships_are_the_answer(bert_folder):
    data = os.path.join(bert_folder, "data")
    pieces = WordPieces(read_vocabulary(os.path.join(data, "vocab.txt")))
    questions = squad.read(os.path.join(data, "small-v1.1.json"))
    marked = set()
    for window in squad.windows(questions, pieces, WindowSizes(128, 64, 24)):
        if window.start_position:
            first, last = (
                window.tokens[window.first + place - window.offset]
                for place in (window.start_position, window.end_position)
            )
            assert window.question.passage[first.start : last.end] == window.question.answers[0].text
            marked.add(window.question.id)
    assert len(marked) == len(questions)
