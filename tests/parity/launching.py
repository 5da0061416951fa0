"""Runs jobs through the launcher in tests, and sees that they leave nothing behind."""

import os
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple

import psutil

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAUNCHER = os.path.join(ROOT, "tools", "epl-launch")


class Finished(NamedTuple):
    code: int
    output: str
    seconds: float


def environment(**settings: str) -> Dict[str, str]:
    """Returns an environment without settings of EPL but those given, in which `python` is this Python."""
    result = {name: value for name, value in os.environ.items() if not name.startswith("EPL_") and name != "TF_CONFIG"}
    result.update(
        settings,
        PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
        PYTHON=sys.executable,
        PYTHONPATH=ROOT,
        TF_CPP_MIN_LOG_LEVEL="2",
    )
    return result


def launch(arguments: List[str], directory: Any, timeout: float, **settings: str) -> Finished:
    """Runs epl-launch in a directory; output is what it and the workers wrote, logs of the workers included."""
    start = time.time()
    process = subprocess.Popen(
        [sys.executable, LAUNCHER] + arguments,
        cwd=str(directory),
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=30)
        raise AssertionError("epl-launch did not end within %d s:\n%s" % (timeout, output)) from None
    return Finished(process.returncode, output, time.time() - start)


def left_behind(marker: str) -> List[str]:
    """Returns the command lines of living processes that have the marker in them, this one apart."""
    lines = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if marker in line and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                lines.append(line)
        except psutil.Error:
            pass
    return lines
