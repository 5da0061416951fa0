"""The launch scripts train a model that knows its sentences by heart: real launcher, training and translation."""

import json
import os
import re
import subprocess
import sys

import pytest
import translate_sentence


def launch(folder, moe_folder, script, options=(), settings=None):
    """Runs a launch script; returns the losses that it printed, and what is right of the translations."""
    env = dict(os.environ, PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="", OUTPUT=str(folder / "run"), **settings or {})
    done = subprocess.run(
        [os.path.join(moe_folder, "scripts", script)] + list(options), cwd=str(folder), env=env, timeout=1000,
        check=False, universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    losses = [float(loss) for loss in re.findall(r"step \d+ of \d+: loss ([0-9.]+)", done.stdout)]
    return losses, json.loads(done.stdout.strip().split("\n")[-1])


@pytest.fixture
def small(tmp_path, moe_folder):
    """Settings for the shortest sentences, which a model learns in seconds."""
    with open(os.path.join(moe_folder, "data", "verses.tsv"), encoding="utf-8") as source:
        lines = sorted(source.read().strip().split("\n"), key=len)[:24]
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("\n".join(lines), encoding="utf-8")
    sizes = {"WIDTH": "32", "HEADS": "4", "HIDDEN": "64", "LAYERS": "2", "EXPERTS": "4", "VOCABULARY_SIZE": "300"}
    return dict(sizes, PAIRS=str(pairs), BATCH="6", EPOCHS="60")


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("script", ["moe.sh", "moe_zero.sh"])
def test_a_few_sentences_are_learnt(script, small, tmp_path, moe_folder):
    options = ["--seed", "1", "--learning_rate", "5e-3", "--warm_up", "30", "--dropout", "0"]
    losses, right = launch(tmp_path, moe_folder, script, options, small)
    assert losses[0] > 4.0 and losses[-1] < 1.0
    assert right["sentences"] == 24 and right["pieces_right"] > 0.8
    with open(str(tmp_path / "run" / "translations.txt"), encoding="utf-8") as source:
        assert len(source.read().strip().split("\n")) == 24
    with open(str(tmp_path / "run" / "model" / "best" / "best.json"), encoding="utf-8") as source:
        best = json.load(source)
    assert best["evaluated"] == 120 and best["measures"]["pieces_right"] == pytest.approx(right["pieces_right"])
    with open(small["PAIRS"], encoding="utf-8") as source:
        sentences = [line.split("\t")[0] for line in source]
    with open(str(tmp_path / "run" / "translations.txt"), encoding="utf-8") as source:
        expected = source.read().strip("\n").split("\n")
    assert translate_sentence.translations(str(tmp_path / "run" / "saved_model"), sentences) == expected


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script,gate", [("dp.sh", "top2"), ("moe.sh", "top2"), ("moe.sh", "switch")])
def test_the_scripts_as_they_stand(script, gate, tmp_path, moe_folder):
    losses, right = launch(tmp_path, moe_folder, script, ["--seed", "1"], {"GATE": gate})
    assert losses[0] > 6.0 and losses[-1] < 0.5
    assert right["pieces_right"] > 0.9 and right["sentences_right"] > 0.8


@pytest.mark.long
@pytest.mark.timeout(600)
def test_float16_and_processes(small, tmp_path, moe_folder):
    options = ["--seed", "1", "--learning_rate", "5e-3", "--warm_up", "30", "--dropout", "0", "--fp16"]
    _, right = launch(tmp_path, moe_folder, "moe.sh", options, dict(small, WORKERS="2", DEVICES="1"))
    assert right["pieces_right"] > 0.8
