"""Groups of processes that run one contender of a benchmark.

Owns starting a contender (plain processes, horovodrun, epl-launch), pausing it while another one is measured, sending
it requests and ending it. What the processes compute is left to ``benchmarks/workers/``.

    driver --control socket--> worker 0, worker 1        (one group per contender; one group runs at a time,
           --control socket--> worker 0, worker 1         the others are stopped with SIGSTOP)
"""

import contextlib
import functools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Dict, Iterator, List, Optional, Sequence, Tuple

from benchmarks import control, environment

START_SECONDS = 300
REPLY_SECONDS = 600
END_SECONDS = 10
_LOG_TAIL_LINES = 25
# What epl-launch sets for its workers. Given to the other contenders as well, it takes nothing from EPL's figures but
# what any launcher could do for its own.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_ARENA_MAX": "1"}


class GroupError(RuntimeError):
    """A contender could not be started, failed or did not answer; the message ends with its last log lines."""


class Group:
    """The running processes of one contender."""

    def __init__(self, name: str, command: List[str], size: int, variables: Dict[str, str], copies: int = 1) -> None:
        """Starts ``command``, which must bring up ``size`` workers that connect to the control socket.

        Args:
            name: the contender, for messages.
            command: a launcher, or a worker itself.
            size: how many workers connect.
            variables: environment variables beyond those of this process.
            copies: how often the command is started; each copy finds its number in ``EPL_BENCH_RANK``.

        Raises:
            GroupError: the workers did not connect in time.
        """
        self.name = name
        self._size = size
        self._streams: List[IO[str]] = []
        self._pids: List[int] = []
        self._sockets: List[socket.socket] = []
        self._directory = tempfile.mkdtemp(prefix="epl-bench-")
        self._log = os.path.join(self._directory, "log")
        address = os.path.join(self._directory, "control")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.closing(listener):
            listener.bind(address)
            listener.listen(size)
            environ = dict(os.environ)
            environ.update(
                {
                    control.ADDRESS_VARIABLE: address,
                    "PYTHONPATH": environment.ROOT,
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "PYTHONWARNINGS": "ignore",
                }
            )
            environ.update(_keras_of_graphs(command[0]))
            environ.update(variables)
            with open(self._log, "ab") as log:
                self._processes = [
                    subprocess.Popen(
                        command,
                        env=dict(environ, **{control.RANK_VARIABLE: str(copy)}),
                        cwd=self._directory,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    for copy in range(copies)
                ]
            try:
                self._accept(listener)
            except GroupError:
                self.close()
                raise

    def ask(self, **request: object) -> List[control.Message]:
        """Sends one request to every worker and returns their answers in the order of their ranks.

        Raises:
            GroupError: a worker failed, ended or did not answer in time.
        """
        try:
            for stream in self._streams:
                control.send(stream, request)
            replies = [control.receive(stream) for stream in self._streams]
        except (EOFError, OSError) as error:
            raise GroupError("%s: no answer to %s (%s)\n%s" % (self.name, request, error, self._log_tail())) from error
        errors = [reply["error"] for reply in replies if "error" in reply]
        if errors:
            raise GroupError("%s: %s failed\n%s" % (self.name, request, _tail(errors[0])))
        return replies

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Lets the workers run inside the block only; paused, their background threads take no time from others."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends the workers: they leave when the connection closes; what has not ended in 10 s is killed."""
        self._signal(signal.SIGCONT)
        for stream, connection in zip(self._streams, self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                stream.close()
            connection.close()
        deadline = time.time() + END_SECONDS
        try:
            for process in self._processes:
                process.wait(timeout=max(0.0, deadline - time.time()))
        except subprocess.TimeoutExpired:
            self._kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _accept(self, listener: socket.socket) -> None:
        deadline = time.time() + START_SECONDS
        members: Dict[int, Tuple[int, IO[str], socket.socket]] = {}
        while len(members) < self._size:
            for process in self._processes:
                if process.poll() is not None:
                    raise GroupError(
                        "%s ended with code %d before its workers were ready\n%s"
                        % (self.name, process.returncode, self._log_tail())
                    )
            if time.time() > deadline:
                raise GroupError(
                    "%s: %d of %d workers ready after %d s\n%s"
                    % (self.name, len(members), self._size, START_SECONDS, self._log_tail())
                )
            if not select.select([listener], [], [], 0.5)[0]:
                continue
            connection, _ = listener.accept()
            connection.settimeout(REPLY_SECONDS)
            stream = connection.makefile("rw")
            hello = control.receive(stream)
            members[hello["rank"]] = (hello["pid"], stream, connection)
        for rank in sorted(members):
            self._pids.append(members[rank][0])
            self._streams.append(members[rank][1])
            self._sockets.append(members[rank][2])
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _log_tail(self) -> str:
        with open(self._log, errors="replace") as file:
            return _tail(file.read())


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])


@functools.lru_cache(maxsize=None)
def _keras_of_graphs(python: str) -> Dict[str, str]:
    """Returns what epl-launch sets for `tf.layers` of TensorFlow 2.16 and newer; plain TensorFlow needs it, too."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tf_keras') is None)"
    return {"TF_USE_LEGACY_KERAS": "1"} if subprocess.call([python, "-c", code]) == 0 else {}


def start_plain(
    worker: str,
    arguments: List[str],
    variables: Optional[Dict[str, str]] = None,
    name: str = "plain",
    python: str = sys.executable,
) -> Group:
    """Starts one process of ``worker`` with the product's interpreter, or another, and without any launcher."""
    return Group(name, [python, _script(worker)] + arguments, 1, variables or {})


def start_side_by_side(worker: str, arguments: List[str], size: int, variables: Dict[str, str], name: str) -> Group:
    """Starts ``size`` unconnected processes of ``worker``: a data-parallel step without its communication."""
    return Group(name, [sys.executable, _script(worker)] + arguments, size, variables, copies=size)


def start_horovod(
    worker: str, arguments: List[str], size: int = 2, variables: Optional[Dict[str, str]] = None, name: str = "horovod"
) -> Group:
    """Starts ``size`` processes of ``worker`` under horovodrun with Gloo."""
    python = environment.python()
    launcher = os.path.join(os.path.dirname(python), "horovodrun")
    command = [python, launcher, "--gloo", "-np", str(size), "-H", "localhost:%d" % size, python, _script(worker)]
    # While a pair is stopped, one of the two may be waiting for the other; Gloo gives that 30 s of wall time.
    patience = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(REPLY_SECONDS)}
    return Group(name, command + arguments, size, dict(patience, **(variables or {})))


def start_epl(
    worker: str,
    arguments: List[str],
    size: int = 2,
    variables: Optional[Dict[str, str]] = None,
    name: str = "epl",
    devices: int = 1,
    options: Sequence[str] = (),
    python: str = sys.executable,
) -> Group:
    """Starts ``size`` processes of ``worker`` under epl-launch with more ``options``, each with so many ``devices``."""
    launcher = os.path.join(environment.ROOT, "tools", "epl-launch")
    command = [python, launcher, "--num_workers", str(size), "--gpu_per_worker", str(devices), *options]
    return Group(name, [*command, _script(worker), *arguments], size, variables or {})


def _script(worker: str) -> str:
    return os.path.join(environment.ROOT, "benchmarks", "workers", worker + ".py")
