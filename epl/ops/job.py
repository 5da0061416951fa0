"""The processes of one training run, as Python sees them: start, exchange of bytes, end of data, failure, stop.

The collective core (csrc/comm) does the work. This module turns its statuses into exceptions, keeps at most one job per
process, and lets Ctrl-C through while the core waits. Ranks and collectives are in `communicator.py`.
"""

import atexit
import ctypes
import os
import re
import socket
import sys
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from epl.ops import job_secret, native
from epl.utils.errors import EplError
from epl.utils.last_words import Cause, LastWords, tell_failure
from epl.utils.script_end import ScriptEnd
from epl.utils.threads import start_thread

_POLL_S = 0.2
_NO_SECRET = (
    "EPL: warning: this job has no secret: whoever can reach worker 0 can join it in the place of a worker. Give all "
    "workers the same EPL_JOB_SECRET or EPL_JOB_SECRET_FILE (`openssl rand -hex 32` makes one); see docs/launcher.md.\n"
)
_FAILED = 13  # the core's code for the failure of a process
# The core's text for it: "worker 1: ValueError: ...", "worker 1 (host:port) died or was lost: ...".
_NAMED_FAILURE = re.compile(r"worker (\d+)(?:: | \(\S+\) )(.*)", re.DOTALL)


class JobError(EplError, RuntimeError):
    """A failure between the processes of a job.

    Attributes:
        code: the core's code, one of TensorFlow's error codes (4: too late, 11: end of data, 13: a process has failed).
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Announcement(NamedTuple):
    """A job that this process belongs to and has not joined yet; see `Job.start` for the arguments."""

    hosts: Tuple[str, ...]
    process: int
    find_listen_fd: Callable[[], Optional[int]]
    start_timeout: float
    stall_warning: float
    timeout: float
    pid: int


class Job:
    """The processes of one training run, joined by the core's control plane.

    One per process at a time; `Job.start` makes it, `Job.current` finds it, and it stops by itself at exit, so that the
    other processes can tell an orderly end from a death. A script that ends with an exception aborts it first.
    `Job.announce` names a job that `Job.join` starts when it is first needed. It is one class because the core has one
    handle per job, and every method is a call with that handle.
    """

    is_imagined = False  # whether the other processes are not there: `ImaginedJob`
    _current: "Optional[Job]" = None
    _announced: Optional[Announcement] = None
    _lock = threading.RLock()

    def __init__(
        self,
        handle: ctypes.c_void_p,
        hosts: Sequence[str],
        process: int,
        start_timeout: float = 300.0,
        named_by: Optional[Callable[[int], str]] = None,
    ) -> None:
        """Use `Job.start`."""
        self._handle: Optional[ctypes.c_void_p] = handle
        self._hosts = tuple(hosts)
        self._process = process
        self._start_timeout = start_timeout
        self._roles: Dict[int, str] = {}
        self._named_by = named_by
        self._aborted = False
        self._communicators: Dict[str, ctypes.c_void_p] = {}
        self._pid = os.getpid()

    @classmethod
    def start(
        cls,
        hosts: Sequence[str],
        process: int,
        listen_fd: Optional[int] = None,
        start_timeout: float = 300.0,
        stall_warning: float = 60.0,
        timeout: float = 1800.0,
    ) -> "Job":
        """Joins the processes of the job; returns when all have appeared.

        A living job with the same hosts and process is returned as it is, with its own time limits; another one is
        stopped first.

        Args:
            hosts: "host:port" of each process, the same list in all of them.
            process: index of this process in it.
            listen_fd: file descriptor of a listening socket on this process's own host and port, if a launcher opened
                one.
            start_timeout: seconds that a process may take to appear.
            stall_warning: seconds after which a waiting collective is reported on stderr; 0: never.
            timeout: seconds after which a waiting collective fails; 0: never.

        Returns:
            The job.

        Raises:
            JobError: if a process does not appear, with its index and host, or an address cannot be used.
            JobSecretError: if the job's secret, as the environment gives it, cannot be used.
            NativeUnavailableError: if the native libraries are missing.
            ValueError: if `process` is not an index of `hosts`.
        """
        if not 0 <= process < len(hosts):
            raise ValueError(
                "process is {}, but there are {} hosts: it must be 0 to {}.".format(process, len(hosts), len(hosts) - 1)
            )
        with cls._lock:
            living = cls.current()
            if living is not None:
                if living.is_imagined and (living._hosts, living._process) != (tuple(hosts), process):
                    raise JobError(
                        "epl-plan imagines a job of {} worker(s), and the script is worker {} of {}: it sets "
                        "TF_CONFIG, or gives hosts to epl.Cluster. Leave that out of the script, and give epl-plan "
                        "--devices {}xD.".format(len(living._hosts), process, ", ".join(hosts), len(hosts)),
                        code=9,
                    )
                if living._hosts == tuple(hosts) and living._process == process and not living._aborted:
                    return living
                living.stop()
            if process == 0 and job_secret.is_open_to_strangers(hosts, job_secret.job_secret(os.environ)):
                sys.stderr.write(_NO_SECRET)
            ScriptEnd.watch()
            handle = _start(hosts, process, listen_fd, start_timeout, stall_warning, timeout)
            job = cls(handle, hosts, process, start_timeout)
            cls._current = job
            atexit.register(job.stop_at_exit)
            return job

    @classmethod
    def announce(cls, announcement: Optional[Announcement]) -> None:
        """Says which job this process belongs to; None takes it back. Nothing is connected before `join`.

        Raises:
            JobSecretError: if the job's secret, as the environment gives it, cannot be used.
        """
        if announcement is not None:
            # Read now, so that a bad secret is refused before the script does its work.
            job_secret.job_secret(os.environ)
        cls._announced = announcement

    @classmethod
    def announced_hosts(cls) -> Tuple[str, ...]:
        """ "host:port" of each process of the announced job; empty if none is announced."""
        return () if cls._announced is None else cls._announced.hosts

    @classmethod
    def join(cls) -> "Optional[Job]":
        """The announced job, which is started at the first call; without an announcement the living job, or None.

        Raises:
            JobError: as `start`; or this process is a fork of the one that belongs to the job.
        """
        announced = cls._announced
        if announced is None:
            return cls.current()
        if announced.pid != os.getpid():
            raise JobError(
                "This process is a fork of process {}, which is worker {} of the job; a fork cannot take part in it. "
                "Train in the process that called epl.init().".format(announced.pid, announced.process),
                code=9,
            )
        return cls.start(
            announced.hosts,
            announced.process,
            announced.find_listen_fd(),
            announced.start_timeout,
            announced.stall_warning,
            announced.timeout,
        )

    @classmethod
    def current(cls) -> "Optional[Job]":
        """The living job of this process, or None."""
        job = cls._current
        return job if job is not None and job.alive else None

    def companion(
        self, members: Optional[Sequence[int]] = None, tell: Optional[Callable[[str, str], str]] = None
    ) -> "Job":
        """Joins the same processes once more, on a port of its own; blocks until all have called it.

        The companion serves communication that outlives the collectives and may wait for ever: it has no time limits,
        is not `Job.current`, and does not stop by itself.

        Args:
            members: the processes that call it, ascending, process 0 and this one among them; all if not given. In
                the companion they are counted from 0; `name_of` gives their names in this job.
            tell: needed when the members are not all processes: gives each member the text of process 0 under a key.

        Raises:
            JobError: if a process has failed or does not appear in time.
        """
        members = range(self.num_processes) if members is None else members
        tell = tell or (lambda key, text: self.exchange(key, text.encode())[0].decode())
        process = list(members).index(self._process)
        host = self._hosts[0].rpartition(":")[0]
        listener = _listening_socket(host + ":0", self._hosts) if process == 0 else None
        try:
            port = tell("port of a companion", str(listener.getsockname()[1]) if listener is not None else "")
            hosts = [f"{host}:{port}"]
            hosts += [self._hosts[member] for member in members[1:]]
            listen_fd = None if listener is None else listener.fileno()
            handle = _start(hosts, process, listen_fd, self._start_timeout, stall_warning=0.0, timeout=0.0)
        finally:
            if listener is not None:
                listener.close()
        named = [int(member) for member in members]
        return Job(handle, hosts, process, self._start_timeout, lambda index: self.name_of(named[index]))

    @property
    def alive(self) -> bool:
        """Whether the job can still be used: it was not stopped, and this is not a forked child."""
        return self._handle is not None and self._pid == os.getpid()

    @property
    def num_processes(self) -> int:
        """Number of processes of the job."""
        return len(self._hosts)

    @property
    def process(self) -> int:
        """Index of this process."""
        return self._process

    @property
    def hosts(self) -> Tuple[str, ...]:
        """ "host:port" of each process."""
        return self._hosts

    def name_of(self, process: int) -> str:
        """How messages name a process: "worker 1 (10.0.0.2:2222, stage 1)"; a companion names them as its job does."""
        if self._named_by is not None:
            return self._named_by(process)
        role = self._roles.get(process)
        return "worker {} ({}{})".format(process, self._hosts[process], ", " + role if role else "")

    def set_roles(self, roles: Mapping[int, str]) -> None:
        """Sets what some processes do, "stage 1", for the messages that name them.

        Args:
            roles: by process.
        """
        self._roles = dict(roles)

    def silences(self) -> List[float]:
        """Seconds since each process was last heard; 0 for a process that is well or has left.

        A process that is stopped, swapped out or cut off from the network keeps its connection; only its silence shows
        it.
        """
        if not self.alive:
            return [0.0] * self.num_processes
        seconds = (ctypes.c_double * self.num_processes)()
        native.require().core.epl_job_silences(self._handle, seconds)
        return list(seconds)

    def missing(self, key: str) -> List[int]:
        """The processes that have not joined an exchange in which this one waits; empty if process 0 does not tell."""
        if not self.alive:
            return []
        processes = (ctypes.c_int * self.num_processes)()
        number = native.require().core.epl_job_missing(self._handle, key.encode(), processes)
        return list(processes[: max(0, number)])

    def exchange(self, key: str, data: bytes, look: Optional[Callable[[], None]] = None) -> List[bytes]:
        """Gives `data` to every process and gets theirs; blocks until all have called it with this key.

        Args:
            key: names the exchange; the same in every process.
            data: the bytes of this process; their sizes may differ.
            look: called a few times a second during the wait; an exception from it ends the wait.

        Returns:
            The bytes of every process, in process order.

        Raises:
            JobError: if a process has failed, or is missing for longer than the job's timeout.
        """
        core = native.require().core
        handle = self._living_handle()

        def call() -> List[bytes]:
            gathered = ctypes.c_void_p()
            sizes = (ctypes.c_int64 * self.num_processes)()
            status = native.Status()
            core.epl_job_exchange(
                handle, key.encode(), data, len(data), ctypes.byref(gathered), sizes, ctypes.byref(status)
            )
            check(status)
            try:
                everything = ctypes.string_at(gathered, sum(sizes))
            finally:
                core.epl_free(gathered)
            parts = []
            start = 0
            for size in sizes:
                parts.append(everything[start : start + size])
                start += size
            return parts

        return interruptible(call, look=look)

    @property
    def generation(self) -> int:
        """Number of the present generation, which grows with every generation that ends."""
        return native.require().core.epl_job_generation(self._living_handle())

    def end_generation(self, reason: str, generation: Optional[int] = None) -> None:
        """Gives the current step up, in every process: collectives that not all have joined fail with OutOfRangeError.

        Call it in every process whose step failed with OutOfRangeError, and in a job of one process after any failed
        step; the next step starts with fresh counters. Ending a generation again does nothing.

        Args:
            reason: why, for the messages of the other processes.
            generation: which one to end, for a caller that may be late. If not given, the present one, unless this
                process has submitted nothing in it: then the call is taken for a repetition of the last one.
        """
        if not self.alive:
            return
        if generation is None:
            native.require().core.epl_job_end_generation(self._handle, reason.encode())
        else:
            native.require().core.epl_job_end_generation_of(self._handle, generation, reason.encode())

    def abort(self, reason: str) -> None:
        """Tells every process that this one has failed; their pending and later collectives fail, naming it.

        Args:
            reason: why, for the messages of the other processes.
        """
        if self.alive:
            self._aborted = True
            native.require().core.epl_job_abort(self._handle, reason.encode())

    @property
    def first_failure(self) -> Optional[Cause]:
        """The first failure of a process that this process knows of, its own included; None if all are well."""
        status = native.Status()
        native.require().core.epl_job_trouble(self._living_handle(), ctypes.byref(status))
        named = _NAMED_FAILURE.match(status.message.decode(errors="replace")) if status.code == _FAILED else None
        return None if named is None else Cause(int(named.group(1)), named.group(2))

    def stop(self) -> None:
        """Leaves the job in good order; pending collectives fail. Later calls do nothing."""
        with Job._lock:
            if not self.alive:
                return
            handle, self._handle = self._handle, None
            self._communicators.clear()
            atexit.unregister(self.stop_at_exit)
            if Job._current is self:
                Job._current = None
        native.require().core.epl_job_stop(handle)

    def stop_at_exit(self) -> None:
        """Stops; if the script ends with a failure, the launcher and the other processes learn it first."""
        failure = ScriptEnd.failure()
        if failure is not None and self.alive:
            tell_failure(LastWords(failure, self.first_failure))
            self.abort(failure)
        self.stop()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Any) -> None:
        """Stops; a body that failed aborts the job, so that the other processes learn why."""
        if error is not None:
            self.abort(f"{type(error).__name__}: {error}")
        self.stop()

    def create_communicator(self, name: str, rank_process: Sequence[int], transport: str) -> str:
        """Creates a communicator in the core, or finds the one of that name; see `communicator.Communicator`.

        Returns:
            The transport that it uses.
        """
        core = native.require().core
        handle = self._living_handle()

        def call() -> ctypes.c_void_p:
            communicator = ctypes.c_void_p()
            status = native.Status()
            core.epl_communicator_create(
                handle,
                name.encode(),
                (ctypes.c_int * len(rank_process))(*rank_process),
                len(rank_process),
                transport.encode(),
                ctypes.byref(communicator),
                ctypes.byref(status),
            )
            check(status)
            return communicator

        communicator = interruptible(call)
        self._communicators[name] = communicator
        return core.epl_communicator_transport(communicator).decode()

    def destroy_communicator(self, name: str) -> None:
        """Destroys the communicator of that name, if it exists; no session may be using it."""
        communicator = self._communicators.pop(name, None)
        if communicator is not None and self.alive:
            native.require().core.epl_communicator_destroy(communicator)

    def _living_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise JobError("This job was stopped; start a new one.", code=9)
        if self._pid != os.getpid():
            raise JobError(
                "This job belongs to process {}, of which this one is a fork; a fork cannot use it.".format(self._pid),
                code=9,
            )
        return self._handle

    def __repr__(self) -> str:
        return "Job(process={} of {}, hosts={}, {})".format(
            self._process, len(self._hosts), list(self._hosts), "alive" if self.alive else "stopped"
        )


def _start(
    hosts: Sequence[str],
    process: int,
    listen_fd: Optional[int],
    start_timeout: float,
    stall_warning: float,
    timeout: float,
) -> ctypes.c_void_p:
    core = native.require().core
    secret = job_secret.job_secret(os.environ)
    options = native.JobOptions(
        len(hosts),
        process,
        _names(hosts),
        -1 if listen_fd is None else listen_fd,
        start_timeout,
        stall_warning,
        timeout,
        job_secret.job_name(os.environ),
        job_secret.mac_function(secret),
    )

    def call() -> ctypes.c_void_p:
        job = ctypes.c_void_p()
        status = native.Status()
        core.epl_job_start(ctypes.byref(options), ctypes.byref(job), ctypes.byref(status))
        check(status)
        return job

    return interruptible(call, undo=core.epl_job_stop)


def _names(hosts: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(hosts))(*[host.encode() for host in hosts])


def _listening_socket(address: str, hosts: Sequence[str]) -> socket.socket:
    """A socket that listens at an address of this process, on its interface alone; see epl_listen."""
    descriptor = ctypes.c_int()
    status = native.Status()
    native.require().core.epl_listen(
        address.encode(), _names(hosts), len(hosts), ctypes.byref(descriptor), ctypes.byref(status)
    )
    check(status)
    return socket.socket(fileno=descriptor.value)


def check(status: native.Status) -> None:
    """Raises JobError unless the status is OK."""
    if status.code != 0:
        raise JobError(status.message.decode(errors="replace"), status.code)


def interruptible(
    call: Callable[[], Any],
    undo: Optional[Callable[[Any], None]] = None,
    look: Optional[Callable[[], None]] = None,
) -> Any:
    """Runs a call that may block in native code for minutes so that Ctrl-C still works meanwhile.

    Python handles signals only between byte codes of the main thread, so the call runs in a thread of its own. After
    Ctrl-C nobody waits for that thread any more (it owns all its buffers); if its call still succeeds, `undo` reverts
    it. `look` is called a few times a second during the call; an exception from it ends the wait in the same way.
    After the end of the script, where Python starts no thread, the call runs in that of the caller.
    """
    finished = threading.Event()
    lock = threading.Lock()
    results: List[Any] = []
    errors: List[BaseException] = []
    abandoned: List[bool] = []

    def run() -> None:
        try:
            result = call()
            with lock:
                results.append(result)
                late = bool(abandoned)
            if late and undo is not None:
                undo(result)
        except BaseException as error:  # pylint: disable=broad-except  (raised again in the caller's thread)
            errors.append(error)
        finally:
            finished.set()

    try:
        if start_thread(run, "epl_job_call") is None:  # the script has ended
            run()
        while not finished.wait(_POLL_S):
            if look is not None:
                look()
    except BaseException:
        with lock:
            abandoned.append(True)
            done = list(results)
        if done and undo is not None:
            undo(done[0])
        raise
    if errors:
        raise errors[0]
    return results[0]
