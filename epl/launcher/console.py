"""What the launcher shows: workers' output with a prefix, its own messages, the last lines of a log.

This module owns the terminal: lines of several sources never mix; progress bars (carriage returns) redraw in place on a
terminal and become an occasional line elsewhere. job.py reads the facts about workers.
"""

import os
import re
import sys
import time
from typing import IO, Any, BinaryIO, Dict, Iterable, Iterator, List, Optional

# Text without a line end is shown after this time: a prompt, or the latest state of a progress bar.
_PARTIAL_SECONDS = 0.1
# If the output is no terminal, a progress bar gives one line in this many seconds.
_BAR_SECONDS = 5.0
_CHUNK = 1 << 16
# Bytes at the end of a log that are searched for its last lines: TensorFlow's errors hold several traces.
_END = 1 << 18
# Below this line TensorFlow lists the frames in which an op was made, which say nothing about the failure.
_OP_CREATION = "Original stack trace for "
_SEGMENT = re.compile(rb"[^\r\n]*[\r\n]")


class Console:
    """Merges the output of several sources into one stream of bytes, line by line."""

    def __init__(self, out: BinaryIO, redraw: bool) -> None:
        """
        Args:
            out: the stream that gets everything.
            redraw: whether a carriage return redraws the line (a terminal).
        """
        self._out = out
        self._redraw = redraw
        self._sources: Dict[str, _Source] = {}
        self._owner: Optional[_Source] = None  # the source whose text is on the current line
        self._column_zero = True
        self._closed = False

    def feed(self, prefix: str, data: bytes, source: Optional[str] = None) -> None:
        """Takes output of a source.

        Args:
          prefix: before each of its lines.
          data: the output.
          source: its name; None: the prefix.
        """
        key = prefix if source is None else source
        self._take(self._sources.setdefault(key, _Source(prefix)), data)

    def _take(self, source: "_Source", data: bytes) -> None:
        source.pending += data
        source.changed = time.monotonic()
        end = max(source.pending.rfind(b"\n"), source.pending.rfind(b"\r")) + 1
        # Not beyond: in a line without an end the search would start again at every byte.
        for match in _SEGMENT.finditer(source.pending, 0, end):
            text, terminator = match.group()[:-1], match.group()[-1:]
            if self._redraw:
                self._emit(source, text, terminator)
            else:
                self._emit_line(source, text, terminator)
        source.pending = source.pending[end:]
        self._flush()

    def show_partial_lines(self, everything: bool = False) -> None:
        """Shows text that has waited long enough for its line end; at the end, `everything`."""
        now = time.monotonic()
        for source in self._sources.values():
            if everything and not self._redraw and (source.pending or source.bar):
                self._emit_line(source, source.pending, b"\n")
            elif source.pending and (everything or (self._redraw and now - source.changed >= _PARTIAL_SECONDS)):
                self._emit(source, source.pending, b"")
            else:
                continue
            source.pending = b""
        if everything:
            self._new_line()
        self._flush()

    def say(self, text: str) -> None:
        """Prints a message of the launcher itself, on standard error."""
        self._new_line()
        self._flush()
        try:
            print("\n".join("epl-launch: " + line for line in text.splitlines()), file=sys.stderr, flush=True)
        except OSError:
            _mute(sys.stderr)

    def _emit(self, source: "_Source", text: bytes, terminator: bytes) -> None:
        if self._owner is not source:
            self._new_line()
        if self._column_zero and (text or (terminator == b"\n" and self._owner is None)):
            self._write(source.prefix)
        if text:
            self._owner, self._column_zero = source, False
        self._write(text + terminator)
        if terminator:
            self._column_zero = True
        if terminator == b"\n":
            self._owner = None

    def _emit_line(self, source: "_Source", text: bytes, terminator: bytes) -> None:
        """Writes whole lines, if the output is no terminal; of a progress bar only the last state of its line."""
        if terminator == b"\n":
            self._emit(source, text or source.bar, b"\n")
            source.bar = b""
        elif text:
            source.bar = text
            now = time.monotonic()
            if now - source.bar_shown >= _BAR_SECONDS:
                source.bar_shown = now
                self._emit(source, text, b"\n")

    def _new_line(self) -> None:
        if self._owner is not None:
            self._write(b"\n")
            self._owner, self._column_zero = None, True

    def _write(self, data: bytes) -> None:
        if not self._closed:
            try:
                self._out.write(data)
            except OSError:
                self._give_up()

    def _flush(self) -> None:
        if not self._closed:
            try:
                self._out.flush()
            except OSError:
                self._give_up()

    def _give_up(self) -> None:
        self._closed = True
        _mute(self._out)


def _mute(stream: IO[Any]) -> None:
    """Discards output that nobody reads any more: the job goes on, its logs are complete.

    Bytes that stay in the stream's buffer would fail again when Python ends, and change the exit code.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _without_op_creation(lines: Iterable[str]) -> Iterator[str]:
    skipping = False
    for line in lines:
        skipping = line.startswith(_OP_CREATION) or (skipping and (not line or line.startswith("  ")))
        if not skipping:
            yield line


class _Source:
    """The state of one source of output."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.pending = b""
        self.changed = 0.0
        self.bar = b""
        self.bar_shown = time.monotonic()


class LogTail:
    """Follows a growing log file, from its end at the time when the LogTail was made."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "rb")
        self._start = self._file.seek(0, os.SEEK_END)

    def read(self) -> bytes:
        """The bytes added since the last call, a chunk at a time; empty when there are no more now."""
        return self._file.read(_CHUNK)

    def last_lines(self, count: int) -> List[str]:
        """The last `count` lines added, without the frames where an op was made; of a redrawn line, the last state."""
        with open(self._path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._start, size - _END))
            text = log.read().decode("utf-8", "replace")
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\n").split("\n")]
        lines = list(_without_op_creation(lines))
        while lines and not lines[-1]:
            lines.pop()
        return lines[-count:]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
