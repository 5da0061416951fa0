"""A worker process of ``pool.py``: receives names of scripts, runs each in a fresh graph, answers with its records."""

import ctypes
import gc
import importlib
import multiprocessing.connection
import os
import signal
import sys
import threading
import traceback
from typing import Any, Dict, List, Optional, Tuple

_PR_SET_PDEATHSIG = 1
_LARGE = 512 << 20  # bytes of memory; with a small model a process has half of that


def _run(
    module: str, name: str, arguments: Dict[str, Any], topology: List[Any], worker: int, directory: str
) -> Tuple[Dict[str, Any], Optional[str]]:
    import tensorflow.compat.v1 as tf

    from tests.parity.context import Context

    tf.disable_v2_behavior()  # of scripts without EPL, too
    context = Context(*topology, worker, directory)
    try:
        tf.reset_default_graph()
        getattr(importlib.import_module(module), name)(context, **arguments)
        return context.results, None
    except BaseException:  # pylint: disable=broad-except; whatever it was, the test is told
        traceback.print_exc()
        return context.results, traceback.format_exc()


def _give_back_memory() -> None:
    """What a large model leaves, 3 GB of malloc's and of Python's garbage, is not kept until the next script."""
    with open("/proc/self/statm") as stream:
        resident = int(stream.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    if resident > _LARGE:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Serves until the other end of the connection is closed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = multiprocessing.connection.Connection(int(sys.argv[1]))
    *topology, worker = [sys.argv[2], *map(int, sys.argv[3:7])]
    directory = sys.argv[7]
    while True:
        try:
            module, name, arguments = connection.recv()
        except EOFError:
            break
        sys.stderr.flush()
        start = os.fstat(2).st_size
        results, error = _run(module, name, arguments, topology, worker, directory)
        sys.stderr.flush()
        sys.stdout.flush()
        with open(os.path.join(directory, "worker_%d.log" % worker), errors="replace") as stream:
            stream.seek(start)
            log = stream.read()
        connection.send((results, log, error))
        del results
        _give_back_memory()
    # A collective that waits for a process which is gone already must not keep this one alive.
    watchdog = threading.Timer(3, os._exit, [0])
    watchdog.daemon = True
    watchdog.start()


if __name__ == "__main__":
    main()
