"""What prepare.py leaves out or refuses, and what predict.py makes of a checkpoint."""

import argparse
import json

import ask
import best_checkpoint
import export
import model
import numpy as np
import postprocess
import predict
import prepare
import pytest
import records
import squad
import tensorflow.compat.v1 as tf
import train
from model import BertConfig, Inputs
from squad import Answer, Question, WindowSizes
from tokenization import SPECIAL, WordPieces

LIMITS = postprocess.DEFAULT_LIMITS
PIECES = list(SPECIAL) + list("abcd?")
RIGHT = {"id": "1", "question": "a?", "answers": [{"text": "c", "answer_start": 2}]}
MISPLACED = {"id": "2", "question": "b?", "answers": [{"text": "c", "answer_start": 0}]}


def prepared(tmp_path, *entries):
    """Runs prepare.py on a passage with these questions; returns the records' summary."""
    data, vocabulary, output = (str(tmp_path / name) for name in ("data.json", "vocab.txt", "x.tfrecord"))
    with open(data, "w") as target:
        json.dump({"data": [{"paragraphs": [{"context": "b c d", "qas": entries}]}]}, target)
    with open(vocabulary, "w") as target:
        target.write("\n".join(PIECES) + "\n")
    sizes = ["--max_seq_length", "12", "--max_query_length", "3"]
    prepare.main(["--data", data, "--vocabulary", vocabulary, "--output", output] + sizes)
    return records.summary(output)


def test_a_question_whose_answer_stands_elsewhere_is_left_out_with_a_word(tmp_path, capsys):
    assert prepared(tmp_path, RIGHT, MISPLACED).windows == 1
    assert "1 question(s) are left out" in capsys.readouterr().err


def test_training_questions_without_an_answer_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        prepared(tmp_path, RIGHT, {"id": "3", "question": "b?"})
    assert "has 1 question(s) without an answer, such as 3" in capsys.readouterr().err


@pytest.fixture
def trained(tmp_path):
    """A configuration with dropout, and a folder with a checkpoint of random weights of it."""
    config = BertConfig(len(PIECES), 8, 1, 2, 16, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    with tf.Session() as session:
        model.span_logits(config, Inputs(*[tf.zeros([1, 12], tf.int32)] * 3))
        tf.train.get_or_create_global_step()
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), 7)
    return config, str(tmp_path)


def windows():
    questions = [Question(name, name + "?", "b c d", (Answer("c", 2),)) for name in "abc"]
    return list(squad.windows(questions, WordPieces(PIECES), WindowSizes(12, 4, 3)))


def test_scores_are_without_dropout_and_do_not_depend_on_the_batch(trained):
    config, folder = trained
    path = best_checkpoint.find_checkpoint(folder)
    one, other = (predict.score(config, path, windows(), batch_size) for batch_size in (3, 2))
    assert len(one) == len(other) == 3
    np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-5, atol=1e-6)


def test_answers_of_a_saved_model_are_those_of_its_checkpoint(trained, tmp_path, capsys):
    config, folder = trained
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(config._asdict()))
    saved = str(tmp_path / "saved")
    options = ["--config", str(tmp_path / "config.json"), "--checkpoint", folder, "--output", saved]
    export.main(options + ["--vocabulary", str(tmp_path / "vocab.txt"), "--max_seq_length", "12"])
    asked = [Question("asked", "a?", "b c d", ())]
    shown = list(squad.windows(asked, WordPieces(PIECES), WindowSizes(12, 4, 3)))
    expected = predict.answer(shown, predict.score(config, best_checkpoint.find_checkpoint(folder), shown, 1), LIMITS)[
        "asked"
    ]
    found = ask.ask(saved, "a?", "b c d")
    assert [one.text for one in found] == [one.text for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], rtol=1e-5)
    capsys.readouterr()
    ask.main(["--saved_model", saved, "--question", "a?", "--passage", "b c d", "--answers", "2"])
    printed = [json.loads(line) for line in capsys.readouterr().out.strip().split("\n")]
    assert [one["answer"] for one in printed] == [one.text for one in expected[:2]]


def test_an_export_knows_whether_the_vocabulary_is_cased(trained, tmp_path):
    config, folder = trained
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES + ["A"]) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(dict(config._asdict())))
    saved = str(tmp_path / "saved")
    options = ["--config", str(tmp_path / "config.json"), "--checkpoint", folder, "--output", saved, "--cased"]
    export.main(options + ["--vocabulary", str(tmp_path / "vocab.txt"), "--max_seq_length", "12"])
    assert [token.text for token in export.read_tokenizer(saved).tokenize("A a")] == ["A", "a"]


def test_questions_to_evaluate_need_their_vocabulary(capsys):
    with pytest.raises(SystemExit):
        train.parse(["--records", "r", "--config", "c", "--output", "o", "--eval_data", "dev.json"])
    assert "--eval_data needs --vocabulary" in capsys.readouterr().err


def test_questions_that_cannot_be_evaluated_are_refused_before_the_training(tmp_path):
    options = ["--records", "r", "--config", "c", "--output", "o", "--vocabulary", str(tmp_path / "vocab.txt")]
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    with pytest.raises(FileNotFoundError, match="dev.json"):
        train.Evaluation(train.parse([*options, "--eval_data", str(tmp_path / "dev.json")]))
    unanswered = {"context": "b c d", "qas": [{"id": "3", "question": "b?"}]}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": [unanswered]}]}))
    with pytest.raises(ValueError, match=r"1 of them without a right answer \(3\)"):
        train.Evaluation(train.parse([*options, "--eval_data", str(tmp_path / "dev.json")]))


@pytest.mark.parametrize("variant, windows_of_run", [("dp", 16), ("zero", 16), ("pipeline", 32), ("auto", 32)])
def test_a_run_takes_all_micro_batches_of_a_pipeline_and_one_without_stages(variant, windows_of_run, monkeypatch):
    env = argparse.Namespace(cluster=argparse.Namespace(total_gpu_num=2))
    monkeypatch.setattr(train.epl.Env, "get", lambda: env)
    options = train.parse(["--records", "r", "--config", "c", "--output", "o", "--variant", variant])
    options.num_micro_batch = 4
    assert train.run_size(options) == windows_of_run
