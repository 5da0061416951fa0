"""Chromium for tests: finds it, or installs it where apt and root are at hand.

Where it is missing all the same, a test is skipped with the reason, or fails if REQUIRE_CHROMIUM is set, as in .ci/run.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from typing import List, Mapping

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAMES = ("chromium", "chromium-browser", "google-chrome")
# As root there is no sandbox; the page comes from this machine.
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]


def find(env: Mapping[str, str] = os.environ) -> str:
    """Path of the browser: `CHROMIUM`, else Debian's."""
    chosen = env.get("CHROMIUM")
    if chosen:
        if shutil.which(chosen, path=env.get("PATH")) is None:
            pytest.fail(f"CHROMIUM={chosen} is no program that can be run.")
        return chosen
    found = _installed(env)
    if found:
        return found
    said = _install(env)
    found = _installed(env)
    if not found:
        message = f"{said} CHROMIUM= names another browser."
        if env.get("REQUIRE_CHROMIUM"):
            pytest.fail(f"{message} REQUIRE_CHROMIUM is set, as in .ci/run, so that this test is not skipped.")
        pytest.skip(message)
    return found


def _installed(env: Mapping[str, str]) -> str:
    return next(filter(None, (shutil.which(name, path=env.get("PATH")) for name in NAMES)), "")


def _install(env: Mapping[str, str]) -> str:
    """Tries to install Chromium, one process at a time; the last thing that is said of it."""
    sys.path.insert(0, os.path.join(ROOT, "tools", "set_up"))
    import system

    said: List[str] = []
    with open(os.path.join(tempfile.gettempdir(), f"epl_tests_chromium_{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _installed(env):
            system.Packages(env, said.append).prefer(["chromium"], "No Chromium, which shows pages in tests.")
    return said[-1] if said else ""


def run(folder, *words: str) -> str:
    """Runs the browser once, with a profile in `folder`; what it prints.

    The time of the page runs until its scripts have nothing more to do, for 20 s at most.
    """
    command = [find(), *SWITCHES, f"--user-data-dir={folder}", "--virtual-time-budget=20000", *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
