"""Signals of processes that tests start."""

import signal


def heed_signals() -> None:
    """Lets a child react to SIGINT and SIGHUP, which it would inherit as ignored from a test run under nohup.

    The same holds for tests that a script starts in the background. To be given to `Popen` as its `preexec_fn`.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
