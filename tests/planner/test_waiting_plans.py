"""Simulated steps against steps that ran: plans of waiting layers (`waiting_plans.py`)."""

import json
import subprocess
import sys

import pytest

from tests.launcher.conftest import ROOT
from tests.planner.waiting_plans import PLANS


def _told(what, name):
    command = [sys.executable, "-m", "tests.planner.waiting_plans", what, name]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PLANS)
def test_a_step_takes_what_the_simulator_says(name):
    """The fastest of five steps counts: other programs only make steps longer."""
    simulated, ran = _told("predict", name), min(_told("measure", name))
    print(f"{name}: simulated {simulated:.3f} s, ran {ran:.3f} s, {ran / simulated:.3f}")
    assert ran == pytest.approx(simulated, rel=0.12)
