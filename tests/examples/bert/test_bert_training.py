"""The launch scripts train a model that answers its own questions: real launcher, training, prediction and measure."""

import json
import os
import re
import subprocess
import sys

import ask
import pytest

from tests.profiler import event_files

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BERT = os.path.join(ROOT, "examples", "bert")
SMALL_SET = os.path.join(BERT, "data", "small-v1.1.json")
OTHERS = ["dp.sh", "zero.sh", "auto_pipeline.sh"]
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
        "LEARNING_RATE": "2e-3", "BATCH": "4", "MICRO_BATCHES": "2",
    }  # fmt: skip


def first_question(small):
    """The first question that is learnt, and its passage."""
    passage = read_json(small["TRAIN"])["data"][0]["paragraphs"][0]
    return passage["qas"][0]["question"], passage["context"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "script, steps", [("pipeline.sh", 40)] + [pytest.param(name, 120, marks=pytest.mark.long) for name in OTHERS]
)
def test_a_few_questions_are_learnt(script, steps, small, tmp_path):
    settings = dict(small, EPOCHS=str(steps // 2), SAVE_STEPS=str(steps // 2))
    code, output = launch(tmp_path, script, ["--seed", "1"], settings)
    assert code == 0 and f"step {steps} of {steps}: loss 0." in output, output
    assert exact_match(output) > 90.0, output
    assert "is deprecated" not in output and ": I tensorflow" not in output
    assert len(read_json(str(tmp_path), "run", "n_best.json")) == QUESTIONS
    measured = {int(step): float(f1) for step, f1 in re.findall(r"evaluated after step (\d+): .*f1 ([\d.]+)", output)}
    best = read_json(str(tmp_path), "run", "model", "best", "best.json")
    assert sorted(measured) == [steps // 2, steps]
    assert best["measures"]["f1"] == pytest.approx(max(measured.values()), rel=1e-3)
    assert set(event_files.values(tmp_path / "run" / "model")) >= {"epl/loss", "epl/samples_per_second", "eval/f1"}
    assert ask.ask(str(tmp_path / "run" / "saved_model"), *first_question(small))[0].text


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", ["pipeline.sh"] + OTHERS)
def test_the_whole_small_set_is_learnt(script, tmp_path):
    code, output = launch(tmp_path, script, ["--seed", "1"])
    assert code == 0 and exact_match(output) > 90.0, output


@pytest.mark.long
def test_training_goes_on_from_its_last_checkpoint(small, tmp_path):
    worker = [os.path.join(BERT, "scripts", "train_bert_base_dp.sh"), "--seed", "1"]
    few = dict(small, SAVE_STEPS="2")
    _, first = run(tmp_path, worker, dict(few, EPOCHS="1"))
    _, second = run(tmp_path, worker, dict(few, EPOCHS="2"))
    assert "step 4 of 4: loss" in first and "goes on" not in first and first.count("16 windows") == 1, first
    assert "goes on from step 4 of 8" in second and "step 8 of 8: loss" in second, second
    assert "windows" not in second  # they are not made again
    steps = re.findall(r"evaluated after step (\d+)", first + second)
    assert steps == ["2", "4", "6", "8"]


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("starter", ["ssh", "srun"])
def test_workers_of_two_machines_train_by_the_same_script(starter, small, tmp_path):
    stand_ins = os.path.join(ROOT, "tests", {"ssh": "launcher", "srun": "cluster"}[starter], "stand_ins")
    settings = dict(
        small, EPOCHS="4", PATH=stand_ins + os.pathsep + os.environ["PATH"], SSH_CALLS=str(tmp_path / "calls")
    )
    if starter == "ssh":
        names = [word for name in [*small, "EPOCHS", "OUTPUT"] for word in ("-x", name)]
        command = [os.path.join(ROOT, "tools", "epl-launch"), "-H", "127.0.0.2:1,127.0.0.3:1", "--gpu_per_worker", "1"]
        command += names + ["--show_all", os.path.join(BERT, "scripts", "train_bert_base_dp.sh")]
    else:
        (tmp_path / "examples").symlink_to(os.path.join(ROOT, "examples"))
        with open(os.path.join(BERT, "scripts", "train.sbatch"), encoding="utf-8") as source:
            script = source.read().replace("srun --kill-on-bad-exit=1", "srun -n 2 -w 127.0.0.[1-2]")
        (tmp_path / "job").write_text(script)
        command = ["bash", str(tmp_path / "job"), "train_bert_base_dp.sh"]
    code, output = run(tmp_path, command, settings)
    assert code == 0 and "step 8 of 8: loss" in output, output
    assert output.count("16 questions in 16 windows") == 1  # one of the two prepares
    assert output.count("evaluated after step 8") == 1


@pytest.mark.long
def test_more_stages_than_layers_end_the_job_with_the_numbers(small, tmp_path):
    code, output = launch(tmp_path, "pipeline.sh", settings=dict(small, STAGES="3"))
    assert code != 0 and "2 layers cannot be dealt over 3 stages; choose 1 to 2 stages" in output, output


def test_the_real_data_needs_both_folders(tmp_path):
    code, output = launch(tmp_path, "dp.sh", settings={"BERT_DIR": str(tmp_path)})
    assert code != 0 and "SQUAD_DIR must name the folder of train-v1.1.json" in output, output
