"""A machine that has never seen the project: a fresh checkout, all set-up, the first example. Takes many minutes."""

import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_quickstart_in_a_fresh_checkout(tmp_path):
    checkout = tmp_path / "checkout"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT).decode().split("\0")
    for name in filter(None, listed):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), str(checkout / name))
    env = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    first = _make(checkout, env, "quickstart")
    assert first.returncode == 0, first.stdout
    assert "set-up: done in" in first.stdout
    again = _make(checkout, env, "setup")
    assert again.stdout.startswith("set-up: up to date"), again.stdout
    assert _make(checkout, env, "build").returncode == 0


def _make(checkout, env, target):
    return subprocess.run(
        ["make", target], cwd=str(checkout), env=env, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
