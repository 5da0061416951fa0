"""Starts the workers of jobs as forks of a process that has imported TensorFlow, which takes longer than most jobs.

Reads one job per line from standard input, runs it to its end, and answers with the exit code of each worker, null
for one that had to be killed. `tests/runtime/spanning.py` is the other end. Forks share the seed of Python's hashes:
what may depend on the order of sets is tested by processes of their own.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional

_PR_SET_PDEATHSIG = 1


def main() -> Optional[str]:
    """Serves jobs until the end of the input; in a worker, the script to run."""
    for line in sys.stdin:
        job = json.loads(line)
        doors = [socket.socket() for _ in job["machines"]]
        for door, machine in zip(doors, job["machines"]):
            door.bind((machine, 0))
            door.listen(8)
        pids: List[int] = []
        for index, door in enumerate(doors):
            pid = os.fork()
            if not pid:
                _become_worker(job, index, doors, door)
                return str(job["script"])
            pids.append(pid)
        for door in doors:
            door.close()
        print(json.dumps(_wait(pids, job["limit"])), flush=True)
    return None


def _become_worker(job: Dict[str, Any], index: int, doors: List[socket.socket], own: socket.socket) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what it runs after
    hosts = ["%s:%d" % door.getsockname() for door in doors]
    for door in doors:
        if door is not own:
            door.close()
    log = os.open(os.path.join(job["directory"], "log_%d" % index), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, target)
    config = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
    os.environ.update(TF_CONFIG=config, EPL_LISTEN_FD=str(own.detach()))
    sys.argv = [job["script"]] + job["arguments"]


def _wait(pids: List[int], limit: float) -> List[Optional[int]]:
    codes: Dict[int, Optional[int]] = {}
    end = time.monotonic() + limit
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                elif time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    codes[pid] = None
        time.sleep(0.05)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    import tensorflow.compat.v1 as tf  # noqa: F401  what forks are to have

    import epl  # noqa: F401

    script = main()
    if script is not None:
        runpy.run_path(script, run_name="__main__")
