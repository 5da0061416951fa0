"""The commands that the pages of the examples show: the launcher and the shell understand them."""

import glob
import os
import re
import shlex
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = sorted(glob.glob(os.path.join(ROOT, "examples", "*", "README.md")))
STAND_INS = os.path.join(ROOT, "tests", "launcher", "stand_ins")


def shown_commands():
    """The commands of the `sh` blocks of all pages, continued lines as one."""
    for page in PAGES:
        with open(page, encoding="utf-8") as source:
            blocks = re.findall(r"^```sh\n(.*?)^```$", source.read(), re.MULTILINE | re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").split("\n"):
            if line.strip() and not line.startswith("#"):
                yield line.strip()


@pytest.mark.parametrize("command", sorted({line for line in shown_commands() if "epl-launch" in line}))
def test_the_launcher_understands_what_is_shown(command):
    """It says what it would start; ssh is not called for that."""
    after = re.match(r"(?:tools/)?epl-launch (.*)$", command).group(1)
    path = os.pathsep.join([STAND_INS, os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "epl-launch"), "--dry_run"] + shlex.split(after),
        cwd=ROOT,
        env=dict(os.environ, PATH=path, PYTHON=sys.executable, EPL_CLUSTER_DEVICE_TYPE="cpu"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def slurm_scripts():
    """All scripts for sbatch, relative to the checkout."""
    found = glob.glob(os.path.join(ROOT, "examples", "**", "*.sbatch"), recursive=True)
    return sorted(os.path.relpath(path, ROOT) for path in found)


@pytest.mark.parametrize("script", slurm_scripts())
def test_a_slurm_script_is_shown_and_is_a_script_of_bash(script):
    assert any("sbatch " + script in line for line in shown_commands())
    assert subprocess.call(["bash", "-n", os.path.join(ROOT, script)]) == 0
    assert os.access(os.path.join(ROOT, script), os.X_OK)
    with open(os.path.join(ROOT, script), encoding="utf-8") as source:
        text = source.read()
    assert re.search(r"^#SBATCH .*--nodes=\d+ --ntasks-per-node=\d+ --gpus-per-task=1$", text, re.MULTILINE)
    assert re.search(r"^srun --kill-on-bad-exit=1 ", text, re.MULTILINE) and "EPL_JOB_SECRET" in text
    assert "\nset -euo pipefail\n" in text  # without openssl the job would start with an empty secret
