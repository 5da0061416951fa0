"""What every test runs under: a fixed environment, a time limit that holds, and no process left behind.

The limit of pytest-timeout (pytest.ini) interrupts Python; a test that hangs inside native code is ended by the
watchdog here, with the stacks of all threads, and pytest-xdist goes on with the next test in a new worker.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import time
import uuid
import zlib
from typing import Dict, Iterator, List, Set, Tuple

import hypothesis
import pytest

from tests.turns import turn

# A busy machine, or `make coverage`, makes single examples slow; the limit of a whole test holds all the same.
# Nor does it say anything of the code when many examples are too slow or too large to be made, which happens by chance.
_HEALTH = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
hypothesis.settings.register_profile("no_deadline", deadline=None, suppress_health_check=_HEALTH)
hypothesis.settings.load_profile("no_deadline")

# What a user has in the shell must not change what a test sees. A random hash seed in every child process shows
# order that depends on hashing.
_FOREIGN = ("EPL_", "SLURM", "OMPI_", "PMI_", "PMIX_", "MV2_", "MPI_LOCAL")
_OURS = ("EPL_APT", "EPL_VERIFY")  # EPL_APT=off: tests install no package of the operating system
for _name in [name for name in os.environ if name.startswith(_FOREIGN)] + ["TF_CONFIG", "PYTHONHASHSEED"]:
    if _name not in _OURS:
        os.environ.pop(_name, None)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ.setdefault("EPL_VERIFY", "last")  # every graph that a test rewrites is checked; 1: after each pass

_MARK = "TEST_PROCESS_OF"  # set in this process alone, so found in the environment of what it starts
os.environ[_MARK] = uuid.uuid4().hex

_WATCHDOG_MARGIN = 30  # seconds that pytest-timeout gets to end a test in an orderly way
_GRACE = 5.0  # seconds that processes get to end after their test has
# They outlive a test by design: the helpers of multiprocessing, and the pool of workers that the parity tests share.
_KEPT = (
    "multiprocessing.semaphore_tracker",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "-m tests.parity.worker",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option by which tests write the pictures of the pages."""
    parser.addoption("--update-pictures", action="store_true", help="tests write the pictures that docs/ shows")


def pytest_configure(config: pytest.Config) -> None:
    """Makes TensorFlow 2 build graphs: test modules build some before they import epl."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        import tensorflow.compat.v1 as tf

        tf.disable_v2_behavior()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Marks cases of grids as long; skips the tests of a GPU where there is none, and those of another TensorFlow."""
    _shorten_grids(items)
    for item in items:
        mark = item.get_closest_marker("tensorflow")
        if mark is not None and not _tensorflow_version().startswith(mark.args):
            item.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]))
    if not os.path.exists("/proc/driver/nvidia/gpus"):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def _shorten_grids(items: List[pytest.Item]) -> None:
    """Marks as long the cases of tests with the mark `grid` of which each parameter's value was in a case before.

    The order is a fixed one by chance, so that values of one parameter meet different values of the others.
    """
    seen: Dict[str, Set[Tuple[str, str]]] = {}
    grids = [item for item in items if item.get_closest_marker("grid") and not item.get_closest_marker("long")]
    for item in sorted(grids, key=lambda item: zlib.crc32(item.nodeid.encode())):
        values = {(name, repr(value)) for name, value in item.callspec.params.items()}  # type: ignore[attr-defined]
        before = seen.setdefault(item.nodeid.partition("[")[0], set())
        if values <= before:
            item.add_marker(pytest.mark.long)
        before |= values


def _tensorflow_version() -> str:
    import tensorflow.compat.v1 as tf

    return tf.VERSION


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Waits for a test's turn; ends the process when it goes past its limit and Python cannot be interrupted."""
    with contextlib.ExitStack() as held:
        if hasattr(item.config, "workerinput"):
            held.enter_context(turn(item.get_closest_marker("alone") is not None))
        limit = _limit(item)
        if limit:
            faulthandler.dump_traceback_later(limit + _WATCHDOG_MARGIN, exit=True, file=sys.__stderr__)
        yield
        faulthandler.cancel_dump_traceback_later()


def _limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs.get("timeout", 0))
    given = item.config.getoption("timeout", None)
    return float(given if given is not None else item.config.getini("timeout") or 0)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fails a test that leaves a process behind, and ends that process. Those of wider fixtures may stay."""
    before = set(started_processes())
    yield
    left = _wait_until_gone(before)
    for pid in left:
        _kill(pid)
    if left:
        pytest.fail("the test left processes behind: {}".format("; ".join(left.values())), pytrace=False)


def pytest_sessionfinish() -> None:
    """Ends what fixtures left."""
    for pid in started_processes():
        _kill(pid)


def started_processes() -> Dict[int, str]:
    """The living processes that this process has started, in any depth: pid and command line."""
    found = {}
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    own = _children()
    for name in os.listdir("/proc"):
        pid = int(name) if name.isdigit() else 0
        if not pid or pid == os.getpid() or not (pid in own or mark in _read(pid, "environ").split(b"\0")):
            continue
        state = _read(pid, "stat").rpartition(b")")[2].split()[:1]
        if state not in ([], [b"Z"]):  # not gone, and no zombie
            # One that begins has no command line yet.
            command = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            found[pid] = f"{command[:200]} ({pid})"
    return found


def _wait_until_gone(expected: Set[int]) -> Dict[int, str]:
    end = time.time() + _GRACE
    while True:
        left = {
            pid: command
            for pid, command in started_processes().items()
            if pid not in expected and not any(kept in command for kept in _KEPT)
        }
        if not left or time.time() > end:
            return left
        time.sleep(0.05)


def _children() -> Set[int]:
    """Direct children: forks that did not start another program keep the environment of before the mark."""
    children: Set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as source:
                children.update(int(pid) for pid in source.read().split())
        except OSError:
            pass  # the thread has ended, or the kernel does not tell: the mark finds the others
    return children


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as source:
            return source.read()
    except OSError:
        return b""  # ended meanwhile, or another user's


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
