"""The guard: the process between the launcher and its workers, which makes sure that no process outlives the job.

    launcher --fork--> guard --fork, setsid, exec--> worker 0, worker 1, ...
         --control pipe-->        any byte on it, or its end: end all. The end of the pipe means that the launcher
                                  is dead, however it died
         <--report pipe---        one JSON line per fact

The guard has a session of its own, so a Ctrl-C in the terminal reaches the launcher alone; it is the sub-reaper of all
processes that the workers start, so it also finds those that left their process groups. When the guard is killed, the
kernel kills the workers (parent-death signal), and the launcher, also a sub-reaper, ends the rest.

This module starts, reaps and ends processes. Logs, messages and decisions are in job.py.
"""

import json
import os
import select
import signal
import subprocess
import time
import traceback
from typing import Dict, List, NamedTuple, Optional, Sequence, Set

from epl.launcher import processes

# Written on the control pipe: end all processes; kill at once those that are still there.
END_ALL = b"E"
KILL_NOW = b"K"
# How long a killed process may take to vanish (uninterruptible I/O) before the guard names it and gives up.
_KILL_SECONDS = 4.0
# How long helper processes of a worker may take to end by themselves after it.
_LEFTOVER_SECONDS = 0.5
_POLL_SECONDS = 0.02


class Start(NamedTuple):
    """How to start one worker."""

    worker_index: int
    argv: List[str]
    env: Dict[str, str]
    stdin: Optional[int]  # None: inherit
    output: Optional[int]  # descriptor of the log file; None: inherit standard output and error
    listen_fd: Optional[int]  # kept open in the worker
    words_fd: int  # also kept open: the worker's end of the pipe of `last_words`
    cpus: Sequence[int]  # to which it is bound; empty: those of the launcher

    @property
    def descriptors(self) -> List[int]:
        """The descriptors that only the worker uses; others close them once it has started."""
        return [fd for fd in (self.output, self.listen_fd, self.words_fd) if fd is not None]


class Guard(NamedTuple):
    """The launcher's ends of a running guard."""

    pid: int
    control: int
    reports: int


def fork_guard(starts: List[Start], kill_after: float) -> Guard:
    """Forks the guard, which starts the workers. The caller must have one thread only.

    Args:
        starts: the workers, in the order in which they are started.
        kill_after: seconds between SIGTERM and SIGKILL.
    """
    processes.become_subreaper()
    control_read, control_write = os.pipe()
    report_read, report_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(control_read)
        os.close(report_write)
        return Guard(pid, control_write, report_read)
    code = 1
    try:
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if signal.getsignal(signum) not in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(signum, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(control_write)
        os.close(report_read)
        _Guard(starts, kill_after, control_read, report_write).run()
        code = 0
    except BaseException:
        _report(report_write, "error", text=traceback.format_exc())
    finally:
        os._exit(code)


def _report(pipe: int, what: str, **facts: object) -> None:
    try:
        os.write(pipe, (json.dumps(dict(facts, what=what)) + "\n").encode())
    except BrokenPipeError:
        pass  # the launcher is dead; the end of the control pipe says so as well


class _Guard:
    """The code of the guard process."""

    def __init__(self, starts: List[Start], kill_after: float, control: int, reports: int) -> None:
        self._starts = starts
        self._kill_after = kill_after
        self._control = control
        self._reports = reports
        self._workers: Dict[int, int] = {}
        self._popens: "List[subprocess.Popen[bytes]]" = []
        self._groups: Set[int] = set()

    def run(self) -> None:
        """Starts the workers, reports their ends, and ends all processes when told to."""
        processes.become_subreaper()
        child_ended, wake_up = os.pipe()
        os.set_blocking(child_ended, False)
        os.set_blocking(wake_up, False)
        # A handler, not SIG_IGN: ignored signals would stay ignored in the started processes.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_up)
        started = self._start_all()
        self._let_go()
        if started:
            self._watch(child_ended)
        self._end_all()
        _report(self._reports, "done")

    def _start_all(self) -> bool:
        own = os.sched_getaffinity(0)
        for start in self._starts:
            try:
                os.sched_setaffinity(0, start.cpus or own)  # inherited by the worker and what it starts
                worker = subprocess.Popen(
                    start.argv,
                    env=start.env,
                    stdin=start.stdin,
                    stdout=start.output,
                    stderr=start.output,
                    pass_fds=[fd for fd in (start.listen_fd, start.words_fd) if fd is not None],
                    start_new_session=True,
                    preexec_fn=processes.die_with_parent,
                )
            except (OSError, subprocess.SubprocessError) as error:
                _report(self._reports, "not started", index=start.worker_index, text=str(error))
                return False
            self._popens.append(worker)  # kept: a collected Popen would wait for its pid on its own
            self._workers[worker.pid] = start.worker_index
            self._groups.add(worker.pid)
            _report(self._reports, "started", index=start.worker_index, pid=worker.pid)
        os.sched_setaffinity(0, own)
        return True

    def _let_go(self) -> None:
        """Closes descriptors of which the workers have copies: a dead worker's port must not stay open here.

        The terminal is closed too, so that a reader of the launcher's output sees its end when the launcher is dead.
        """
        for start in self._starts:
            for descriptor in start.descriptors:
                os.close(descriptor)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)

    def _watch(self, child_ended: int) -> None:
        """Reports workers that end, until the launcher asks for the end of all."""
        while True:
            self._reap()
            ready = select.select([self._control, child_ended], [], [])[0]
            if self._control in ready:
                return
            os.read(child_ended, 4096)

    def _reap(self) -> None:
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._workers:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                ended.append((code, self._workers.pop(pid)))
        # If several ended since the last look, one that a signal killed is more likely the cause.
        for code, index in sorted(ended):
            _report(self._reports, "ended", index=index, code=code)

    def _end_all(self) -> None:
        """Sends SIGTERM, then SIGKILL after the grace time, or at once when asked to."""
        self._report_leftovers()
        terminated: Set[int] = set()
        deadline = time.monotonic() + self._kill_after
        while processes.signal_descendants(signal.SIGTERM, self._groups, terminated):
            self._reap()
            if time.monotonic() >= deadline or self._kill_wanted():
                self._kill_all()
                break
            time.sleep(_POLL_SECONDS)
        self._reap()

    def _kill_all(self) -> None:
        deadline = time.monotonic() + _KILL_SECONDS
        # A fresh set each time: a process born between a listing and its kill is killed in the next round.
        living = processes.signal_descendants(signal.SIGKILL, self._groups, set())
        while living and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            self._reap()
            living = processes.signal_descendants(signal.SIGKILL, self._groups, set())
        for process in living:
            _report(self._reports, "stuck", pid=process.pid, text=processes.command_of(process.pid))

    def _report_leftovers(self) -> None:
        """Names processes that still run after all workers ended by themselves, except those that are ending."""
        if self._workers:
            return
        deadline = time.monotonic() + _LEFTOVER_SECONDS
        left = processes.live_descendants(os.getpid())
        while left and time.monotonic() < deadline and not self._kill_wanted():
            time.sleep(_POLL_SECONDS)
            left = processes.live_descendants(os.getpid())
        if left:
            commands = [f"{process.pid} ({processes.command_of(process.pid)})" for process in left]
            _report(self._reports, "leftovers", texts=commands)

    def _kill_wanted(self) -> bool:
        # At the end of the file select() is always ready and read() gives nothing.
        return bool(select.select([self._control], [], [], 0)[0]) and KILL_NOW in os.read(self._control, 64)
