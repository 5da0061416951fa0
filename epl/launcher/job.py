"""One run of the job on this machine: start the guard, show output, wait for the first failure or the end.

This module makes the decisions (what is a failure, which one counts, when the others are ended) and the messages about
them. guard.py handles processes, plan.py says what is started, and main.py starts a job again.
"""

import json
import os
import select
import signal
import socket
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.launcher import guard as guards
from epl.launcher import processes
from epl.launcher.causes import Causes
from epl.launcher.console import Console, LogTail
from epl.launcher.notices import NoticeFilter

# What a launcher writes to the lifeline of a part of its job.
END, KILL = b"e", b"k"
_LAST_LINES = 20
_CAUSE_LINES = 4  # shown of a cause; errors of TensorFlow may hold several traces
_SHOW_SECONDS = 0.05
_GUARD_DEAD_SECONDS = 5.0
# A worker that others name as the cause may take this long to end by itself; after that its exit code stays unknown.
CAUSE_SECONDS = 5.0
# Workers that still run this long after another one has ended well may be waiting for it.
_LEFT_SECONDS = 30.0


class Interrupts:
    """Notes the signals that ask the launcher to end, and wakes up select()."""

    def __init__(self, lifeline: Optional[int] = None, said: bytes = b"") -> None:
        """Installs the handlers. A signal that the launcher was started to ignore (nohup) stays ignored.

        Args:
          lifeline: a descriptor on which `END`, however often, counts as a SIGHUP, `KILL` as two, and its end as one
            more.
          said: bytes that were already read from it.
        """
        self.seen: List[int] = []
        self._hear(said)
        self.wake_fd, write_end = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(write_end, False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note)
        signal.set_wakeup_fd(write_end)
        self._lifeline = lifeline
        self.watched = [self.wake_fd] if lifeline is None else [self.wake_fd, lifeline]

    def _note(self, signum: int, frame: object) -> None:
        self.seen.append(signum)

    def take(self, ready: Sequence[int]) -> None:
        """Reads those of `watched` that are ready."""
        if self.wake_fd in ready:
            try:
                os.read(self.wake_fd, 4096)
            except BlockingIOError:
                pass
        if self._lifeline is not None and self._lifeline in ready:
            said = os.read(self._lifeline, 64)
            self._hear(said)
            if not said:
                self.seen.append(signal.SIGHUP)
                self.watched.remove(self._lifeline)
                self._lifeline = None

    def _hear(self, said: bytes) -> None:
        if KILL in said:
            self.seen += [signal.SIGHUP, signal.SIGHUP]
        elif said and not self.seen:
            self.seen.append(signal.SIGHUP)


class Outcome(NamedTuple):
    """How a run ended."""

    code: int
    interrupted: bool
    refused: bool = False  # before any worker started, for a reason that another try does not remove
    cause: Optional[int] = None  # the worker that failed first, if it belongs to another launcher


class _Failure(NamedTuple):
    """The end of a worker that failed."""

    worker: int
    code: int  # negative: minus the signal
    at: float  # time.monotonic()


