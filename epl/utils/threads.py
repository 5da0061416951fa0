"""Threads that may be wanted after the script has ended, where newer Pythons start none."""

import threading
from typing import Callable, Optional


def start_thread(target: Callable[[], None], name: str) -> Optional[threading.Thread]:
    """Starts a daemon thread.

    Returns:
      The thread; None after the script has ended, from Python 3.12 on: functions of `atexit` run there without threads.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):
            raise
        return None
    return thread
