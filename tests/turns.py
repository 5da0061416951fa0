"""The turns of tests in the workers of pytest-xdist: one that measures seconds runs while no other test does.

    worker 0    test  |  test      |  waits  | alone |  test
    worker 1    test  |  long test           |  waits        |  test

The locks are those of files that are there anyway, so that nothing is left of them.
"""

import contextlib
import fcntl
import os
from typing import Iterator

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_NEXT = os.path.join(_FOLDER, "conftest.py")  # held by the worker whose test is the next to run
_RUNNING = os.path.join(_FOLDER, "turns.py")  # shared by all that run, unless one is alone


@contextlib.contextmanager
def turn(is_alone: bool) -> Iterator[None]:
    """Waits for the turn of a test, which lasts as long as the context; `is_alone`: no other one runs meanwhile."""
    with open(_NEXT) as following, open(_RUNNING) as running:
        fcntl.flock(following, fcntl.LOCK_EX)  # while a test waits to be alone, no other one begins
        fcntl.flock(running, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(following, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(running, fcntl.LOCK_UN)  # a process that the test has forked may still have the file
