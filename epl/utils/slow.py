"""Says what a program does while it seems to do nothing."""

import contextlib
import logging
import sys
import threading
import time
from typing import Iterator

from epl.utils.threads import start_thread

logger = logging.getLogger("epl")

EVERY = 10.0  # seconds


@contextlib.contextmanager
def told_when_slow(what: str, worker: int = 0) -> Iterator[None]:
    """While the block runs, worker 0 says every 10 seconds on standard error what it does, and for how long it has.

    A level of the logger `epl` above INFO leaves that out, and so does the end of the script (`start_thread`).
    """
    if worker or logger.level > logging.INFO:
        yield
        return
    start, done = time.monotonic(), threading.Event()

    def tell() -> None:
        while not done.wait(EVERY):
            sys.stderr.write(f"EPL: {what}: {time.monotonic() - start:.0f} s so far\n")

    thread = start_thread(tell, "epl_slow")
    try:
        yield
    finally:
        done.set()
        if thread is not None:
            thread.join()
