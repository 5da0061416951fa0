"""The notebook has no outputs in the repository; in a long test, Jupyter's own engine runs all of its cells."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest

from tools.layered_environment import LayeredEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
NOTEBOOK = os.path.join(ROOT, "examples", "notebook", "digits.ipynb")
REQUIREMENTS = os.path.join(ROOT, "requirements", "notebook.txt")
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def cells(path):
    with open(path, encoding="utf-8") as source:
        return [cell for cell in json.load(source)["cells"] if cell["cell_type"] == "code"]


def test_outputs_are_stripped():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(NOTEBOOK))


def test_the_cells_are_python():
    for cell in cells(NOTEBOOK):
        ast.parse("".join(line for line in cell["source"] if not line.startswith("%")))


def test_the_extra_has_the_versions_of_the_requirements():
    with open(os.path.join(ROOT, "setup.py"), encoding="utf-8") as source:
        extra = re.search(r'"notebook": \[(.*?)\]', source.read(), re.DOTALL).group(1)
    pins = []
    for path in (REQUIREMENTS, os.path.join(ROOT, "requirements", "py3.7.txt")):
        with open(path, encoding="utf-8") as source:
            pins += source.read().split("\n")
    wanted = re.findall(r'"(.*?)"', extra)
    assert len(wanted) == 4 and [pin for pin in wanted if "==" in pin and pin not in pins] == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.version_info[:2] != (3, 7), reason="requirements/notebook.txt is for Python 3.7")
def test_all_cells_run(tmp_path):
    environment = LayeredEnvironment(
        os.path.join(ROOT, ".venv-notebook"), REQUIREMENTS, probe="import ipykernel, nbclient"
    )
    if not environment.is_ready():
        environment.make()
    executed = str(tmp_path / "executed.ipynb")
    environ = dict(os.environ, PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="", JUPYTER_RUNTIME_DIR=str(tmp_path))
    done = subprocess.run(
        [environment.python, "-c", EXECUTE, NOTEBOOK, executed], cwd=str(tmp_path), env=environ, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    outputs = [output for cell in cells(executed) for output in cell["outputs"]]
    text = "".join("".join(output.get("text", [])) for output in outputs)
    first, last = map(float, re.search(r"^loss: (\S+) at first, (\S+) at last$", text, re.MULTILINE).groups())
    assert last < first / 3
    assert "[worker 1] step 200: loss" in text and "2 replicas x 2 stages = 2 workers x 2 devices (CPU)" in text
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
