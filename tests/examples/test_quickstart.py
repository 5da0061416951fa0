"""The quick start does what its page says."""

import difflib
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.examples import slurm

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUICKSTART = os.path.join(ROOT, "examples", "quickstart")

# What a run may print: titles and commands, the launcher, EPL's line, progress, results. On a slow machine there are
# more lines of progress, which end with the time that is left.
EXPECTED = re.compile(
    r"$|== |\$ |epl-launch: |\[worker 0\] EPL: 4 replicas = |(\[worker 0\] )?step \d+ of 1000: loss "
    r"|(One device|2 workers x 2 devices) +loss |(Checkpoints|Logs|) +/|Without GPUs the 4 devices share "
)


def _body(name: str) -> list:
    with open(os.path.join(QUICKSTART, name)) as stream:
        return [line for line in stream.read().splitlines()[1:] if line]  # without the docstring


def test_only_three_lines_differ() -> None:
    difference = [line for line in difflib.ndiff(_body("train.py"), _body("train_parallel.py")) if line[0] in "+-"]
    assert difference == ["+ import epl", "+ epl.init()", "+ epl.set_default_strategy(epl.replicate(1))"]


@pytest.mark.timeout(180)
def test_both_learn_the_digits(tmp_path: Any) -> None:
    process = subprocess.run(
        [sys.executable, os.path.join(QUICKSTART, "run.py"), "--directory", str(tmp_path / "run")],
        cwd=str(tmp_path),
        env={key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=170,
    )
    assert process.returncode == 0, process.stdout
    accuracies = [float(number) for number in re.findall(r"test accuracy +([\d.]+)%", process.stdout)]
    assert len(accuracies) == 2 and min(accuracies) >= 95.0, process.stdout
    assert len(re.findall(r"test accuracy .* [1-9]\d* samples/s", process.stdout)) == 2
    assert len(re.findall(r"step 1000 of 1000: loss 0\.\d+, [1-9]\d* samples/s$", process.stdout, re.MULTILINE)) == 2
    assert "not how fast GPUs would be" in process.stdout
    paths = re.findall(r"^(?:Logs|Checkpoints| +) +(/\S+)$", process.stdout, re.MULTILINE)
    assert len(paths) == 4, process.stdout
    assert all(os.path.exists(path) for path in paths)
    assert [line for line in process.stdout.splitlines() if not EXPECTED.match(line)] == []
    assert len([line for line in process.stdout.splitlines() if " left" not in line]) <= 25, process.stdout
    with open(paths[-2]) as log:
        assert re.search(r": I tensorflow/|\nI\d{4} ", log.read())  # what TensorFlow says is in the log


@pytest.mark.timeout(60)
def test_a_run_goes_on_and_leaves_curves(tmp_path: Any) -> None:
    script = os.path.join(QUICKSTART, "train.py")
    shown = [
        subprocess.check_output(
            [sys.executable, script, str(tmp_path), steps], stderr=subprocess.STDOUT, universal_newlines=True
        )
        for steps in ("10", "20")
    ]
    assert "goes on" not in shown[0] and "goes on from step 10 of 20\n" in shown[1]
    assert shown[1].splitlines()[-1].startswith("step 20 of 20: loss ")
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.long
def test_two_workers_divide_the_rows_that_python_prepares(tmp_path: Any) -> None:
    shown = subprocess.check_output(
        [sys.executable, os.path.join(ROOT, "tools", "epl-launch"), "-np", "2", "--log_dir", str(tmp_path / "run")]
        + [os.path.join(QUICKSTART, "train_augmented.py"), "{task_dir}", "3"],
        env=dict(os.environ, PYTHON=sys.executable),
        cwd=str(tmp_path),
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert "EPL: 2 replicas = 2 workers" in shown and "step 3 of 3: loss " in shown


@pytest.mark.timeout(60)
def test_the_slurm_script_trains_one_job(tmp_path: Any) -> None:
    folder = slurm.checkout(tmp_path)
    shown = slurm.sbatch(folder, "examples/quickstart/train_parallel.sbatch", "my_run", "10")
    assert "0: EPL: 2 replicas = 2 workers" in shown and shown.count("step 10 of 10") == 1
