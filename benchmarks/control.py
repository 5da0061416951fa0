"""The wire between the benchmark's driver and the processes that it measures.

Owns the protocol: a worker connects to the Unix socket named by ``EPL_BENCH_CONTROL``, says who it is, then answers one
JSON line per JSON line that it receives. Standard output stays free for logs, and it does not matter who started the
worker (this program, horovodrun or epl-launch). What a request means is left to the workers.
"""

import json
import os
import resource
import socket
import time
import traceback
from typing import IO, Any, Callable, Dict

ADDRESS_VARIABLE = "EPL_BENCH_CONTROL"
RANK_VARIABLE = "EPL_BENCH_RANK"

Message = Dict[str, Any]


def send(stream: IO[str], message: Message) -> None:
    """Writes one message and flushes it."""
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def receive(stream: IO[str]) -> Message:
    """Reads one message.

    Raises:
        EOFError: the other side has closed the connection.
    """
    line = stream.readline()
    if not line:
        raise EOFError("the control connection was closed")
    return json.loads(line)


def serve(rank: int, answer: Callable[[Message], Message]) -> None:
    """Connects to the driver and answers its requests until it closes the connection.

    An exception raised by ``answer`` is sent to the driver, which reports it, and ends the worker.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ[ADDRESS_VARIABLE])
    stream = connection.makefile("rw")
    send(stream, {"rank": rank, "pid": os.getpid()})
    while True:
        try:
            request = receive(stream)
        except EOFError:
            return
        try:
            send(stream, answer(request))
        except Exception:
            send(stream, {"error": traceback.format_exc()})
            raise


def timed(step: Callable[[], Any], count: int, warm_up: int) -> Message:
    """Returns the wall and CPU seconds of ``count`` calls of ``step``, after ``warm_up`` calls that are not counted.

    And the largest size that the process had, in gigabytes.
    """
    for _ in range(warm_up):
        step()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2.0**20,
    }