class LaunchedJob:
    """One run of all the workers of this machine."""

    def __init__(
        self,
        starts: List[guards.Start],
        logs: Dict[int, str],
        shown: List[int],
        causes: Causes,
        console: Console,
        interrupts: Interrupts,
        notices: Optional[NoticeFilter] = None,
    ) -> None:
        """Prepares the run.

        Args:
          starts: how each worker is started.
          logs: the path of the log of each worker that has one; the file exists.
          shown: the workers whose output is shown.
          causes: what the workers say about their failures.
          console: shows the output.
          interrupts: the signals that end the run.
          notices: what it takes out of the output is not shown; None: all is shown.
        """
        self._starts = starts
        self._logs = logs
        self._tails = {index: LogTail(path) for index, path in logs.items()}
        self._shown = [index for index in shown if index in logs]
        self._causes = causes
        self._console = console
        self._interrupts = interrupts
        self._notices = notices
        self._pids: Dict[int, int] = {}
        self._workers = {start.worker_index for start in starts}
        self._running = set(self._workers)
        self._failed: List[_Failure] = []  # in the order in which they ended
        self._failure: Optional[int] = None
        self._cause: Optional[int] = None
        self._interrupted: Optional[int] = None
        self._done = False
        self._ended_well: Dict[int, float] = {}  # worker -> time.monotonic(), until the remaining workers were named
        self._began = time.monotonic()

    def run(self, kill_after: float) -> Outcome:
        """Runs until all started processes have ended.

        Args:
          kill_after: seconds between SIGTERM and SIGKILL when workers are ended.
        """
        guard = guards.fork_guard(self._starts, kill_after)
        for start in self._starts:
            for descriptor in start.descriptors:
                os.close(descriptor)
        pending = b""
        while True:
            ready = select.select([guard.reports] + self._interrupts.watched, [], [], _SHOW_SECONDS)[0]
            self._interrupts.take(ready)
            self._interrupt(guard)
            if guard.reports in ready:
                data = os.read(guard.reports, 1 << 16)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line.decode()), guard)
            self._show()
            self._listen()
            self._judge(guard)
            self._tell_who_is_left(time.monotonic())
        os.waitpid(guard.pid, 0)
        os.close(guard.control)
        os.close(guard.reports)
        if not self._done:
            self._guard_is_dead()
        return self._finish()

    def _take(self, report: Dict[str, Any], guard: guards.Guard) -> None:
        what = report["what"]
        if what == "started":
            self._pids[report["index"]] = report["pid"]
            log = self._logs.get(report["index"], "none, it keeps the terminal")
            self._console.say(f"worker {report['index']}: pid {report['pid']}, log file: {log}")
        elif what == "not started":
            self._fail(guard, 1, f"worker {report['index']} could not be started: {report['text']}")
        elif what == "ended":
            self._take_end(report["index"], report["code"], guard)
        elif what == "leftovers":
            self._console.say("the workers have ended; ending what they left running: " + "; ".join(report["texts"]))
        elif what == "stuck":
            self._console.say(f"process {report['pid']} ({report['text']}) does not end after SIGKILL")
        elif what == "error":
            self._console.say("the guard process failed:\n" + report["text"])
        elif what == "done":
            self._done = True

    def _take_end(self, index: int, code: int, guard: guards.Guard) -> None:
        self._running.discard(index)
        if code:
            self._failed.append(_Failure(index, code, time.monotonic()))
        elif self._running:
            self._ended_well[index] = time.monotonic()
        elif not self._failed:
            _tell(guard, guards.END_ALL)

    def _tell_who_is_left(self, now: float) -> None:
        """Names the workers that still run after one ended well: they may wait for hours for one that never trained."""
        if self._running and self._ended_well and now - min(self._ended_well.values()) > _LEFT_SECONDS:
            self._console.say(
                "worker(s) {} ended with exit code 0, and worker(s) {} still run. If these wait for the others, see "
                "why they ended before they trained, and end the job with Ctrl-C.".format(
                    ", ".join(map(str, sorted(self._ended_well))), ", ".join(map(str, sorted(self._running)))
                )
            )
            self._ended_well.clear()

    def _listen(self) -> None:
        for index, why in self._causes.read():
            log = self._logs.get(index, "its output")
            self._console.say(f"worker {index} cannot write to {log}: {why}. What it prints is lost; it goes on.")

    def _judge(self, guard: guards.Guard, at_once: bool = False) -> None:
        """Reports the failure and ends the others, once it is known which worker failed first, or as far as it is."""
        if not self._failed or self._failure is not None or self._interrupted is not None:
            return
        first = self._failed[0]
        cause = self._causes.first(first.worker)
        if cause is None:
            self._fail(guard, *self._describe(first, "failed"))
        elif at_once or cause.worker not in self._running or time.monotonic() - first.at > CAUSE_SECONDS:
            ends = [failure for failure in self._failed if failure.worker == cause.worker]
            how = "failed" if ends else "failed because of that"
            code, text = self._describe(ends[0] if ends else first, how)
            if cause.worker not in self._workers:
                self._cause = cause.worker
            self._fail(guard, code, f"first cause: worker {cause.worker}: {_first_lines(cause.text)}\n{text}")

    def _describe(self, failure: _Failure, what: str) -> Tuple[int, str]:
        """The launcher's exit code for the failure of a worker, and a text about it, with the end of the log."""
        index, code = failure.worker, failure.code
        how = f"exit code {code}" if code > 0 else f"killed by {signal_name(-code)}"
        where = f"host {socket.gethostname()}, pid {self._pids[index]}, {failure.at - self._began:.1f} s"
        text = f"worker {index} {what}: {how} ({where})\n{self._last_lines(index)}"
        return (code if code > 0 else 128 - code), text

    def _last_lines(self, index: int) -> str:
        if index not in self._tails:
            return "it has no log (--debug); see its output above"
        lines = self._tails[index].last_lines(_LAST_LINES)
        if not lines:
            return f"it wrote nothing to {self._logs[index]}"
        return "\n".join([f"last lines of {self._logs[index]}:"] + ["  | " + line for line in lines])

    def _fail(self, guard: guards.Guard, code: int, text: str) -> None:
        self._failure = code
        self._console.say(text)
        if self._running:
            self._console.say("ending the other workers")
        _tell(guard, guards.END_ALL)

    def _interrupt(self, guard: guards.Guard) -> None:
        """Ends all processes at the first signal, and kills them at the second."""
        seen = self._interrupts.seen
        if seen and self._interrupted is None:
            self._judge(guard, at_once=True)
            self._interrupted = seen[0]
            self._console.say(f"{signal_name(seen[0])}: ending the workers (once more kills them at once)")
            _tell(guard, guards.END_ALL)
        elif len(seen) > 1:
            _tell(guard, guards.KILL_NOW)
            del seen[1:]

    def _show(self) -> None:
        for index in self._shown:
            data = self._tails[index].read()
            while data:
                shown = data if self._notices is None else self._notices.shown(data)
                if shown:
                    self._console.feed(f"[worker {index}] ", shown)
                data = self._tails[index].read()
        self._console.show_partial_lines()

    def _finish(self) -> Outcome:
        self._show()
        self._console.show_partial_lines(everything=True)
        for tail in self._tails.values():
            tail.close()
        self._causes.close()
        if self._interrupted is not None:
            return Outcome(128 + self._interrupted, True)
        return Outcome(self._failure or 0, False, cause=self._cause)

    def _guard_is_dead(self) -> None:
        """Ends the processes of a guard that was killed; this process, also a sub-reaper, has become their parent."""
        self._console.say("the guard process was killed; ending the workers")
        self._failure = self._failure or 1
        deadline = time.monotonic() + _GUARD_DEAD_SECONDS
        while processes.signal_descendants(signal.SIGKILL, set(self._pids.values()), set()):
            if time.monotonic() > deadline:
                self._console.say("some processes do not end after SIGKILL")
                break
            time.sleep(_SHOW_SECONDS)


def _tell(guard: guards.Guard, what: bytes) -> None:
    try:
        os.write(guard.control, what)
    except BrokenPipeError:
        pass  # the guard is dead; the end of its reports says so


def _first_lines(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][:_CAUSE_LINES])


def signal_name(signum: int) -> str:
    """The name of a signal, for messages."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
