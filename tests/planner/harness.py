"""Runs a harness of the planner's tests, a module with a command line, in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from tests.launcher.conftest import ROOT


def told(module: str, *arguments: str, timeout: float = 250) -> Any:
    """What the harness prints last, as JSON; `timeout` is in seconds."""
    command = [sys.executable, "-m", f"tests.planner.{module}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
