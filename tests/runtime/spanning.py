"""Jobs of several workers without a launcher, so that nobody ends one when another fails; each with a time limit."""

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any, List, Optional, Sequence

from tests.parity.launching import ROOT, Finished, environment

JOBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs")
LIMIT = 60.0
FOUR_WORKERS = ["127.0.0.1"] * 4
_SETTINGS = {
    "EPL_CLUSTER_NUM_VIRTUAL_DEVICES": "1",
    "EPL_CLUSTER_DEVICE_TYPE": "cpu",
    "EPL_COMMUNICATION_TIMEOUT": "30",
}


class Nursery:
    """Workers that are forks of one process: cheap to start. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", os.path.join(JOBS, "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
            env=environment(**_SETTINGS),
        )

    def run(
        self, script: str, arguments: Sequence[str], directory: Any, machines: Sequence[str] = FOUR_WORKERS
    ) -> List[Finished]:
        """Runs a script of `jobs` to its end; a worker that is late has no exit code."""
        job = {
            "machines": list(machines),
            "script": os.path.join(JOBS, script),
            "arguments": list(arguments),
            "directory": str(directory),
            "limit": LIMIT,
        }
        start = time.time()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the nursery ended with code %s" % self._process.wait()
        return _finished(json.loads(answer), directory, start)

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.communicate()


def run_workers(
    script: str, arguments: Sequence[str], directory: Any, machines: Sequence[str], limit: float = LIMIT
) -> List[Finished]:
    """Runs a script of `jobs` in a process of its own per address of `machines`."""
    doors = [socket.socket() for _ in machines]
    for door, machine in zip(doors, machines):
        door.bind((machine, 0))
        door.listen(8)
    hosts = ["%s:%d" % door.getsockname() for door in doors]
    start = time.time()
    workers = []
    for index, door in enumerate(doors):
        config = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
        settings = dict(_SETTINGS, TF_CONFIG=config, EPL_LISTEN_FD=str(door.fileno()))
        with open(os.path.join(str(directory), "log_%d" % index), "w") as log:
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", os.path.join(JOBS, script)] + list(arguments),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[door.fileno()],
                    env=environment(**settings),
                    cwd=ROOT,
                )
            )
        door.close()
    codes: List[Optional[int]] = []
    try:
        for worker in workers:
            try:
                codes.append(worker.wait(max(0.1, start + limit - time.time())))
            except subprocess.TimeoutExpired:
                codes.append(None)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
    return _finished(codes, directory, start)


def codes(workers: List[Finished]) -> List[Any]:
    """The exit codes."""
    return [worker.code for worker in workers]


def outputs(workers: List[Finished]) -> str:
    """What the workers wrote last, for the message of a failed test."""
    return "\n".join(
        "---- worker %d: %s\n%s" % (index, worker.code, worker.output[-4000:]) for index, worker in enumerate(workers)
    )


def _finished(codes: Sequence[Optional[int]], directory: Any, start: float) -> List[Finished]:
    finished = []
    for index, code in enumerate(codes):
        with open(os.path.join(str(directory), "log_%d" % index)) as log:
            finished.append(Finished(code, log.read(), time.time() - start))  # type: ignore[arg-type]
    return finished
