"""The launch scripts train a model that answers its own questions: real launcher, training, prediction and measure."""

import json
import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BERT = os.path.join(ROOT, "examples", "bert")
SMALL_SET = os.path.join(BERT, "data", "small-v1.1.json")
OTHERS = ["dp.sh", "auto_pipeline.sh"]
QUESTIONS = 16


def run(folder, command, settings=None):
    """Runs a command in a folder; returns its exit code and what it printed."""
    env = dict(os.environ, PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="", OUTPUT=str(folder / "run"), **settings or {})
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), ROOT]))
    done = subprocess.run(
        command, cwd=str(folder), env=env, timeout=1000, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def launch(folder, script, options=(), settings=None):
    """Runs a launch script; returns its exit code and what it printed."""
    return run(folder, [os.path.join(BERT, "scripts", script)] + list(options), settings)


def exact_match(output):
    return json.loads(output.strip().split("\n")[-1])["exact_match"]


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as source:
        return json.load(source)


@pytest.fixture
def small(tmp_path):
    """Settings for questions about the shortest passages, and a model that learns them in seconds."""
    parts = [part for article in read_json(SMALL_SET)["data"] for part in article["paragraphs"]]
    short = [part for part in parts if len(part["context"].split()) < 46]
    data, config = tmp_path / "train.json", tmp_path / "bert_config.json"
    data.write_text(json.dumps({"data": [{"title": "short", "paragraphs": short}]}))
    sizes = dict(read_json(BERT, "configs", "tiny.json"), hidden_size=64, intermediate_size=128)
    config.write_text(json.dumps(sizes))
    return {
        "TRAIN": str(data), "CONFIG": str(config), "MAX_QUESTIONS": str(QUESTIONS), "MAX_SEQ_LENGTH": "112",
        "LEARNING_RATE": "2e-3", "EPOCHS": "60", "BATCH": "4", "MICRO_BATCHES": "2",
    }  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.parametrize("script", ["pipeline.sh"] + [pytest.param(name, marks=pytest.mark.long) for name in OTHERS])
def test_a_few_questions_are_learnt(script, small, tmp_path):
    code, output = launch(tmp_path, script, ["--seed", "1"], small)
    assert code == 0 and "step 120 of 120: loss 0." in output, output
    assert exact_match(output) > 90.0, output
    assert len(read_json(str(tmp_path), "run", "n_best.json")) == QUESTIONS


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", ["pipeline.sh"] + OTHERS)
def test_the_whole_small_set_is_learnt(script, tmp_path):
    code, output = launch(tmp_path, script, ["--seed", "1"])
    assert code == 0 and exact_match(output) > 90.0, output


@pytest.mark.long
def test_training_goes_on_from_its_last_checkpoint(small, tmp_path):
    windows = str(tmp_path / "train.tfrecord")
    vocabulary = os.path.join(BERT, "data", "vocab.txt")
    prepare = [sys.executable, os.path.join(BERT, "prepare.py"), "--data", small["TRAIN"], "--vocabulary", vocabulary]
    assert run(tmp_path, prepare + ["--max_questions", "16", "--max_seq_length", "112", "--output", windows])[0] == 0
    train = [sys.executable, os.path.join(BERT, "train.py"), "--records", windows, "--config", small["CONFIG"]]
    train += ["--output", str(tmp_path / "model"), "--log_steps", "1"]
    _, first = run(tmp_path, train + ["--epochs", "1"])
    _, second = run(tmp_path, train + ["--epochs", "2"])
    assert "step 2 of 2: loss" in first, first
    assert "step 4 of 4: loss" in second and "step 2 of 4" not in second, second


def test_more_stages_than_layers_end_the_job_with_the_numbers(small, tmp_path):
    code, output = launch(tmp_path, "pipeline.sh", settings=dict(small, STAGES="3"))
    assert code != 0 and "2 layers cannot be dealt over 3 stages; choose 1 to 2 stages" in output, output


def test_the_real_data_needs_both_folders(tmp_path):
    code, output = launch(tmp_path, "dp.sh", settings={"BERT_DIR": str(tmp_path)})
    assert code != 0 and "SQUAD_DIR must name the folder of train-v1.1.json" in output, output
