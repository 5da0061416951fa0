"""Starts the real launcher on tiny scripts and finds every process that it left.

Each launch has a mark in its environment, which all that it starts inherits: so leftovers are found whatever they did
to their session, group or parent.
"""

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.signals import heed_signals

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAUNCHER = os.path.join(ROOT, "tools", "epl-launch")
MARK = "EPL_TEST_MARK"
# What a caller's environment could change.
_CLEARED = ("TF_CONFIG", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED", "EPL_LISTEN_FD", "GLIBC_TUNABLES") + (
    "TF_CPP_MIN_LOG_LEVEL",
    "PYTHONWARNINGS",
)


class Launch:
    """One run of the launcher; its own messages and the shown output together in `output`."""

    def __init__(self, arguments, cwd, **env):
        self.mark = uuid.uuid4().hex
        environment = {
            key: value for key, value in os.environ.items() if key not in _CLEARED and not key.startswith("MALLOC_")
        }
        environment.update({"PYTHON": sys.executable, "EPL_CLUSTER_DEVICE_TYPE": "cpu", MARK: self.mark})
        environment.update(env)
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, LAUNCHER] + [str(argument) for argument in arguments],
            cwd=str(cwd),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            universal_newlines=True,
            preexec_fn=heed_signals,
        )

    def wait(self, timeout=20):
        """Waits for the end and returns the exit code."""
        self.output += self.process.communicate(timeout=timeout)[0]
        return self.process.returncode

    def survivors(self):
        """The living processes of this launch, the launcher included: pid -> command."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    marked = f"{MARK}={self.mark}".encode() in environ.read().split(b"\0")
                with open(f"/proc/{pid}/stat", "rb") as stat:
                    alive = stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
                with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                    command = cmdline.read().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if marked and alive:
                found[int(pid)] = command
        return found

    def none_left_within(self, seconds):
        """Whether all processes of this launch end within the time."""
        return wait_until(lambda: not self.survivors(), seconds)


def wait_until(condition, seconds=10):
    """Polls until the condition holds; says whether it did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def until():
    return wait_until


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts the launcher: start(script text, *flags, name=..., args=..., **env)."""
    launches = []

    def start_launcher(text, *flags, workers=2, devices=1, name="job.sh", args=(), log_dir="logs", **env):
        script = tmp_path / name
        # A script that runs may be rewritten under its reader, which then sees half of it or nothing.
        assert not script.exists() or script.read_text() == text, "give the second script another name"
        if not script.exists():
            script.write_text(text)
        arguments = ["--num_workers", workers, "--gpu_per_worker", devices]
        arguments += ["--log_dir", log_dir] if log_dir else []
        launches.append(Launch(arguments + list(flags) + [name] + list(args), tmp_path, **env))
        return launches[-1]

    yield start_launcher
    for launch in launches:
        for pid in launch.survivors():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        launch.process.stdout.close()
        launch.process.wait()


@pytest.fixture
def run(start):
    """Like `start`, but waits for the end; the result has `code` and `output`."""

    def run_launcher(*positional, **keywords):
        launch = start(*positional, **keywords)
        launch.code = launch.wait()
        return launch

    return run_launcher


@pytest.fixture
def log(tmp_path):
    """Returns a function that reads the log of a worker."""

    def read(index, suffix=""):
        return (tmp_path / "logs" / str(index) / f"stderr_{index}{suffix}.log").read_text()

    return read


@pytest.fixture
def launcher():
    """The path of the launcher."""
    return LAUNCHER
