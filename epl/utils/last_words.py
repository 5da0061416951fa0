"""What a worker tells its launcher: why it fails, and that its log accepts no more output.

Exit codes do not say which worker failed first: it may be the last to end. A log on a full disk does not say it either.
So the launcher gives each worker a pipe (`EPL_LAUNCHER_PIPE`), and the worker writes lines of JSON into it. This module
writes and reads these lines. epl/launcher/causes.py draws the conclusions.
"""

import json
import os
import stat
from typing import Any, Dict, List, NamedTuple, Optional

PIPE_VARIABLE = "EPL_LAUNCHER_PIPE"
_LONGEST = 2000  # characters of a text


class Cause(NamedTuple):
    """The first failure of the job, as one process knows it."""

    worker: int
    text: str


class LastWords(NamedTuple):
    """Why a worker fails."""

    text: str
    cause: Optional[Cause]  # the failure of a worker that this one follows; its own is possible


def name_pipe(write_end: int) -> str:
    """The value of `EPL_LAUNCHER_PIPE`. By the inode a child knows the pipe from a file with the same number."""
    return f"{write_end}:{os.fstat(write_end).st_ino}"


def tell_failure(words: LastWords) -> None:
    """Tells the launcher, if there is one, why this process fails. Only the first call counts."""
    cause = None if words.cause is None else [words.cause.worker, words.cause.text[:_LONGEST]]
    _tell({"failure": words.text[:_LONGEST], "cause": cause})


def tell_lost_output(error: OSError) -> None:
    """Tells the launcher, if there is one, that what this process prints cannot be written."""
    _tell({"lost output": str(error)})


def has_launcher() -> bool:
    """Whether a launcher reads the pipe."""
    return _pipe() is not None


def _tell(message: Dict[str, Any]) -> None:
    pipe = _pipe()
    if pipe is None:
        return
    try:
        os.set_blocking(pipe, False)  # a stopped launcher must not hold up this process
        os.write(pipe, (json.dumps(message) + "\n").encode())
    except OSError:
        pass  # nobody reads any more


def _pipe() -> Optional[int]:
    try:
        descriptor, inode = map(int, os.environ.get(PIPE_VARIABLE, "").split(":"))
        found = os.fstat(descriptor)
    except (ValueError, OSError):
        return None
    return descriptor if stat.S_ISFIFO(found.st_mode) and found.st_ino == inode else None


class WordsReader:
    """The launcher's end of the pipe of one worker.

    Attributes:
        failure: why the worker fails, if it has said so.
        lost_output: why its output is lost, if it has said so.
    """

    def __init__(self, read_end: int) -> None:
        """Takes over the descriptor."""
        self.failure: Optional[LastWords] = None
        self.lost_output: Optional[str] = None
        self._descriptor = read_end
        self._pending = b""
        os.set_blocking(read_end, False)

    def read(self) -> None:
        """Reads what the worker has written so far."""
        try:
            self._pending += os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._pending = self._pending.split(b"\n")
        self._take(lines)

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._descriptor)

    def _take(self, lines: List[bytes]) -> None:
        for line in lines:
            try:
                message = json.loads(line.decode())
                if "lost output" in message:
                    self.lost_output = self.lost_output or str(message["lost output"])
                elif self.failure is None:
                    cause = message["cause"]
                    known = None if cause is None else Cause(int(cause[0]), str(cause[1]))
                    self.failure = LastWords(str(message["failure"]), known)
            except (ValueError, KeyError, TypeError, IndexError):
                pass  # not written by this module
