"""Simulated steps against steps that ran: plans of waiting layers (`waiting_plans.py`)."""

import pytest

from tests.planner.harness import told
from tests.planner.waiting_plans import PLANS


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PLANS)
def test_a_step_takes_what_the_simulator_says(name):
    """The fastest of five steps counts: other programs only make steps longer."""
    simulated, ran = told("waiting_plans", "predict", name), min(told("waiting_plans", "measure", name))
    print(f"{name}: simulated {simulated:.3f} s, ran {ran:.3f} s, {ran / simulated:.3f}")
    assert ran == pytest.approx(simulated, rel=0.12)
