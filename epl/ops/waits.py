"""A wait for other processes: it reports from time to time that it lasts and who is missing, and it has a time limit.

TCP cannot tell a process that is stopped, swapped out or cut off from one that is busy. The core measures how long each
process was not heard (`Job.silences`). There are three kinds of wait:

| wait | a line after `stall_warning` of | it fails after `timeout` of |
| --- | --- | --- |
| for the others to come to the same place | waiting, or silence | waiting, or silence |
| `without_end`: for the others to end their scripts | waiting, or silence | silence of a process |
| `quiet`, too: of a serving process for work | silence of a process | silence of a process |

The code that waits calls `Wait.look` a few times a second, as `job.interruptible` does.
"""

import sys
import time
from typing import Callable, List, NamedTuple, Optional

from epl.ops.job import Job, JobError

_TOO_LATE = 4
_LOOK_S = 0.5
_ASLEEP_S = 3.0  # so much time between two looks: this process itself was stopped


class Limits(NamedTuple):
    """`communication.stall_warning` and `communication.timeout`, in seconds; 0: never."""

    stall_warning: float
    timeout: float


def is_too_late(error: Optional[BaseException]) -> bool:
    """Whether the error is of a wait that was given up, not of a process that failed or left."""
    return isinstance(error, JobError) and error.code == _TOO_LATE


class Wait:
    """One wait of this process for others of a job."""

    def __init__(
        self,
        job: Job,
        limits: Limits,
        what: Callable[[], str],
        missing: Callable[[], List[int]] = list,
        without_end: bool = False,
        quiet: bool = False,
    ) -> None:
        """Begins to count.

        Args:
            job: of the processes that are waited for.
            limits: when to write a line, and when to give up.
            what: what this process does, "waits for the other constructors"; asked when a line is written.
            missing: the processes that have not come, as far as known; also asked then, and may block for a second.
            without_end: only the silence of a process ends the wait.
            quiet: only the silence of a process writes a line.
        """
        self._job = job
        self._limits = limits
        self._what = what
        self._missing = missing
        self._without_end = without_end
        self._quiet = quiet
        self._waited = 0.0
        self._last_look = time.monotonic()
        self._next_line = 0.0  # in seconds of waiting

    def look(self) -> None:
        """Writes a line to stderr if it is time.

        Raises:
            JobError: it is time to give up.
        """
        now = time.monotonic()
        passed = now - self._last_look
        if passed < _LOOK_S:
            return
        self._last_look = now
        if passed < _ASLEEP_S:
            self._waited += passed
        silence = max(self._job.silences())
        lasted = max(self._waited, silence)
        stall_warning, timeout = self._limits
        if timeout and (silence if self._without_end else lasted) > timeout:
            raise JobError(
                f"{self._doing()} and gave up after {timeout:g} s (communication.timeout); {self._cause()}", _TOO_LATE
            )
        is_long = (silence if self._quiet else lasted) > stall_warning
        if stall_warning and is_long and self._waited >= self._next_line:
            self._next_line = self._waited + stall_warning
            sys.stderr.write(f"EPL: stalled: {self._doing()} for {self._waited:.0f} s; {self._cause()}\n")

    def _doing(self) -> str:
        return f"{self._job.name_of(self._job.process)} {self._what()}"

    def _cause(self) -> str:
        silent = [
            f"{self._job.name_of(process)} for {seconds:.0f} s"
            for process, seconds in enumerate(self._job.silences())
            if seconds
        ]
        if silent:
            return "nothing was heard of {}: it is stopped, frozen or cut off from the network".format(
                ", ".join(silent)
            )
        missing = [self._job.name_of(process) for process in self._missing()]
        return "missing: " + ", ".join(missing) if missing else "all workers answer"
