"""The secret of a job: where it comes from, and that workers and companions of workers meet by it."""

import os
import socket

import ops_harness
import pytest

from epl.ops import job, job_secret
from epl.utils.errors import JobSecretError

SECRET = "0123456789abcdef"
PROGRAM = """
import os, sys
from epl.ops.job import Job, JobError
hosts, process, secrets = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3].split(",")
os.environ["EPL_JOB_SECRET"] = secrets[process]
try:
    job = Job.start(hosts, process, start_timeout=8, timeout=30)
except JobError as error:
    print(error)
else:
    companion = job.companion()
    print(companion.exchange("x", b"%d" % process))
    companion.stop()
    job.stop()
"""


def meet(tmp_path, secrets):
    """What each of two processes with these secrets prints."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with ops_harness.processes(str(program), 2, [",".join(secrets)]) as workers:
        outputs = [worker.communicate(timeout=60) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], outputs
        return [output.decode() for output, _ in outputs], outputs[0][1].decode()


@pytest.mark.timeout(90)
def test_workers_and_companions_with_one_secret_meet(tmp_path):
    outputs, errors = meet(tmp_path, [SECRET, SECRET])
    assert outputs == ["[b'0', b'1']\n"] * 2
    assert "no secret" not in errors


@pytest.mark.timeout(90)
def test_workers_with_different_secrets_do_not_meet_and_print_no_secret(tmp_path):
    (output, refused), errors = meet(tmp_path, [SECRET, SECRET[::-1]])
    assert "its job secret is another one than worker 0's" in refused
    assert errors.count("was refused: its job secret is another one") == 1
    assert "did not appear within 8 s" in output
    assert not any(secret in text for secret in (SECRET, SECRET[::-1]) for text in (output, refused, errors))


def test_the_variable_counts_before_the_file(tmp_path):
    key = tmp_path / "key"
    key.write_text("  of the file 456789\n")
    key.chmod(0o600)
    both = {"EPL_JOB_SECRET": SECRET, "EPL_JOB_SECRET_FILE": str(key)}
    assert job_secret.job_secret(both) == SECRET.encode()
    del both["EPL_JOB_SECRET"]
    assert job_secret.job_secret(both) == b"of the file 456789"
    assert job_secret.job_secret({}) is None


def test_a_short_secret_is_refused():
    with pytest.raises(JobSecretError, match="EPL_JOB_SECRET holds 0 bytes, expected at least 16"):
        job_secret.job_secret({"EPL_JOB_SECRET": ""})


def test_a_file_that_everyone_can_read_or_that_is_not_there_is_refused(tmp_path):
    key = tmp_path / "key"
    with pytest.raises(JobSecretError, match="No such file"):
        job_secret.job_secret({"EPL_JOB_SECRET_FILE": str(key)})
    key.write_text(SECRET)
    key.chmod(0o644)
    with pytest.raises(JobSecretError, match=r"every user of this machine can read or write it \(mode 644\)"):
        job_secret.job_secret({"EPL_JOB_SECRET_FILE": str(key)})


# What epl.init() makes for worker 1 of two.
ANNOUNCEMENT = job.Announcement(("10.0.0.1:1", "10.0.0.2:1"), 1, lambda: None, 1.0, 0.0, 1.0, os.getpid())


def test_announcing_a_job_refuses_a_secret_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("EPL_JOB_SECRET_FILE", "nowhere")
    with pytest.raises(JobSecretError, match="EPL_JOB_SECRET_FILE=nowhere: No such file"):
        job.Job.announce(ANNOUNCEMENT)
    assert job.Job.announced_hosts() == ()


def test_the_file_is_read_where_the_job_is_announced(monkeypatch, tmp_path):
    (tmp_path / "key").write_text(SECRET)
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPL_JOB_SECRET_FILE", "key")
    try:
        job.Job.announce(ANNOUNCEMENT)
        monkeypatch.chdir("/")
        assert job_secret.job_secret(os.environ) == SECRET.encode()
    finally:
        job.Job.announce(None)


def test_a_file_that_was_refused_is_read_again(tmp_path):
    key = tmp_path / "key"
    key.write_text("short")
    key.chmod(0o600)
    with pytest.raises(JobSecretError, match="holds 5 bytes"):
        job_secret.job_secret({"EPL_JOB_SECRET_FILE": str(key)})
    key.write_text(SECRET + "\n")
    assert job_secret.job_secret({"EPL_JOB_SECRET_FILE": str(key)}) == SECRET.encode()


def test_only_a_job_that_others_can_reach_is_warned_of_its_missing_secret():
    assert job_secret.is_open_to_strangers(["10.0.0.1:1", "10.0.0.2:1"], None)
    assert not job_secret.is_open_to_strangers(["10.0.0.1:1", "10.0.0.2:1"], b"secret")
    assert not job_secret.is_open_to_strangers(["127.0.0.1:1", "localhost:2"], None)
    assert not job_secret.is_open_to_strangers(["10.0.0.1:1"], None)


@pytest.mark.timeout(60)
def test_a_job_without_a_secret_says_so(tmp_path):
    program = "from epl.ops.job import Job; Job.start(['127.0.0.1:0', 'elsewhere:1'], 0, start_timeout=0.5)"
    worker = ops_harness.start_python(["-c", program])
    _, errors = worker.communicate(timeout=50)
    assert errors.decode().count("EPL: warning: this job has no secret") == 1


def test_a_companion_of_a_job_of_one_machine_listens_on_loopback_alone():
    with job._listening_socket("127.0.0.1:0", ["127.0.0.1:1", "127.0.0.1:2"]) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
