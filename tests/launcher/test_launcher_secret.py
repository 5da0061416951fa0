"""The secret of a job: another one in each start, the same in all workers, and nowhere but in their environment."""

import os
import subprocess
import sys

import pytest

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(60)

SHOW = 'echo "$EPL_JOB_SECRET $EPL_JOB_SECRET_FILE"'
TWO = ("--machine_list", "10.0.0.1:2222,10.0.0.2:2222", "--machine_rank", "0")


def test_all_workers_of_a_start_get_the_same_secret_and_the_next_start_another_one(run, log):
    shown = SHOW + "; sleep 1; exit $((1 - EPL_RESTART_COUNT))"
    run(shown, "--max_restarts", "1", EPL_JOB_SECRET_FILE="/of/another/job")
    first, second = [log(index).strip() for index in range(2)]
    assert first == second and len(first) == 64
    again = log(0, ".restart1").strip()
    assert len(again) == 64 and again != first


def test_the_secret_is_in_no_command_line_and_in_no_message(start, until):
    launch = start("exec sleep 60", "--show_all")

    def workers():
        return [pid for pid, command in launch.survivors().items() if command == "sleep 60 "]

    assert until(lambda: len(workers()) == 2)
    with open(f"/proc/{workers()[0]}/environ", "rb") as environ:
        variables = dict(entry.split(b"=", 1) for entry in environ.read().split(b"\0") if b"=" in entry)
    secret = variables[b"EPL_JOB_SECRET"].decode()
    assert not any(secret in command for command in launch.survivors().values())
    launch.process.terminate()
    launch.wait()
    assert secret not in launch.output


def test_on_several_machines_the_secret_is_the_users(run, log):
    assert run(SHOW, *TWO, name="a.sh", log_dir="logs").code == 0
    assert log(0).strip() == ""
    run(SHOW, *TWO, name="a.sh", log_dir="logs", EPL_JOB_SECRET="of the user, long enough")
    assert log(0).strip().endswith("\nof the user, long enough")


def test_a_secret_file_reaches_the_worker_as_a_path(run, log, tmp_path):
    (tmp_path / "key").write_text("of the file, long enough")
    run(SHOW, "--secret_file", "key", *TWO, EPL_JOB_SECRET="another one, long enough")
    assert log(0) == " {}\n".format(tmp_path / "key")


@pytest.mark.parametrize("flags, words", [
    (["--secret_file", "nowhere"], "'nowhere' cannot be read"),
    (["--env", "EPL_JOB_SECRET=x"], "every user of this machine can read a command line"),
    (["--env", "EPL_JOB_SECRET_FILE=job.key"], "--env EPL_JOB_SECRET_FILE: give the file by --secret_file job.key"),
])  # fmt: skip
def test_what_would_give_no_secret_or_give_it_away_is_refused(launcher, tmp_path, flags, words):
    (tmp_path / "job.sh").write_text("true")
    command = [sys.executable, launcher, "--num_workers", "1", "--gpu_per_worker", "1"] + flags + ["job.sh"]
    done = subprocess.run(command, cwd=str(tmp_path), env=dict(os.environ), stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert words in done.stderr.decode()
