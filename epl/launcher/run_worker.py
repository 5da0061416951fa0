"""What a worker of `epl.run` executes: it calls the function, and writes down what that returns or raises.

    python run_worker.py FOLDER        reads FOLDER/call; writes FOLDER/result_<worker> or FOLDER/error_<worker>

run.py is the caller's side. This file runs as a script, and imports nothing of EPL: the function decides what it needs.
"""

import json
import os
import pickle
import sys
import traceback
from typing import Any, NamedTuple, Optional

CALL, RESULT, ERROR = "call", "result_{}", "error_{}"  # names of files


class WorkerFailure(NamedTuple):
    """What is known about the exception of a worker, in a form that the caller can read without its modules."""

    text: str  # the class of the exception and its message
    trace: str
    exception: Optional[bytes]  # pickled, if it can be


def has_cloudpickle() -> bool:
    """Whether functions of a script or a notebook, and those that are made in another one, can be pickled."""
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        return False
    return True


def dumps(value: Any) -> bytes:
    """Pickles, by cloudpickle where it is installed; `pickle.loads` reads both."""
    if has_cloudpickle():
        import cloudpickle

        return bytes(cloudpickle.dumps(value))
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def main(folder: str) -> None:
    """Calls the function in `folder`."""
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    try:
        with open(os.path.join(folder, CALL), "rb") as call:
            sys.path[:] = pickle.load(call)  # the caller's, by which the function finds its modules
            function, args, kwargs = pickle.load(call)
        result = _pickle_result(function(*args, **kwargs))
    except Exception as error:
        failure = pickle.dumps(tuple(_describe(error)))
        _write(os.path.join(folder, ERROR.format(worker)), failure)
        raise
    _write(os.path.join(folder, RESULT.format(worker)), result)


def _pickle_result(result: Any) -> bytes:
    try:
        return dumps(result)
    except Exception as error:
        raise TypeError(
            f"The function of epl.run returned a {type(result).__name__} that cannot be pickled ({error}). Return "
            "numbers, strings, NumPy arrays, or structures of them; a graph or a session stays in its worker."
        ) from error


def _describe(error: Exception) -> WorkerFailure:
    assert error.__traceback__ is not None
    trace = traceback.format_exception(type(error), error, error.__traceback__.tb_next or error.__traceback__)
    try:
        exception: Optional[bytes] = dumps(error)
    except Exception:  # that of an op of TensorFlow holds its graph
        exception = None
    return WorkerFailure(traceback.format_exception_only(type(error), error)[-1].strip(), "".join(trace), exception)


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
