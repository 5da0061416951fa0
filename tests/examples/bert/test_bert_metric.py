"""The official measure."""

import json

import metric
import pytest
from squad import Answer, Question


def question(name, *answers):
    return Question(name, "?", "", tuple(Answer(answer, 0) for answer in answers))


@pytest.mark.parametrize(
    "given, right, exact",
    [
        ("The  Union", "union", 1.0),
        ("a U.S. law!", "US Law", 1.0),
        ("an apple", "theapple", 0.0),
        ("theory", "ory", 0.0),
        ("law the union", "union law", 0.0),
        ("Ünion", "union", 0.0),
    ],
)
def test_exact_match_ignores_case_punctuation_articles_and_white_space(given, right, exact):
    assert metric.exact_match(given, right) == exact


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    # Two of three given words are right, two of four right words are given.
    assert metric.f1("big red car", "red old car there") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))


def test_a_word_given_twice_counts_twice_only_if_it_is_there_twice():
    assert metric.f1("red red", "red car") == pytest.approx(0.5)
    assert metric.f1("red red", "red red car") == pytest.approx(0.8)


def test_no_word_in_common_is_zero():
    assert metric.f1("red", "car") == metric.f1("the", "a") == 0.0


def test_the_best_of_the_right_answers_counts():
    scores, _ = metric.evaluate([question("1", "red", "red car")], {"1": "red car"})
    assert scores == {"exact_match": 100.0, "f1": 100.0}


def test_an_unanswered_question_counts_as_zero():
    scores, unanswered = metric.evaluate([question("1", "a b"), question("2", "c")], {"1": "b c"})
    assert unanswered == ["2"]
    assert scores["exact_match"] == 0.0 and scores["f1"] == pytest.approx(100 * (2 / 3) / 2)


def test_questions_without_right_answers_are_refused():
    with pytest.raises(ValueError, match=r"1 question.s., 1 of them without a right answer \(7\)"):
        metric.evaluate([question("7")], {})


def test_the_command_prints_both_figures(tmp_path, capsys):
    entry = {"id": "x", "question": "?", "answers": [{"text": "b", "answer_start": 2}]}
    data, answers = tmp_path / "data.json", tmp_path / "answers.json"
    data.write_text(json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [entry]}]}]}))
    answers.write_text(json.dumps({"x": "the b."}))
    metric.main([str(data), str(answers)])
    assert json.loads(capsys.readouterr().out) == {"exact_match": 100.0, "f1": 100.0}
