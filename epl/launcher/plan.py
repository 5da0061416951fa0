"""What the launcher starts: command, environment, directory, log and port of each worker of this machine.

This module turns the options into the settings of each worker. guard.py starts the workers, job.py watches them.
"""

import datetime
import fcntl
import importlib.util
import json
import os
import shlex
import socket
import sys
import time
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from epl.launcher.cores import describe_cpus
from epl.launcher.devices import Devices
from epl.launcher.options import Options
from epl.utils.last_words import PIPE_VARIABLE

# Smaller descriptors are left to shell scripts, which use them for their own redirections.
FIRST_FD = 100
# By default glibc returns large buffers to the system when they are freed and takes them again, page fault by page
# fault, in every step; these settings keep the memory. Only for workers that compute on the CPU: one arena would hold
# up the many threads of an input pipeline that feeds a GPU. docs/launcher.md has the figures, memory included.
_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
# Workers cannot tell a worker that prepares data from one that died. But the launcher ends all of its workers if one
# fails: if it has all workers of the job, they may wait for one another longer than by default. Six hours.
_START_TIMEOUT = {"EPL_COMMUNICATION_START_TIMEOUT": "21600"}
# Variables of a launcher that started this one; each launcher sets its own for its workers.
OWN_VARIABLES = ("EPL_LISTEN_FD", PIPE_VARIABLE)
# With it, tf.keras and tf.layers of the TensorFlows that come with Keras 3 are those of tf_keras, which build graphs.
_KERAS_OF_GRAPHS = "TF_USE_LEGACY_KERAS"


class LogInUseError(Exception):
    """Another job writes to the same log file."""

    def __init__(self, path: str) -> None:
        super().__init__(f"another job is writing to {path}; give this one a --log_dir or --task_label of its own")


class LogDirectoryError(OSError):
    """The directory of a log cannot be made."""

    def __init__(self, directory: str, error: OSError) -> None:
        why = "there is a file" if isinstance(error, FileExistsError) else error.strerror
        super().__init__(
            f"the log directory {directory} cannot be made: {error.filename}: {why}; give another one by --log_dir"
        )


def log_in_use(log_dir: str, indices: Iterable[int], restart: int) -> Optional[str]:
    """The first log of these workers to which another job is writing, or None. Makes no file."""
    for index in indices:
        path = log_path(log_dir, index, restart)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # there is none yet; what is wrong with one is found when it is opened to write
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return path
        except OSError:
            pass  # a file system without locks
        finally:
            os.close(descriptor)
    return None


class Worker(NamedTuple):
    """One worker of this machine."""

    worker_index: int
    argv: List[str]
    settings: Dict[str, str]  # what its environment has in addition to the launcher's
    task_dir: str
    log: Optional[str]  # None: the worker keeps the terminal
    cpus: Sequence[int] = ()  # to which it is bound; empty: those of the launcher

    def environment(self, environ: Mapping[str, str]) -> Dict[str, str]:
        """The worker's environment, made from the launcher's, without the secret of the job."""
        env = {key: value for key, value in environ.items() if key not in OWN_VARIABLES}
        env.update(self.settings)
        return env

    def describe(self) -> str:
        """Environment and command as a shell command."""
        settings = [f"{key}={shlex.quote(value)}" for key, value in sorted(self.settings.items())]
        command = " ".join(shlex.quote(word) for word in self.argv)
        where = "the terminal" if self.log is None else self.log
        where += f", bound to CPU(s) {describe_cpus(self.cpus)}" if self.cpus else ""
        lines = [f"# worker {self.worker_index}, output to {where}", "env \\"] + [f"  {each} \\" for each in settings]
        return "\n".join(lines + [f"  {command}"])


class Port(NamedTuple):
    """A listening port of this machine; the launcher owns it until a worker has taken it over."""

    fd: int
    number: int


def reserve_ports(count: int) -> List[Port]:
    """Opens `count` listening sockets on 127.0.0.1; while a copy of them is open, no other process gets their ports."""
    return [_listen(socket.AF_INET, "127.0.0.1") for _ in range(count)]


