"""The Estimator and the model of tf.keras: as their page shows them, continued, and as a job of Slurm."""

import importlib
import os
import re
import subprocess
import sys

import pytest

from tests.examples import slurm
from tests.tensorflows import WITH_ESTIMATOR

ROOT = slurm.ROOT
PAGE = os.path.join(ROOT, "examples", "estimator_keras", "README.md")


def shell(folder, command):
    """Runs a command of the page in a folder with the examples; returns what it printed."""
    path = os.pathsep.join([os.path.join(ROOT, "tools"), os.path.dirname(sys.executable), os.environ["PATH"]])
    env = dict(os.environ, PATH=path, PYTHON=sys.executable, PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(
        ["bash", "-c", command], cwd=str(folder), env=env, timeout=200, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def commands(script):
    """The commands that the page shows for a script, training and prediction."""
    with open(PAGE, encoding="utf-8") as source:
        first = re.findall(r"^```sh\n(.*?)^```$", source.read(), re.MULTILINE | re.DOTALL)[0]
    (block,) = [block for block in first.split("\n\n") if script in block]
    return block.strip().split("\n")


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "script,short",
    [pytest.param("train_estimator.py", "--steps 4", marks=WITH_ESTIMATOR), ("train_keras.py", "--epochs 1")],
)
def test_a_few_steps_on_two_devices_leave_a_model(tmp_path, script, short):
    train, predict = commands(script)
    folder = slurm.checkout(tmp_path)
    shown = shell(folder, train.replace("--num_workers 2", "--num_workers 1") + " " + short)
    assert "evaluated after" in shown and "deprecated" not in shown
    assert re.search(r"accuracy 0\.\d+$", shell(folder, predict).strip())


def test_a_run_that_ended_no_epoch_is_begun_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, "examples", "estimator_keras"))
    train_keras = importlib.import_module("train_keras")
    (tmp_path / "history.csv").write_text("")  # CSVLogger makes it before the first epoch
    assert train_keras.read_history(str(tmp_path / "history.csv")) == (0, float("inf"))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "script,more,goes_on",
    [
        pytest.param("train_estimator.py", "--steps 700", "goes on from step 600 of 700", marks=WITH_ESTIMATOR),
        ("train_keras.py", "--epochs 22", "goes on from step 220 of 242"),
    ],
)
def test_the_commands_as_they_stand_and_continued(tmp_path, script, more, goes_on):
    train, predict = commands(script)
    folder = slurm.checkout(tmp_path)
    shown = shell(folder, train)
    assert "goes on" not in shown and len(re.findall(r"evaluated after", shown)) >= 3
    assert float(shell(folder, predict).strip().split()[-1]) > 0.95
    events = [name for _, _, names in os.walk(str(folder / "experiments")) for name in names if "tfevents" in name]
    assert events
    assert goes_on in shell(folder, f"{train} {more}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "script,short",
    [
        pytest.param("train_estimator.py", ("--steps", "4"), marks=WITH_ESTIMATOR),
        pytest.param("train_keras.py", ("--epochs", "1"), marks=pytest.mark.long),
    ],
)
def test_the_slurm_script_trains_one_job(tmp_path, script, short):
    folder = slurm.checkout(tmp_path)
    job = ["examples/estimator_keras/train.sbatch", f"examples/estimator_keras/{script}", "--output", "model"]
    shown = slurm.sbatch(folder, *job, *short)
    assert "has started 2 tasks, which are one job" in shown and "0: EPL: 2 replicas" in shown
    assert os.path.isdir(str(folder / "model" / "export"))
