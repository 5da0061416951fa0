"""`epl.run`: a function in several workers of this machine, called from a notebook, a script or a test.

    caller --fork, exec--> epl-launch --> guard --> workers, each of which runs run_worker.py
           <--files of a private folder: the function, what each worker returns or raises
           <--standard output: the workers' output

The launcher is a process of its own, because it forks and handles signals, which a notebook with its threads cannot.
It ends with the caller, and the workers end with it.
"""

import codecs
import importlib.util
import os
import pickle
import re
import select
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Callable, List, Mapping, Optional, Sequence, Tuple

from epl.launcher import processes, run_worker
from epl.utils.errors import ClusterError, WorkerError
from epl.utils.op_errors import cause_in

_END_SECONDS = 15.0  # for the launcher to end after it was told to; it gives workers 5
# How the launcher names the worker that failed first.
_FAILED = re.compile(r"^epl-launch: (?:first cause: worker (\d+):|worker (\d+) (?:failed|could not be started))", re.M)


def run(
    fn: Callable[..., Any],
    num_workers: int = 2,
    gpu_per_worker: int = 1,
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    timeout: Optional[float] = None,
    log_dir: Optional[str] = None,
) -> List[Any]:
    """Calls `fn(*args, **kwargs)` in each of several new worker processes on this machine, which together are one job.

    It does for a function what `epl-launch` does for a script: the function calls `epl.init()`, builds the model and
    trains. The output of the workers is shown with `[worker i]` before each line. All of them end when one fails, at
    Ctrl-C, and with the caller. Function and arguments are pickled, by cloudpickle if it is installed: functions of a
    notebook, of a script, and lambdas need it. Nothing of the caller's graphs and sessions gets to the workers.

    Args:
      fn: the function; it is called once in each worker.
      num_workers: how many processes.
      gpu_per_worker: GPUs of each process; without GPUs, virtual CPU devices.
      args: the positional arguments of the function.
      kwargs: its named arguments.
      timeout: seconds after which all workers are ended; None: never.
      log_dir: folder for the output of each worker, as that of `epl-launch`; None: it is not kept.

    Returns:
      What the function returned in each worker, by rank; None for a worker that ended itself with exit code 0.

    Raises:
      WorkerError: a worker failed. The text has the rank and the traceback of the one that failed first; `__cause__`
        is its exception, if that can be pickled.
      TimeoutError: the workers still ran after `timeout` seconds.
      ClusterError: called inside a worker, or this machine lacks the devices.
      ImportError: the function needs cloudpickle, which is not installed.
      TypeError: the function or an argument cannot be pickled.
      ValueError: a number is not legal.
    """
    _check(fn, num_workers, gpu_per_worker, timeout)
    call = _pickle_call(fn, tuple(args), dict(kwargs or {}))
    with tempfile.TemporaryDirectory(prefix="epl-run-") as folder:
        with open(os.path.join(folder, run_worker.CALL), "wb") as file:
            file.write(call)
        options = ["--num_workers", str(num_workers), "--gpu_per_worker", str(gpu_per_worker), "--show_all"]
        options += ["--log_dir", os.path.abspath(log_dir) if log_dir else os.path.join(folder, "logs")]
        code, messages = _launch([*options, os.path.abspath(run_worker.__file__), folder], timeout)
        if code != 0:
            raise _error(folder, code, messages)
        return [_read(os.path.join(folder, run_worker.RESULT.format(worker))) for worker in range(num_workers)]


def _check(fn: Any, num_workers: Any, gpu_per_worker: Any, timeout: Any) -> None:
    if not callable(fn):
        raise TypeError(
            f"epl.run expected a function, got {fn!r}; its arguments are given as args=(...), kwargs={{...}}."
        )
    for name, number in (("num_workers", num_workers), ("gpu_per_worker", gpu_per_worker)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"epl.run expected {name} to be an integer from 1, got {number!r}.")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"epl.run expected timeout to be a number of seconds above 0, or None, got {timeout!r}.")
    if "EPL_TASK_DIR" in os.environ:
        raise ClusterError(
            "epl.run was called inside a worker of a job that epl-launch or epl.run has started (EPL_TASK_DIR is set). "
            "Call it in a process of no job; in a worker, call the function itself."
        )


