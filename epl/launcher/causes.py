"""Which worker failed first, according to what the workers of this machine say about their failures.

    worker 1   ValueError ---- tells the others ---- ends after 1.2 s
    worker 0        "worker 1: ValueError" ---- ends after 0.3 s        the first that ends is not the first that failed

This module owns the pipes from the workers. Decisions and messages are in job.py.
"""

import fcntl
import os
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.launcher.plan import FIRST_FD
from epl.utils.last_words import Cause, LastWords, WordsReader, name_pipe


class Pipe(NamedTuple):
    """A pipe from a worker to the launcher."""

    read_end: int
    write_end: int

    @property
    def name(self) -> str:
        """The value by which the worker finds the pipe."""
        return name_pipe(self.write_end)


def open_pipe() -> Pipe:
    """Makes the pipe of one worker."""
    read_end, low = os.pipe()
    write_end = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
    os.close(low)
    return Pipe(read_end, write_end)


class Causes:
    """What the workers of this machine have said about their failures."""

    def __init__(self, read_ends: Dict[int, int]) -> None:
        """
        Args:
            read_ends: the pipe of each worker.
        """
        self._readers = {index: WordsReader(descriptor) for index, descriptor in read_ends.items()}
        self._told: List[int] = []

    def read(self) -> List[Tuple[int, str]]:
        """Reads what the workers have written so far.

        Returns:
            The workers that lost output since the last call, and why.
        """
        news = []
        for index, reader in self._readers.items():
            reader.read()
            if reader.lost_output is not None and index not in self._told:
                self._told.append(index)
                news.append((index, reader.lost_output))
        return news

    def words(self, index: int) -> Optional[LastWords]:
        """Why a worker fails; None if it has not said so, or belongs to another machine."""
        reader = self._readers.get(index)
        return None if reader is None else reader.failure

    def first(self, index: int) -> Optional[Cause]:
        """The first cause of the failure of a worker: its own, or that of the worker whose failure caused it.

        Returns:
            None if no worker has said why.
        """
        cause: Optional[Cause] = None
        seen: Sequence[int] = ()
        while index not in seen:
            seen = (*seen, index)
            words = self.words(index)
            if words is None:
                return cause
            if words.cause is None or words.cause.worker == index:
                return Cause(index, words.text)
            cause = words.cause
            index = cause.worker
        return cause

    def close(self) -> None:
        """Closes the pipes."""
        for reader in self._readers.values():
            reader.close()
