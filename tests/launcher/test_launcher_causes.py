"""Which worker is reported as the first that failed, with what words and exit code; and a log that takes no more."""

import os
import subprocess
import sys
import time

import pytest

from tests.launcher.conftest import LAUNCHER, ROOT

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(60)

# The worker's end of the pipe, without the seconds that TensorFlow takes to load.
TALK = """
import importlib.util, json, os, sys, time
spec = importlib.util.spec_from_file_location("last_words", {!r})
last_words = importlib.util.module_from_spec(spec)
spec.loader.exec_module(last_words)
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def fail(code, text, cause=None):
    last_words.tell_failure(last_words.LastWords(text, cause and last_words.Cause(*cause)))
    print("words of worker", me, flush=True)
    sys.exit(code)
""".format(os.path.join(ROOT, "epl", "utils", "last_words.py"))
FOLLOWS = (
    TALK
    + """
if me == 1:
    last_words.tell_failure(last_words.LastWords("ValueError: rotten", None))
    time.sleep(1)
    sys.exit(3)
time.sleep(0.3)
fail(1, "InternalError: worker 1: ValueError: rotten", (1, "ValueError: rotten"))
"""
)


def test_the_worker_that_failed_first_is_reported_although_it_ends_last(run):
    launch = run(FOLLOWS, name="job.py", workers=3)
    assert launch.code == 3
    assert "epl-launch: first cause: worker 1: ValueError: rotten\nepl-launch: worker 1 failed: exit code 3 (host" in (
        launch.output
    )
    assert "worker 0 failed" not in launch.output and "worker 2 failed" not in launch.output


def test_a_cause_is_found_over_several_workers(run):
    text = TALK + 'fail(5 - me, "error %d" % me, None if me == 2 else (me + 1, "error of the next"))'
    launch = run(text, name="job.py", workers=3)
    assert launch.code == 3 and "first cause: worker 2: error 2\nepl-launch: worker 2 failed" in launch.output


def test_a_cause_that_does_not_end_is_named_and_ended(run):
    text = TALK + 'if me == 1: time.sleep(50)\nfail(4, "JobError: it", (1, "it does not answer"))'
    began = time.monotonic()
    launch = run(text, name="job.py")
    assert launch.code == 4 and time.monotonic() - began < 15 and not launch.survivors()
    assert "first cause: worker 1: it does not answer\nepl-launch: worker 0 failed because of that: exit code 4" in (
        launch.output
    )


def test_a_cause_on_another_machine_is_named(run):
    flags = ["--machine_list", "10.0.0.1:2222,10.0.0.2:2222", "--machine_rank", "0"]
    launch = run(TALK + 'fail(4, "JobError: it", (1, "ValueError: far away"))', *flags, name="job.py")
    assert launch.code == 4
    assert "first cause: worker 1: ValueError: far away\nepl-launch: worker 0 failed because of that" in launch.output


def test_workers_that_name_each_other_are_reported(run):
    launch = run(TALK + 'fail(6, "it was he", (1 - me, "it was he"))', name="job.py")
    assert launch.code == 6 and "first cause: worker " in launch.output


def test_a_child_without_the_pipe_writes_to_no_file_of_the_same_number(run, log, tmp_path):
    child = "import os; os.dup2(os.open('log', os.O_WRONLY | os.O_CREAT), {fd}); " + "exec(open('job.py').read())"
    text = TALK + (
        "import subprocess\n"
        "if 'CHILD' not in os.environ:\n"
        "    fd = int(os.environ['EPL_LAUNCHER_PIPE'].split(':')[0])\n"
        "    subprocess.call([sys.executable, '-c', {!r}.format(fd=fd)], env=dict(os.environ, CHILD='1'))\n"
        "else:\n"
        "    fail(1, 'error')"
    ).format(child)
    launch = run(text, name="job.py", workers=1)
    assert launch.code == 0 and "words of worker 0" in log(0)
    assert (tmp_path / "log").read_bytes() == b""


def test_nonsense_on_the_pipe_is_passed_over(run):
    text = (
        TALK
        + "pipe = last_words._pipe()\n"
        + (
            r"for junk in (b'\xff\n', b'[]\n', b'{}\n', b'3\n', b'{\"failure\": 1, \"cause\": 2}\n'):"
            " os.write(pipe, junk)"
            "\nfail(2, 'error')"
        )
    )
    launch = run(text, name="job.py", workers=1)
    assert launch.code == 2 and "first cause: worker 0: error\n" in launch.output


def test_the_frames_in_which_an_op_was_made_are_left_out(run):
    trace = "\\n".join(["Error: it", "", "Original stack trace for x:"] + ["  File frame"] * 30 + [""])
    launch = run(f"printf '{trace}\\nend\\n'; exit 1", workers=1)
    shown = launch.output.split("last lines of")[1]
    assert "Error: it" in shown and "  | end" in shown and "frame" not in shown


FULL_DISK = """
import epl
epl.init()
print("x" * 200000)
print("lost")
import sys
sys.stderr.write("lost, too")
print("done", file=open("done", "w"))
"""


def test_a_full_disk_does_not_end_the_training_and_is_told(tmp_path):
    (tmp_path / "job.py").write_text(FULL_DISK)
    (tmp_path / "logs").mkdir()
    # A mount of its own, which goes with its process.
    launch = f"exec {sys.executable} {LAUNCHER} --num_workers 1 --gpu_per_worker 1 --log_dir logs job.py"
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    done = subprocess.run(
        own + ["sh", "-c", "mount -t tmpfs -o size=64k tmpfs logs && " + launch],
        cwd=str(tmp_path), timeout=50, check=False,
        env=dict(os.environ, PYTHON=sys.executable, PYTHONPATH=ROOT, EPL_CLUSTER_DEVICE_TYPE="cpu"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0 and (tmp_path / "done").exists(), done.stdout[-2000:]
    told = "worker 0 cannot write to logs/0/stderr_0.log: [Errno 28] No space left on device. What it prints is lost"
    assert done.stdout.count(told) == 1
