"""Runs cases of collectives on a layout: in this process over virtual CPU devices, or in several processes.

As a program it is one process of a job: it runs every case on its own ranks and writes what it got.
"""

import contextlib
import itertools
import os
import pickle
import socket
import subprocess
import sys

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.ops.job import Job
from tests.signals import heed_signals

_NAMES = itertools.count()
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def local_job():
    """The job of one process in which a test runs."""
    return Job.current() or Job.start(["localhost:0"], 0, stall_warning=5, timeout=60)


def local_communicator(world):
    return Communicator(f"test_{next(_NAMES)}", [0] * world, job=local_job())


def session(world, graph=None):
    return tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": max(world, 1)}))


def run_ranks(communicator, build):
    """Builds for each local rank on its device, runs once, and returns what each got."""
    with tf.Graph().as_default() as graph:
        fetches = []
        for device, rank in enumerate(communicator.local_ranks):
            with tf.device(f"/device:CPU:{device}"):
                fetches.append(list(build(communicator, rank)))
        with session(len(fetches), graph) as sess:
            return sess.run(fetches)


def check_rank(got, expected, tolerance):
    """One rank's values against the expected ones."""
    assert len(got) == len(expected)
    for value, wanted in zip(got, expected):
        assert np.shape(value) == np.shape(wanted)
        np.testing.assert_allclose(value, np.asarray(wanted), rtol=tolerance, atol=tolerance)


def free_ports(count):
    """Ports of this machine that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("localhost", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def start_python(arguments):
    """Starts Python with this checkout's package; its output is piped."""
    paths = [_ROOT] + [path for path in [os.environ.get("PYTHONPATH")] if path]
    return subprocess.Popen(
        [sys.executable] + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)),
        preexec_fn=heed_signals,
    )


@contextlib.contextmanager
def processes(program, count, arguments=()):
    """Starts `count` processes of a Python program, ends what is left of them, and yields the Popen objects.

    Their command line is the hosts separated by commas, the index of the process, and `arguments`.
    """
    hosts = ",".join(f"localhost:{port}" for port in free_ports(count))
    workers = []
    try:
        for index in range(count):
            workers.append(start_python([program, hosts, index] + list(arguments)))
        yield workers
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()


def main():
    from ops_cases import CASES

    hosts, process, ranks, result = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    job = Job.start(hosts, process, start_timeout=60, stall_warning=10, timeout=60)
    owners = [owner for owner in range(len(hosts)) for _ in range(ranks)]
    communicator = Communicator("cases", owners)
    got = {}
    for name in sorted(CASES):
        got[name] = run_ranks(communicator, CASES[name].build)
    with open(f"{result}.{process}", "wb") as out:
        pickle.dump((communicator.transport, got), out)
    job.stop()


if __name__ == "__main__":
    main()
