"""Long-lived worker processes that run scripts: one group of processes per topology, started on first use.

Importing TensorFlow costs seconds and a script fractions of one, so processes are kept and every script runs in a fresh
graph. A group that saw an error or a late answer is ended and started again for the next script. The processes' side is
``worker.py``.
"""

import importlib.util
import json
import multiprocessing.connection
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUN_TIMEOUT = 270.0  # the largest models take 40 s on a machine that does nothing else


class Topology(NamedTuple):
    """Which processes run a script, and how: `together` is n of the script's epl.replicate(n)."""

    mode: str
    workers: int
    devices: int
    together: int = 1


# What one process answers: what the script recorded, what it wrote to stderr, and the error that ended it.
class Answer(NamedTuple):
    results: Dict[str, List[Any]]
    log: str
    error: Optional[str]


Settings = Callable[[Topology, int], Dict[str, str]]


class ScriptFailed(AssertionError):
    """A script ended with an error, or did not end, in at least one process."""


class Group:
    """The processes of one topology, all answering to this one."""

    def __init__(self, topology: Topology, directory: str, settings: Settings) -> None:
        self.topology = topology
        self.directory = directory
        self._settings = settings
        self._connections: List[multiprocessing.connection.Connection] = []
        self._processes: List[subprocess.Popen] = []
        sockets = [_listen() for _ in range(topology.workers)]
        hosts = ["127.0.0.1:%d" % sock.getsockname()[1] for sock in sockets]
        for worker, sock in enumerate(sockets):
            self._start(worker, hosts, sock)
            sock.close()

    def _start(self, worker: int, hosts: List[str], sock: socket.socket) -> None:
        ours, theirs = multiprocessing.connection.Pipe()
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), TF_CPP_MIN_LOG_LEVEL="2")
        if importlib.util.find_spec("tf_keras"):
            environment["TF_USE_LEGACY_KERAS"] = "1"  # as epl-launch sets it; scripts without EPL need it, too
        # How oneDNN of TensorFlow 2 rounds depends on the processor and on the number of rows: plain TensorFlow differs
        # from itself with the rows in parts.
        environment["TF_ENABLE_ONEDNN_OPTS"] = "0"
        for name in [name for name in environment if name.startswith("EPL_")] + ["TF_CONFIG"]:
            environment.pop(name, None)
        if self.topology.mode == "plan":
            environment.update(
                TF_CONFIG=json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": worker}}),
                EPL_LISTEN_FD=str(sock.fileno()),
                EPL_CLUSTER_NUM_VIRTUAL_DEVICES=str(self.topology.devices),
                EPL_CLUSTER_DEVICE_TYPE="cpu",
                EPL_COMMUNICATION_START_TIMEOUT="100",
                EPL_COMMUNICATION_TIMEOUT="100",
            )
        environment.update(self._settings(self.topology, worker))
        log = self._log_path(worker)
        arguments = [str(theirs.fileno()), *map(str, self.topology), str(worker), self.directory]
        with open(log, "wb") as stream:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.parity.worker"] + arguments,
                    cwd=ROOT,
                    env=environment,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), sock.fileno()],
                )
            )
        theirs.close()
        self._connections.append(ours)

    def _log_path(self, worker: int) -> str:
        return os.path.join(self.directory, "worker_%d.log" % worker)

    def run(self, script: Callable[..., None], arguments: Dict[str, Any], timeout: float) -> List[Answer]:
        """Runs the script in every process.

        Raises:
            ScriptFailed: a process died or did not answer in time.
        """
        for connection in self._connections:
            connection.send((script.__module__, script.__name__, arguments))
        deadline = time.time() + timeout
        answers = []
        for worker, connection in enumerate(self._connections):
            if not connection.poll(max(0.0, deadline - time.time())):
                raise ScriptFailed(
                    "%s: worker %d of %s did not answer within %d s\n%s"
                    % (script.__name__, worker, self.topology, timeout, self._tails())
                )
            try:
                answers.append(Answer(*connection.recv()))
            except EOFError:
                raise ScriptFailed(
                    "%s: worker %d of %s died\n%s" % (script.__name__, worker, self.topology, self._tails())
                ) from None
        return answers

    def _tails(self) -> str:
        tails = []
        for worker in range(self.topology.workers):
            with open(self._log_path(worker), errors="replace") as stream:
                tails.append("---- worker %d\n%s" % (worker, stream.read()[-3000:]))
        return "\n".join(tails)

    def close(self, patience: float = 5.0) -> None:
        """Ends the processes: politely, then not."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Pool:
    """The groups of all topologies that were asked for, and the plain runs that were done."""

    def __init__(self, settings: Settings = lambda topology, worker: {}) -> None:
        """Starts nothing yet; `settings`: more environment variables of a worker."""
        self._settings = settings
        self._directory = tempfile.mkdtemp(prefix="epl_parity_")
        self._groups: Dict[Topology, Group] = {}
        self._known: Dict[Tuple[Any, ...], List[Answer]] = {}

    def run(
        self,
        topology: Topology,
        script: Callable[..., None],
        arguments: Optional[Dict[str, Any]] = None,
        timeout: float = RUN_TIMEOUT,
    ) -> List[Answer]:
        """Runs a script under a topology; answers in the order of the processes, errors included."""
        arguments = arguments or {}
        # What runs without EPL does not change from test to test.
        key = (topology, script.__module__, script.__name__, repr(sorted(arguments.items())))
        if key in self._known:
            return self._known[key]
        if topology not in self._groups:
            self._groups[topology] = Group(topology, tempfile.mkdtemp(dir=self._directory), self._settings)
        try:
            answers = self._groups[topology].run(script, arguments, timeout)
        except BaseException:
            self._end(topology, patience=0.0)
            raise
        if any(answer.error for answer in answers):
            # One process may be in a step that the others will never join.
            self._end(topology, patience=0.0)
        elif topology.mode != "plan":
            self._known[key] = answers
        return answers

    def _end(self, topology: Topology, patience: float = 5.0) -> None:
        self._groups.pop(topology).close(patience)

    def end_groups(self) -> None:
        """Ends all processes; those that are asked for later start again."""
        for topology in list(self._groups):
            self._end(topology)

    def close(self) -> None:
        self.end_groups()
        shutil.rmtree(self._directory, ignore_errors=True)


def _listen() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    return sock
