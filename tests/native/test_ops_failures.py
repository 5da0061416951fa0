"""What a step says and does when it cannot be done."""

import json
import os
import signal
import time

import numpy as np
import ops_harness
import pytest
import tensorflow.compat.v1 as tf

SCENARIOS = os.path.join(os.path.dirname(ops_harness.__file__), "ops_scenarios.py")


def build_step(communicator):
    """A graph of the sum of both ranks, and a placeholder: fed seconds, rank 1 fails after them instead of joining."""
    bad = tf.placeholder_with_default(-1.0, [])

    def check(seconds):
        if seconds >= 0:
            time.sleep(float(seconds))
            raise ValueError("rank 1 is bad")
        return np.float32(0)

    totals = []
    for rank in range(2):
        with tf.device(f"/device:CPU:{rank}"):
            value = tf.constant([1.0, 2.0])
            if rank == 1:
                value += tf.py_func(check, [bad], tf.float32)
            totals.append(communicator.all_reduce(value, rank, "x"))
    return totals, bad


@pytest.fixture
def step():
    communicator = ops_harness.local_communicator(2)
    with tf.Graph().as_default() as graph, ops_harness.session(2, graph) as session:
        totals, bad = build_step(communicator)
        yield session, totals, bad


@pytest.mark.parametrize("seconds", [0, 0.5], ids=["at_once", "while_it_waits"])
def test_failure_elsewhere_in_the_step_cancels_the_collective(step, seconds):
    session, totals, bad = step
    start = time.time()
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1 is bad"):
        session.run(totals, {bad: seconds})
    assert time.time() - start < 5
    ops_harness.local_job().end_generation("the step failed")


def test_next_step_after_a_failed_one_works(step):
    session, totals, bad = step
    for seconds in (0.1, 0.0, 0.1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(totals, {bad: seconds})
        ops_harness.local_job().end_generation("the step failed")
        np.testing.assert_array_equal(session.run(totals), [[2, 4], [2, 4]])


def test_time_limit_of_the_session_cancels_the_collective(step):
    session, totals, _ = step
    with pytest.raises(tf.errors.DeadlineExceededError):
        session.run(totals[0], options=tf.RunOptions(timeout_in_ms=300))
    ops_harness.local_job().end_generation("the step failed")
    np.testing.assert_array_equal(session.run(totals), [[2, 4], [2, 4]])


def test_missing_communicator_says_what_to_do():
    communicator = ops_harness.local_communicator(2)
    with tf.Graph().as_default() as graph, ops_harness.session(2, graph) as session:
        totals, _ = build_step(communicator)
        communicator.close()
        with pytest.raises(tf.errors.FailedPreconditionError, match="no such communicator. Create it with epl"):
            session.run(totals)


def test_weight_of_integers_is_refused_by_the_kernel():
    from epl.ops import collectives
    from epl.ops.collectives import CollectiveMember

    communicator = ops_harness.local_communicator(2)
    with tf.Graph().as_default() as graph, ops_harness.session(2, graph) as session:
        member = CollectiveMember(communicator.name, 0, "x", 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match="int32 cannot be weighted"):
            session.run(collectives.all_reduce(member, [tf.constant(3)], weight=0.5))


@pytest.mark.parametrize("splits, words", [([1, 3], "add up to 4, but the tensor has 5"), ([-1, 6], "is -1")])
def test_wrong_row_splits_are_refused(splits, words):
    communicator = ops_harness.local_communicator(2)
    with tf.Graph().as_default() as graph, ops_harness.session(2, graph) as session:
        output, _ = communicator.all_to_all(tf.zeros([5, 2]), 0, "x", row_splits=splits)
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            session.run(output)


def test_promise_of_equal_rows_is_checked():
    communicator = ops_harness.local_communicator(2)
    with tf.Graph().as_default() as graph, ops_harness.session(2, graph) as session:
        outputs = [communicator.all_gather(tf.zeros([rank + 1, 2]), rank, "x", equal_rows=True) for rank in range(2)]
        with pytest.raises(tf.errors.InvalidArgumentError, match="built with equal_rows=True"):
            session.run(outputs)
    ops_harness.local_job().end_generation("the step failed")


def run_scenario(name):
    """What each of the two processes said, and their exit codes."""
    with ops_harness.processes(SCENARIOS, 2, [name]) as workers:
        said, codes = [], []
        for worker in workers:
            output, errors = worker.communicate(timeout=60)
            said.append([json.loads(line) for line in output.decode().splitlines() if line.startswith("{")])
            codes.append(worker.returncode)
            assert worker.returncode in (0, -signal.SIGKILL), errors.decode()[-4000:]
    return said, codes


@pytest.mark.timeout(120)
def test_death_of_a_peer_is_an_internal_error_that_names_it():
    said, codes = run_scenario("peer_dies")
    assert codes == [0, -signal.SIGKILL]
    assert said[0][0]["error"] == "InternalError"
    assert "worker 1" in said[0][0]["message"]
    assert said[0][0]["seconds"] < 15


@pytest.mark.timeout(120)
def test_abort_of_a_peer_gives_its_reason():
    said, _ = run_scenario("peer_aborts")
    assert said[0][0]["error"] == "InternalError"
    assert "worker 1: the disk is full" in said[0][0]["message"]


@pytest.mark.timeout(120)
def test_peer_that_left_in_good_order_is_named():
    said, _ = run_scenario("peer_leaves")
    assert said[0][0]["error"] is not None
    assert "worker 1" in said[0][0]["message"] or "process 1" in said[0][0]["message"]


@pytest.mark.timeout(120)
def test_end_of_data_in_one_process_ends_the_step_in_all_and_the_next_one_works():
    said, codes = run_scenario("end_of_data")
    assert codes == [0, 0]
    assert said[0][0]["error"] == "OutOfRangeError"
    assert said[0][1] == said[1][0] == {"total": 3.0}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scenario", ["different_shapes", "different_keys"])
def test_ranks_that_differ_are_told_apart_in_every_process(scenario):
    said, _ = run_scenario(scenario)
    for process in range(2):
        assert said[process][0]["error"] == "InvalidArgumentError"
        assert "rank 0" in said[process][0]["message"]
        assert "rank 1" in said[process][0]["message"]


@pytest.mark.timeout(120)
def test_exchange_gives_every_process_the_bytes_of_all():
    said, _ = run_scenario("exchange")
    assert said[0] == said[1] == [{"got": ["ab", "abab"], "empty": ["", ""]}]


WAITS_FOR_A_PEER = """
import sys
from epl.ops.job import Job, JobError
print("started", flush=True)
try:
    Job.start(sys.argv[1].split(","), 0, start_timeout=float(sys.argv[2]))
except JobError as error:
    print(error)
"""


def start_waiting(timeout):
    hosts = ",".join(f"localhost:{port}" for port in ops_harness.free_ports(2))
    return hosts, ops_harness.start_python(["-c", WAITS_FOR_A_PEER, hosts, timeout])


@pytest.mark.timeout(60)
def test_process_that_never_starts_is_named():
    hosts, worker = start_waiting(1)
    output, errors = worker.communicate(timeout=30)
    assert worker.returncode == 0, errors.decode()
    assert hosts.split(",")[1] in output.decode()


@pytest.mark.timeout(60)
def test_ctrl_c_ends_the_wait_for_a_peer():
    _, worker = start_waiting(100)
    try:
        worker.stdout.readline()
        time.sleep(1)
        worker.send_signal(signal.SIGINT)
        _, errors = worker.communicate(timeout=10)
        assert b"KeyboardInterrupt" in errors
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()
