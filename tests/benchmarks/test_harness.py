"""Ratios, verdicts and the control of measured processes."""

import os
import signal
import sys
import textwrap
import time

import psutil
import pytest

from benchmarks import groups, harness

_WORKER = textwrap.dedent("""
    import os, subprocess, sys, time
    from benchmarks import control
    def answer(request):
        if request.get('fail'):
            raise ValueError('asked to fail')
        return control.timed(lambda: time.sleep(0.01), request['steps'], 0)
    control.serve(int(os.environ[control.RANK_VARIABLE]), answer)
""")


def _group(size=1, code=_WORKER):
    return groups.Group("sleeper", [sys.executable, "-c", code], size, {}, copies=size)


def _result(rows, missing=()):
    return harness.Result("name", [], rows, {}, list(missing))


def test_verdict_uses_the_median():
    assert harness.met(harness.row("speed", [0.5, 1.2, 3.0], at_least=1.0))
    assert not harness.met(harness.row("speed", [0.5, 0.9, 3.0], at_least=1.0))
    assert harness.met(harness.row("cost", [0.05, 0.09, 3.0], at_most=0.1))
    assert [harness.met(harness.row("both", [one], at_least=0.9, at_most=1.1)) for one in (0.8, 1.0, 1.2)] == [0, 1, 0]


def test_row_without_target_passes():
    assert harness.passed(_result([harness.row("information", [0.1])]))


def test_missing_contender_fails_the_result_and_is_named():
    result = _result([harness.row("speed", [2.0], at_least=1.0)], ["horovod: no cmake"])
    assert not harness.passed(result)
    assert "NOT MEASURED: horovod: no cmake" in harness.table(result)


def test_table_shows_ratio_spread_and_verdict():
    printed = harness.table(_result([harness.row("speed", [0.5, 0.75, 3.0], at_least=1.0)]))
    assert "0.75" in printed and "0.5 - 3" in printed and ">= 1" in printed and "MISS" in printed


def test_group_measures_every_worker():
    group = _group(size=2)
    try:
        with group.awake():
            replies = group.ask(steps=5)
    finally:
        group.close()
    assert len(replies) == 2
    assert all(reply["seconds"] >= 0.05 for reply in replies)


def test_group_is_stopped_outside_of_its_turn():
    group = _group()
    try:
        with group.awake():
            group.ask(steps=1)
        (child,) = [process for process in psutil.Process().children() if process.pid in group._pids]
        deadline = time.time() + 10
        while child.status() != psutil.STATUS_STOPPED and time.time() < deadline:
            time.sleep(0.01)
        assert child.status() == psutil.STATUS_STOPPED
    finally:
        group.close()


def test_close_ends_a_worker_that_does_not_leave(monkeypatch):
    monkeypatch.setattr(groups, "END_SECONDS", 0.5)
    group = _group(code=_WORKER + "time.sleep(600)\n")
    pid = group._pids[0]
    group.close()
    assert not psutil.pid_exists(pid)


def test_failure_of_a_worker_is_reported_with_its_cause():
    group = _group()
    try:
        with group.awake(), pytest.raises(groups.GroupError, match="asked to fail"):
            group.ask(fail=True)
    finally:
        group.close()


def test_worker_that_cannot_start_is_reported_with_its_log():
    with pytest.raises(groups.GroupError, match="no such thing"):
        _group(code='raise SystemExit("no such thing")')


def test_interleave_drops_a_contender_that_dies_and_goes_on():
    contenders = {"good": _group(), "bad": _group()}
    os.kill(contenders["bad"]._pids[0], signal.SIGKILL)
    missing = []
    try:
        seconds = harness.interleave(contenders, 2, missing, steps=1)
    finally:
        for group in contenders.values():
            group.close()
    assert sorted(seconds) == ["good"] and len(seconds["good"]) == 2
    assert len(missing) == 1 and "no answer" in missing[0]
