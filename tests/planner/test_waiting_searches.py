"""Plans that a search finds run as fast as the best of what it always compares, or faster (`waiting_searches.py`)."""

import statistics

import pytest

from tests.planner.harness import told
from tests.planner.waiting_searches import ALWAYS, FOUND, SEARCHES

ROUNDS = 2


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_found_is_as_fast_as_the_best_candidate(tmp_path, name):
    """The two strategies run in turn, and the medians of their steps count."""
    plans = told("waiting_searches", "search", name, str(tmp_path))
    assert plans[FOUND] != plans[ALWAYS]  # or nothing is compared here
    steps = {FOUND: [], ALWAYS: []}
    for _ in range(ROUNDS):
        for which, seconds in steps.items():
            seconds += told("waiting_searches", "measure", name, str(tmp_path / f"{which}.json"))
    found, always = statistics.median(steps[FOUND]), statistics.median(steps[ALWAYS])
    for which, seconds in ((FOUND, found), (ALWAYS, always)):
        print(f"{name}, {which}: {plans[which][0]}: simulated {plans[which][1]:.3f} s, ran {seconds:.3f} s")
    print(f"{name}: {always / found:.3f} times as fast as the best that is always compared")
    assert always / found >= 0.97