def reserve_port(machine: str) -> Port:
    """Opens a listening socket at the address of this machine that `machine` names.

    It is open on every interface if the name does not tell which one the other machines use: it means no address of
    this machine, or a loopback address ("127.0.1.1" in /etc/hosts).
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(machine.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
        if address[0] == machine or not address[0].startswith(("127.", "::1")):
            return _listen(family, address[0])
    except OSError:
        pass
    return _listen(socket.AF_INET, "")


def _listen(family: int, address: str) -> Port:
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(128)
        fd = fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
        return Port(fd, listener.getsockname()[1])


def default_log_dir(options: Options) -> str:
    """The log directory of a job without the option: date, size, script and label."""
    script = os.path.basename(options.script).partition(".")[0]
    if options.is_module:
        script = options.script.rpartition(".")[2]
    label = f"_{options.task_label}" if options.task_label else ""
    name = f"{datetime.date.today()}_{options.num_workers}w{options.gpu_per_worker}g_{script}{label}"
    return os.path.join("experiments", name)


def numbered(log_dir: str, number: int) -> str:
    """The name that a default log directory gets where other jobs write to those with smaller numbers, from 1."""
    return log_dir if number == 1 else f"{log_dir}_{number}"


def plan_workers(
    options: Options,
    log_dir: str,
    hosts: List[str],
    devices: Devices,
    ports: Optional[Mapping[int, Port]],
    restart: int,
) -> List[Worker]:
    """Plans the workers of this machine.

    Args:
      options: the command line.
      log_dir: the job's log directory.
      hosts: `ip:port` of every worker of the job.
      devices: those of each worker of this machine.
      ports: the listening sockets that workers of this machine get, by worker.
      restart: how often the job was started again before.
    """
    workers = []
    for position, (index, device_settings) in enumerate(zip(options.local_indices, devices.environments)):
        task_dir = os.path.join(log_dir, str(index))
        log: Optional[str] = log_path(log_dir, index, restart)
        settings = _common_settings()
        if not options.hosts or options.ranks is not None:
            settings.update((key, value) for key, value in _START_TIMEOUT.items() if key not in os.environ)
        settings.update(device_settings)
        if options.malloc_tuning and not device_settings["CUDA_VISIBLE_DEVICES"]:
            settings.update(_malloc_settings(options.gpu_per_worker))
        settings["TF_CONFIG"] = tf_config(hosts, index)
        settings["EPL_TASK_DIR"] = os.path.abspath(task_dir)
        settings["EPL_RESTART_COUNT"] = str(restart)
        if ports and index in ports:
            settings["EPL_LISTEN_FD"] = str(ports[index].fd)
        settings.update(options.env)
        log = None if options.debug and index == 0 else log
        cpus = devices.cpus[position] if devices.cpus else ()
        workers.append(Worker(index, _command(options, task_dir), settings, task_dir, log, cpus))
    return workers


def log_path(log_dir: str, index: int, restart: int) -> str:
    """The log of a worker."""
    name = f"stderr_{index}.restart{restart}.log" if restart else f"stderr_{index}.log"
    return os.path.join(log_dir, str(index), name)


def tf_config(hosts: Sequence[str], index: int) -> str:
    """The value of TF_CONFIG for worker `index` of a job with these addresses."""
    return json.dumps({"cluster": {"worker": list(hosts)}, "task": {"type": "worker", "index": index}})


def _command(options: Options, task_dir: str) -> List[str]:
    task_dir = os.path.abspath(task_dir)
    arguments = [argument.replace("{task_dir}", task_dir) for argument in options.script_args]
    if options.is_module:
        return [sys.executable, "-u", "-m", options.script] + arguments
    if options.script.endswith(".py"):
        return [sys.executable, "-u", options.script] + arguments
    return ["bash", options.script] + (arguments or [task_dir])


def _malloc_settings(devices: int) -> Dict[str, str]:
    """The allocator's settings, unless the user has set them in one of glibc's two ways.

    As many arenas as a worker has devices: these would wait for each other for the lock of one arena.
    """
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return {}
    settings = dict(_MALLOC, MALLOC_ARENA_MAX=str(devices))
    return {key: value for key, value in settings.items() if key not in os.environ}


def _common_settings() -> Dict[str, str]:
    """The variables that all workers get, except those that the user has set."""
    wanted = ["PYTHONUNBUFFERED"] + [_KERAS_OF_GRAPHS] * (importlib.util.find_spec("tf_keras") is not None)
    settings = {name: "1" for name in wanted if name not in os.environ}
    if sys.prefix != sys.base_prefix:
        # The launcher of a virtual environment that is not activated: `python` in a script means the same Python.
        first = os.path.dirname(sys.executable)
        path = os.environ.get("PATH", os.defpath)
        if path.split(os.pathsep)[0] != first:
            settings["PATH"] = first + os.pathsep + path
    return settings


def open_logs(workers: List[Worker]) -> Dict[int, int]:
    """Creates directories and log files; each file is locked as long as a process has it open.

    Returns:
      The descriptor of the log of each worker that has one.

    Raises:
      LogInUseError: another job writes to one of them.
      LogDirectoryError: a directory cannot be made.
      OSError: one cannot be written, or is a symbolic link, which may point to a file of the user.
    """
    logs: Dict[int, int] = {}
    for worker in workers:
        try:
            _make_private_dirs(worker.task_dir)
        except OSError as error:
            close_all(logs.values())
            raise LogDirectoryError(worker.task_dir, error) from None
        if worker.log is None:
            continue
        logs[worker.worker_index] = fd = _open_log(worker.log)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            close_all(logs.values())
            raise LogInUseError(worker.log) from None
        except OSError:
            pass  # a file system without locks
        if os.fstat(fd).st_size:
            _begin_again(fd, worker.log)
    return logs


def _make_private_dirs(path: str) -> None:
    """Makes a directory and its parents, readable by the user alone; an existing directory stays as it is."""
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        _make_private_dirs(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _open_log(path: str) -> int:
    """Opens a log file, readable by the user alone; follows no symbolic link at the file or its directory."""
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        return os.open(os.path.basename(path), flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(directory)


def _begin_again(log: int, path: str) -> None:
    try:
        os.write(log, f"\n==== epl-launch: new run, {time.strftime('%Y-%m-%d %H:%M:%S')} ====\n".encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def close_all(descriptors: Iterable[int]) -> None:
    """Closes file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
