"""What takes long says what it does."""

import logging
import re
import threading
import time

import pytest

from epl.utils import slow


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(slow, "EVERY", 0.02)


def test_what_takes_long_says_so_until_it_ends(capfd):
    with slow.told_when_slow("the first run of 'step'"):
        time.sleep(0.3)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) > 1
    assert all(re.match(r"EPL: the first run of 'step': \d+ s so far$", line) for line in lines)
    assert "epl_slow" not in [thread.name for thread in threading.enumerate()]


def test_what_is_quick_or_fails_says_nothing_more(capfd):
    with pytest.raises(ValueError), slow.told_when_slow("a run"):
        raise ValueError
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_other_workers_say_nothing(capfd):
    with slow.told_when_slow("a run", worker=1):
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_a_level_above_info_leaves_it_out(capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("epl"), "level", logging.WARNING)
    with slow.told_when_slow("a run"):
        time.sleep(0.1)
    assert capfd.readouterr().err == ""
