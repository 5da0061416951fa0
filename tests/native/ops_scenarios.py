"""What two processes of a job do when things go wrong, one function per scenario; run by test_ops_failures.py.

Command line: hosts, index of this process, name of the scenario, and maybe the folder of the
libraries of process 1. What a process sees it prints as one JSON line.
"""

import json
import os
import signal
import sys
import time

import ops_harness
import tensorflow.compat.v1 as tf

from epl.ops import native
from epl.ops.communicator import Communicator
from epl.ops.job import Job, JobError


def say(**facts):
    print(json.dumps(facts), flush=True)


class Step:
    """A graph of one all-reduce of this process's number plus one, and its session."""

    def __init__(self, job, shape=(), key="step"):
        self.communicator = Communicator("pair", [0, 1], job=job)
        self._value = tf.fill(list(shape), float(job.process + 1))
        self._total = self.communicator.all_reduce(self._value, job.process, key)
        self._session = ops_harness.session(1)

    def run(self):
        return float(self._session.run(tf.reduce_sum(self._total)))

    def fail(self):
        """Runs a step that is expected to fail; says how and how soon."""
        start = time.time()
        try:
            self.run()
        except tf.errors.OpError as error:
            say(error=type(error).__name__, message=error.message, seconds=time.time() - start)
        else:
            say(error=None)


def peer_dies(job):
    step = Step(job)
    step.run()
    if job.process == 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    step.fail()


def peer_aborts(job):
    step = Step(job)
    step.run()
    if job.process == 1:
        job.abort("the disk is full")
        time.sleep(1)
        return
    step.fail()


def peer_leaves(job):
    step = Step(job)
    step.run()
    if job.process == 1:
        job.stop()
        return
    step.fail()


def end_of_data(job):
    step = Step(job)
    step.run()
    if job.process == 0:
        step.fail()
    job.end_generation(f"no more data in process {job.process}")
    say(total=step.run())


def different_shapes(job):
    Step(job, shape=[2 + job.process]).fail()


def different_keys(job):
    Step(job, key=f"key_{job.process}").fail()


def no_gloo(job):
    step = Step(job)
    say(transport=step.communicator.transport, total=step.run())
    start = time.time()
    try:
        Communicator("machines", [0, 1], transport="gloo", job=job)
    except JobError as error:
        say(message=str(error), seconds=time.time() - start)


def exchange(job):
    say(
        got=[part.decode() for part in job.exchange("hello", b"ab" * (job.process + 1))],
        empty=[part.decode() for part in job.exchange("empty", b"")],
    )


def main():
    hosts, process, scenario = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3]
    if process == 1 and len(sys.argv) > 4:
        native.LIBRARY_FOLDER = sys.argv[4]
    with Job.start(hosts, process, start_timeout=60, stall_warning=10, timeout=30) as job:
        globals()[scenario](job)


if __name__ == "__main__":
    main()
