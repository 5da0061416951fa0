"""Standard output and error of a worker whose log is on a full disk: the output is lost, and the training goes on.

A worker writes to its log file itself, so on a full disk the exception of a `print` would end the training. Here the
worker tells the launcher once, which says so. Without a launcher the script's streams stay as they are.
"""

import errno
import io
import os
import stat
import sys
from typing import Any

from epl.utils import last_words

_FULL = (errno.ENOSPC, errno.EDQUOT)


def tolerate_full_disk() -> None:
    """Makes `sys.stdout` and `sys.stderr` drop output that the log cannot take. A second call does nothing."""
    if not last_words.has_launcher():
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                stream.flush()
                file: Any = _LossyFile(stream.fileno())
                setattr(sys, name, io.TextIOWrapper(file, stream.encoding, stream.errors, write_through=True))


class _LossyFile(io.RawIOBase):
    """A file that drops output that it cannot write."""

    def __init__(self, descriptor: int) -> None:
        """Writes to a descriptor, which stays open."""
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def write(self, data: Any) -> int:
        """Writes all of `data`, or drops the rest of it."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                last_words.tell_lost_output(error)
                break
        return size
