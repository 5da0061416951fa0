"""Waits for processes that do not come, or are stopped, say so and end; real ones are in test_spanning_faults.py."""

import pytest

from epl.ops import waits
from epl.ops.job import JobError
from epl.ops.waits import Limits, Wait

pytestmark = pytest.mark.timeout(120)


class Clock:
    """A job of three processes, and the time; `pass_time` looks as `interruptible` does."""

    process = 0

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.silent = [0.0, 0.0, 0.0]
        monkeypatch.setattr(waits.time, "monotonic", lambda: self.now)

    def name_of(self, process):
        return f"worker {process}"

    def silences(self):
        return self.silent

    def pass_time(self, wait, seconds, step=0.5):
        for _ in range(int(seconds / step)):
            self.now += step
            wait.look()


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_wait_says_now_and_then_that_it_lasts_and_ends(clock, capsys):
    wait = Wait(clock, Limits(10, 25), lambda: "waits", lambda: [2])
    clock.pass_time(wait, 25)
    assert capsys.readouterr().err.split("\n") == [
        "EPL: stalled: worker 0 waits for 10 s; missing: worker 2",
        "EPL: stalled: worker 0 waits for 20 s; missing: worker 2",
        "",
    ]
    with pytest.raises(JobError, match="worker 0 waits and gave up after 25 s .*; missing: worker 2"):
        clock.pass_time(wait, 1)


def test_without_limits_it_lasts(clock, capsys):
    clock.silent[1] = 1e6
    clock.pass_time(Wait(clock, Limits(0, 0), lambda: "waits"), 1e4)
    assert not capsys.readouterr().err


def test_what_the_process_itself_slept_does_not_count(clock, capsys):
    clock.pass_time(Wait(clock, Limits(10, 20), lambda: "waits"), 1000, step=100)
    assert not capsys.readouterr().err


def test_a_wait_without_end_is_ended_by_silence_alone(clock, capsys):
    wait = Wait(clock, Limits(10, 25), lambda: "waits", without_end=True, quiet=True)
    clock.pass_time(wait, 1000)
    assert not capsys.readouterr().err
    clock.silent[1] = 11.0
    clock.pass_time(wait, 1)
    assert "waits for 1000 s; nothing was heard of worker 1 for 11 s" in capsys.readouterr().err
    clock.silent[1] = 26.0
    with pytest.raises(JobError, match="nothing was heard of worker 1 for 26 s"):
        clock.pass_time(wait, 1)


def test_all_answer(clock, capsys):
    clock.pass_time(Wait(clock, Limits(10, 0), lambda: "is in a run"), 11)
    assert capsys.readouterr().err == "EPL: stalled: worker 0 is in a run for 10 s; all workers answer\n"
