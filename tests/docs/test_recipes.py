"""The scripts of docs/recipes.md, in two processes."""

import os
import subprocess
import sys

import pytest

from tests.docs import blocks

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = [text for language, text in blocks.of_page("recipes.md") if language == "python"]
NAMES = ("rate", "evaluation", "keras", "nan", "restart")

pytestmark = pytest.mark.timeout(240)


def launch(folder, name, workers=2):
    """What worker 0 of a job shows that runs a script of the page."""
    (folder / "script.py").write_text(SCRIPTS[NAMES.index(name)])
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "epl-launch"), "-np", str(workers), "script.py"],
        cwd=str(folder), env=dict(os.environ, PYTHON=sys.executable, PYTHONPATH=ROOT, EPL_CLUSTER_DEVICE_TYPE="cpu"),
        universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=220,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_all_scripts_have_a_name():
    assert len(SCRIPTS) == len(NAMES)


@pytest.mark.parametrize(
    "name, shown",
    [("rate", ""), ("evaluation", "100% right"), ("keras", "["), ("nan", "ratio : Tensor had")],
)
def test_a_script_trains_in_two_processes(tmp_path, name, shown):
    assert shown in launch(tmp_path, name)


def test_the_job_goes_on_with_one_process(tmp_path):
    assert "steps 0 to 5" in launch(tmp_path, "restart")
    assert "steps 5 to 10" in launch(tmp_path, "restart", workers=1)
