"""Jobs of several workers without a launcher, so that nobody ends one when another fails; each with a time limit."""

import fcntl
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from tests.parity.launching import ROOT, Finished, environment
from tests.parity.pool import Answer

JOBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs")
LIMIT = 60.0
FOUR_WORKERS = ["127.0.0.1"] * 4
_SETTINGS = {
    "EPL_CLUSTER_NUM_VIRTUAL_DEVICES": "1",
    "EPL_CLUSTER_DEVICE_TYPE": "cpu",
    "EPL_COMMUNICATION_TIMEOUT": "100",
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
        self,
        script: str,
        arguments: Sequence[str],
        directory: Any,
        machines: Sequence[str] = FOUR_WORKERS,
        limit: float = LIMIT,
    ) -> List[Finished]:
        """Runs a script of `jobs` to its end; a worker that is late has no exit code."""
        job = {
            "machines": list(machines),
            "script": os.path.join(JOBS, script),
            "arguments": list(arguments),
            "directory": str(directory),
            "limit": limit,
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


def case(
    script: str, constructors: Sequence[int] = (0, 2), devices: int = 1, layout: Any = None, **arguments: Any
) -> Any:
    """A script, and who is to drive the model with so many devices in each worker."""
    result = {"script": script, "devices": devices, "constructors": list(constructors), "arguments": arguments}
    return dict(result, layout=layout) if layout else result


class Ran(NamedTuple):
    """A job that has run."""

    directory: str
    cases: Dict[str, Any]
    workers: List[Finished]

    def answers(self, name: str) -> List[Answer]:
        """What the script recorded in each constructor."""
        return [Answer(self.recorded(name, worker), "", None) for worker in self.cases[name]["constructors"]]

    def recorded(self, name: str, worker: int) -> Dict[str, List[Any]]:
        """What the script recorded in a worker."""
        path = os.path.join(self.directory, "%s_%d" % (name, worker))
        assert os.path.exists(path), outputs(self.workers)
        with open(path, "rb") as source:
            return pickle.load(source)  # type: ignore[no-any-return]


def write_cases(cases: Dict[str, Any], directory: str) -> None:
    """For `spanning_training.py` in that directory."""
    with open(os.path.join(directory, "cases.json"), "w") as out:
        json.dump(cases, out)


def once(factory: Any, name: str, run: Callable[[str], Any]) -> Any:
    """The result of a job that the processes of one run of the tests share."""
    directory = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    path = str(directory / name)
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path + ".result"):
            os.mkdir(path)
            result = run(path)
            with open(path + ".result", "wb") as out:
                pickle.dump(result, out)
    with open(path + ".result", "rb") as source:
        return pickle.load(source)


def check_end_of_data(answers: List[Answer], losses: Sequence[float]) -> None:
    """Two constructors, of which one has data for so many steps, have made these steps and hold the same."""
    results = [answer.results for answer in answers]
    np.testing.assert_allclose(np.mean([result["loss"] for result in results], axis=0), losses, rtol=1e-5)
    assert [result["ended"] for result in results] == [[True], [True]]
    first, second = [result["variables"][0] for result in results]
    assert first["global_step"] == len(losses)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


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
