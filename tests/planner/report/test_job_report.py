"""`auto.explain`: worker 0 tells the plan of a job when it is made, and the training goes on whatever happens."""

import json
import os

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.planner.report import job_report
from epl.utils.errors import ConfigError
from tests.parallel.in_process import Linear, init  # noqa: F401


def _train(steps=1):
    model = Linear()
    model.minimize()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return [session.run([model.loss, model.train_op], model.feed())[0] for _ in range(steps)]


def test_text_goes_to_standard_error_once(init, capsys):  # noqa: F811
    init(2, auto__explain="Text", zero__level="v1")
    losses = _train(steps=2)
    out, error = capsys.readouterr()
    assert losses[1] < losses[0] and out == ""
    assert error.count("Simulation:") == 1 and "Strategy:" in error and "TaskGraphs" in error
    assert "the estimate of memory above does not know its speed" in error and " \n" not in error
    assert "what each feature buys" in error and "ZeRO v1" in error


@pytest.mark.parametrize("name", ["plan.json", "plan.html", "PLAN.HTML"])
def test_files(init, tmp_path, capsys, name):  # noqa: F811
    init(2, auto__explain=str(tmp_path / name))
    _train()
    text = (tmp_path / name).read_text()
    if name.endswith("json"):
        told = json.loads(text)
        assert told["format"] == "epl-plan" and len(told["simulation"]["devices"]) == 1
        assert {one["decision"] for one in told["decisions"]} >= {"blocks", "zero.level"}
        assert [one["feature"] for one in told["features"]] == ["gradients overlap backward"]
    else:
        assert text.startswith("<!DOCTYPE html>") and "What each feature buys" in text
    assert f"{name}: the plan (auto.explain)" in capsys.readouterr().err


def test_a_search_is_told_with_its_candidates(init, tmp_path):  # noqa: F811
    path = tmp_path / "plan.json"
    init(2, annotate=False, auto__explain=str(path), auto__planner="search", auto__machine="2*v100-16", auto__rows=8)
    _train()
    told = json.loads(path.read_text())
    assert any(one["chosen"] for one in told["candidates"])
    assert any(one["runner_up"] for one in told["decisions"])


def test_what_is_not_simulated_is_told_all_the_same(init, capsys):  # noqa: F811
    init(3, annotate=False, auto__explain="text")
    x = tf.placeholder(tf.float32, [None, 3])
    with epl.replicate(2):
        hidden = tf.layers.dense(x, 4)
    with epl.replicate(1):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op, {x: [[1.0, 2.0, 3.0]] * 2})
    told = capsys.readouterr().err
    assert "not simulated: not available yet: the prediction of scopes of epl.replicate with different numbers" in told


def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_built(init, tmp_path):  # noqa: F811
    with pytest.raises(ConfigError, match="and there is no such folder: make the folder, or name another file"):
        init(2, auto__explain=str(tmp_path / "none" / "plan.html"))
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ConfigError, match="nothing can be written there"):
        init(2, auto__explain=str(tmp_path / "folder.html"))


def test_what_goes_wrong_later_is_a_warning(init, tmp_path, caplog, monkeypatch):  # noqa: F811
    folder = tmp_path / "folder"
    folder.mkdir()
    init(2, auto__explain=str(folder / "plan.html"))
    os.rmdir(folder)
    assert len(_train(steps=2)) == 2
    assert "EPL could not tell the plan, auto.explain" in caplog.text and "FileNotFoundError" in caplog.text
    caplog.clear()
    init(2, auto__explain="text")
    monkeypatch.setattr(job_report, "simulate_plan", lambda *unused: 1 / 0)
    assert len(_train()) == 1 and "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("value", ["plan.txt", "yes", ".", 1, True, None])
def test_other_values_are_refused(value):
    with pytest.raises(ConfigError, match='expected "text", the path of a file that ends in .html or .json'):
        epl.Config({"auto.explain": value})
