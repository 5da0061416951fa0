"""The script and the command of EPL's quick start run as they are printed there."""

import os
import re
import shutil
from typing import Any

import pytest
import tensorflow

from tests.parity.launching import launch

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quick_start")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers,devices", [(1, 2), pytest.param(2, 1, marks=pytest.mark.long)])
def test_it_trains_and_finishes(tmp_path: Any, workers: int, devices: int) -> None:
    # As printed, so no file of ours: lint and import checks have no say in it.
    with open(os.path.join(SCRIPTS, "local_model.txt"), encoding="utf-8") as printed:
        script = printed.read()
    if not hasattr(tensorflow, "layers"):  # the one line that scripts change for TensorFlow 2
        script = script.replace("import tensorflow as tf\n", "import tensorflow.compat.v1 as tf\n")
    (tmp_path / "local_model.py").write_text(script, encoding="utf-8")
    shutil.copy(os.path.join(SCRIPTS, "run.sh"), str(tmp_path))
    finished = launch(["--num_workers", str(workers), "--gpu_per_worker", str(devices), "run.sh"], tmp_path, 100)
    assert finished.code == 0, finished.output
    assert re.findall(r"Iteration (\d+) , Loss: [\d.]+ \.", finished.output) == [str(i) for i in range(1, 11)]
    assert "Train Finished." in finished.output