def _pickle_call(fn: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    name = getattr(fn, "__name__", repr(fn))
    hint = "" if run_worker.has_cloudpickle() else " With cloudpickle more functions work: pip install cloudpickle"
    if hint and getattr(fn, "__module__", None) == "__main__":
        raise ImportError(
            f"epl.run needs cloudpickle for {name}, which is a function of a notebook or of the script itself. Install "
            "it (pip install cloudpickle), or move the function into a module."
        )
    try:
        return pickle.dumps(sys.path) + run_worker.dumps((fn, args, kwargs))
    except Exception as error:  # picklers raise errors of any kind
        raise TypeError(
            f"epl.run cannot pickle {name} with its arguments and what it uses ({type(error).__name__}: {error}). Make "
            f"graphs, sessions and open files inside the function.{hint}"
        ) from error


def _launch(options: List[str], timeout: Optional[float]) -> Tuple[int, str]:
    """Runs the launcher, and shows what the workers print.

    Returns:
      Its exit code, and its own messages.
    """
    spec = importlib.util.find_spec("epl_launch")
    if spec is None or spec.origin is None:
        raise ClusterError(f"epl_launch.py is not installed for {sys.executable}: run `pip install .`")
    with tempfile.TemporaryFile("w+") as messages:
        launcher = subprocess.Popen(
            [sys.executable, spec.origin, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the caller alone
            preexec_fn=processes.die_with_parent,
        )
        assert launcher.stdout is not None
        try:
            in_time = _show(launcher.stdout, timeout)
            if in_time:
                launcher.wait()
        finally:
            _end(launcher)
            launcher.stdout.close()
        messages.seek(0)
        said = messages.read()
    if not in_time:
        raise TimeoutError(f"The workers of epl.run still ran after timeout={timeout} s and were ended.\n{said}")
    return launcher.returncode, said


def _show(output: IO[bytes], timeout: Optional[float]) -> bool:
    """Writes the output of the workers to `sys.stdout`; returns whether it came to its end in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([output], [], [], left)[0]:
            return False
        data = os.read(output.fileno(), 1 << 16)
        sys.stdout.write(decoder.decode(data, final=not data))
        sys.stdout.flush()
        if not data:
            return True


def _end(launcher: "subprocess.Popen[bytes]") -> None:
    """Ends the launcher, which ends the workers."""
    if launcher.poll() is not None:
        return
    launcher.terminate()
    try:
        launcher.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        launcher.kill()  # if it still runs, its guard ends the workers
        launcher.wait()


def _error(folder: str, code: int, messages: str) -> Exception:
    """What to raise for a launcher that has failed."""
    found = _FAILED.search(messages)
    if found is None:  # no worker has started
        return ClusterError(f"epl.run could not start its workers (epl-launch: exit code {code}).\n{messages}")
    worker = int(found.group(1) or found.group(2))
    record = _read(os.path.join(folder, run_worker.ERROR.format(worker)))
    if record is None:
        return WorkerError(f"Worker {worker} of epl.run failed, and its function raised nothing.\n{messages}", worker)
    failure = run_worker.WorkerFailure(*record)
    kind, colon, text = failure.text.partition(": ")
    cause = kind + colon + cause_in(text)
    error = WorkerError(f"Worker {worker} of epl.run failed: {cause}\n\n{failure.trace}", worker)
    error.__cause__ = _unpickle(failure.exception)
    return error


def _unpickle(exception: Optional[bytes]) -> Optional[BaseException]:
    try:
        return None if exception is None else pickle.loads(exception)
    except Exception:  # of a class that takes other arguments than its message
        return None


def _read(path: str) -> Any:
    """What a worker has written; None if it has not."""
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return pickle.load(file)
