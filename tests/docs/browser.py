"""Chromium for tests: finds it, or installs it where that is possible; else the test is skipped with the reason."""

import os
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAMES = ("chromium", "chromium-browser", "google-chrome")
# As root there is no sandbox; the page comes from this machine.
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]


def find() -> str:
    """Path of the browser: `CHROMIUM`, else Debian's."""
    chosen = os.environ.get("CHROMIUM")
    if chosen:
        if shutil.which(chosen) is None:
            pytest.fail(f"CHROMIUM={chosen} is no program that can be run.")
        return chosen
    if not _installed():
        sys.path.insert(0, os.path.join(ROOT, "tools", "set_up"))
        import system

        said = []
        system.Packages(os.environ, said.append).prefer(["chromium"], "No Chromium, which shows pages in tests.")
        if not _installed():
            pytest.skip(f"{said[-1]} CHROMIUM= names another browser.")
    return _installed()


def _installed() -> str:
    return next(filter(None, map(shutil.which, NAMES)), "")


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
