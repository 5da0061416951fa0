"""MLflow itself, with its file store and without a network, keeps what the hook and the callback log."""

import json
import os
import subprocess
import sys

import pytest

from tools.layered_environment import LayeredEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REQUIREMENTS = os.path.join(ROOT, "requirements", "mlflow.txt")
JOB = os.path.join(ROOT, "tests", "profiler", "jobs", "mlflow_runs.py")
RATES = {"epl/samples_per_second", "epl/tflops_per_second", "epl/mfu"}
TRACED = {"epl/exposed_communication", "epl/peak_memory_mb/CPU_0", "epl/peak_memory_mb/CPU_1"}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.version_info[:2] != (3, 7), reason="requirements/mlflow.txt is for Python 3.7")
def test_the_file_store_has_the_values_of_each_step(tmp_path):
    environment = LayeredEnvironment(os.path.join(ROOT, ".venv-mlflow"), REQUIREMENTS, probe="import mlflow")
    if not environment.is_ready():
        environment.make()
    done = subprocess.run(
        [environment.python, JOB], cwd=str(tmp_path), env=dict(os.environ, PYTHONPATH=ROOT), check=False, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    runs = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("RUN ")]
    (losses, of_hook), (history, of_callback) = runs
    epochs = {"epl/epoch_loss": history["loss"], "epl/epoch_val_loss": history["val_loss"]}
    assert set(of_hook) == {"epl/loss"} | RATES | TRACED
    assert set(of_callback) == set(of_hook) | set(epochs)
    assert [step for step, _ in of_hook["epl/loss"]] == [1, 3, 5]
    assert [value for _, value in of_hook["epl/loss"]] == pytest.approx(losses[::2], rel=1e-6)
    for name, values in epochs.items():
        assert [step for step, _ in of_callback[name]] == [4, 8]
        assert [value for _, value in of_callback[name]] == pytest.approx(values, rel=1e-6)
    for stored in (of_hook, of_callback):
        traced = [step for step, _ in stored["epl/exposed_communication"]]
        assert traced == [step for step, _ in stored["epl/peak_memory_mb/CPU_1"]] and traced[:2] == [2, 4]
