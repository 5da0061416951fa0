"""What the launcher needs from Linux about processes: descendants, sub-reaper, parent-death signal.

This module reads /proc and calls prctl. guard.py decides what to do with the processes.
"""

import ctypes
import os
import signal
from typing import Dict, List, NamedTuple, Set

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded here, once: nothing may be imported or allocated between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    group: int
    state: str

    @property
    def alive(self) -> bool:
        """Whether the process can still run; a zombie only waits to be reaped."""
        return self.state not in "ZX"


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process instead of init, so that none can get away.

    Raises:
        OSError: the kernel refused.
    """
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies. Safe between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _read_process(pid: int) -> Process:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The name (second field) is in parentheses and may hold any character, a parenthesis too.
        fields = stat.read().rpartition(b")")[2].split()
    return Process(pid, int(fields[1]), int(fields[2]), fields[0].decode())


def live_descendants(root: int) -> List[Process]:
    """The living processes below `root`, without `root` itself."""
    children: Dict[int, List[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                process = _read_process(int(entry))
            except OSError:
                continue  # ended since the listing
            children.setdefault(process.parent, []).append(process)
    found: List[Process] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found.extend(process for process in below if process.alive)
        pending.extend(process.pid for process in below)
    return found


def command_of(pid: int) -> str:
    """The command line of a process, for messages; "?" when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return cmdline.read().replace(b"\0", b" ").decode("utf-8", "replace").strip() or "?"
    except OSError:
        return "?"


def signal_descendants(signum: int, groups: Set[int], once: Set[int]) -> List[Process]:
    """Signals every living descendant of this process: known groups as groups, other processes as direct children.

    A process outside the groups is signalled only if it is a direct child (orphans become one, see become_subreaper):
    only the pid of a child cannot meanwhile belong to an unrelated process.

    Args:
        signum: the signal.
        groups: process groups that this process created.
        once: groups and pids that got the signal already, which are skipped; the call adds to it.

    Returns:
        The descendants that were alive when the signals were sent.
    """
    me = os.getpid()
    living = live_descendants(me)
    for process in living:
        if process.group in groups:
            target, send = process.group, os.killpg
        elif process.parent == me:
            target, send = process.pid, os.kill
        else:
            continue
        if target not in once:
            once.add(target)
            try:
                send(target, signum)
            except OSError:
                pass  # ended since the listing
    return living
