"""Jobs and communicators of one process, as Python sees them."""

import _thread
import os
import signal
import threading

import ops_harness
import pytest

from epl.ops.communicator import Communicator
from epl.ops.job import Announcement, Job, JobError, interruptible


@pytest.fixture
def job():
    job = Job.start(["localhost:0"], 0)
    yield job
    job.stop()


def test_current_job_is_the_living_one(job):
    assert Job.current() is job
    job.stop()
    assert Job.current() is None


def test_starting_the_same_job_again_gives_the_living_one(job):
    assert Job.start(["localhost:0"], 0) is job


def test_starting_another_job_stops_the_living_one(job):
    other = Job.start(["127.0.0.1:0"], 0)
    assert not job.alive
    assert Job.current() is other
    other.stop()


@pytest.fixture
def announce():
    """`announce(pid)`: a job of one process, announced by the process of that number."""

    def call(pid):
        Job.announce(Announcement(("localhost:0",), 0, lambda: None, 10.0, 0.0, 10.0, pid))

    yield call
    Job.announce(None)
    if Job.current() is not None:
        Job.current().stop()


def test_an_announced_job_starts_when_it_is_joined(announce):
    announce(os.getpid())
    assert Job.announced_hosts() == ("localhost:0",) and Job.current() is None
    assert Job.join() is Job.current() is Job.join() is not None


def test_a_communicator_joins_the_announced_job(announce):
    announce(os.getpid())
    assert Communicator("pair", [0, 0]).transport == "local"


def test_without_an_announcement_nothing_is_joined():
    assert Job.join() is None


def test_a_fork_cannot_join_the_job_of_its_parent(announce):
    announce(os.getpid() + 1)
    with pytest.raises(JobError, match="This process is a fork of process"):
        Job.join()


def test_stopping_twice_is_allowed(job):
    job.stop()
    job.stop()


def test_aborted_job_is_not_reused(job):
    job.abort("the test wants it")
    assert Job.start(["localhost:0"], 0) is not job


def test_exchange_in_a_job_of_one_gives_the_own_bytes(job):
    assert job.exchange("key", b"\x00bytes") == [b"\x00bytes"]


def test_stopped_job_refuses_to_be_used(job):
    job.stop()
    with pytest.raises(JobError, match="was stopped"):
        job.exchange("key", b"")


def test_process_must_be_one_of_the_hosts():
    with pytest.raises(ValueError, match="process is 2, but there are 2 hosts"):
        Job.start(["a:1", "b:1"], 2)


def test_body_of_a_with_statement_that_fails_aborts_the_job():
    with pytest.raises(KeyError):
        with Job.start(["localhost:0"], 0) as job:
            raise KeyError("x")
    assert not job.alive


def test_job_that_is_never_stopped_stops_at_exit():
    code = "from epl.ops.job import Job; Job.start(['localhost:0'], 0)"
    worker = ops_harness.start_python(["-c", code])
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 0, errors.decode()


def test_communicator_knows_its_ranks(job):
    communicator = Communicator("quad", [0, 0, 0, 0], job=job)
    assert (communicator.world_size, communicator.local_ranks, communicator.transport) == (4, (0, 1, 2, 3), "local")


def test_communicator_of_the_same_name_and_ranks_is_the_same(job):
    Communicator("pair", [0, 0]).close()
    Communicator("pair", [0, 0])
    assert Communicator("pair", [0, 0]).world_size == 2


def test_communicator_of_the_same_name_and_other_ranks_is_refused(job):
    Communicator("pair", [0, 0])
    with pytest.raises(JobError, match="pair"):
        Communicator("pair", [0, 0, 0])


@pytest.mark.parametrize("rank_process, words", [([], "has no ranks"), ([0, 1], "names process 1, but the job has 1")])
def test_ranks_must_fit_the_job(job, rank_process, words):
    with pytest.raises(ValueError, match=words):
        Communicator("bad", rank_process)


def test_several_ranks_need_a_job():
    with pytest.raises(ValueError, match="there is no job"):
        Communicator("pair", [0, 0])


def test_unknown_transport_is_refused(job):
    with pytest.raises(JobError, match="pigeon"):
        Communicator("pair", [0, 0], transport="pigeon")


def test_error_of_a_blocking_call_reaches_the_caller():
    def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        interruptible(fail)


@pytest.fixture
def heeds_interrupts():
    """Lets this process react to an interrupt, which it ignores in a test run under nohup or in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_result_that_comes_after_the_interrupt_is_taken_back(heeds_interrupts):
    released, undone = threading.Event(), threading.Event()

    def call():
        _thread.interrupt_main()
        released.wait()
        return "job"

    with pytest.raises(KeyboardInterrupt):
        interruptible(call, undo=lambda result: undone.set())
    released.set()
    assert undone.wait(5)
