"""The turns of tests in the workers of pytest-xdist: one that measures seconds runs while no other test does.

    worker 0    test  |  test      |  waits  | alone |  test
    worker 1    test  |  long test           |  waits        |  test

The locks are those of a file that is there anyway, and end with the process that has them.
"""

import contextlib
import fcntl
import os
from typing import Iterator

_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pytest.ini")
_NEXT, _RUNNING = 0, 1  # bytes of it: held by the worker whose test is the next to run; shared by tests that run


@contextlib.contextmanager
def turn(is_alone: bool) -> Iterator[None]:
    """Waits for the turn of a test, which lasts as long as the context; `is_alone`: no other one runs meanwhile."""
    with open(_FILE, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _NEXT)  # while a test waits to be alone, no other one begins
        fcntl.lockf(file, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH, 1, _RUNNING)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, _NEXT)
        yield
