"""Functions that run after the script has ended work without threads, which Python 3.12 then starts no more."""

import subprocess
import sys
import threading

import pytest

from epl.ops.job import interruptible
from epl.utils import slow
from epl.utils.threads import start_thread

AT_EXIT = """
import atexit, os
from epl.ops.job import interruptible
from epl.utils.slow import told_when_slow

def last():
    with told_when_slow("the end"):
        os.write(1, interruptible(lambda: b"done"))

atexit.register(last)
"""


def test_what_atexit_runs_ends_well():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.stdout, b"Traceback" in done.stderr) == (b"done", False)


def test_a_call_runs_where_no_thread_can(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert interruptible(lambda: "done") == "done"
    with slow.told_when_slow("the end"):
        pass


def test_another_failure_to_start_is_told(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_thread(lambda: None, "one")
