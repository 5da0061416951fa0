"""How jobs end: exit codes, failures, interrupts, and that nothing is left behind in any case."""

import os
import re
import signal
import time
from unittest import mock

import pytest

from epl.launcher.job import LaunchedJob

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(60)

ONE_FAILS = 'echo "last words of $0"; if [[ $EPL_TASK_DIR == */1 ]]; then exit 7; fi; sleep 60'
# A shell handles a signal when the command that it waits for has ended.
WAIT = "for i in $(seq 600); do sleep 0.1; done"
STUBBORN = """
import os, signal, sys, time
if os.environ["EPL_TASK_DIR"].endswith("0"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
    time.sleep(60)
while "deaf" not in open(sys.argv[1]).read():
    time.sleep(0.02)
sys.exit(5)
"""
# A child in the background, one in a session of its own, and one whose parent is gone.
FAMILY = """
sleep 61 &
setsid sleep 62 &
(setsid bash -c 'sleep 63; echo' &)
bash -c 'trap "" TERM; echo deaf; sleep 64' &
echo started
wait
"""


def family_is_up(launch, log, count=2):
    def up():
        commands = " ".join(launch.survivors().values())
        try:
            logs = "".join(log(index) for index in range(count))
        except OSError:
            return False
        return all(commands.count(f"sleep {n}") >= count for n in (61, 62, 63)) and logs.count("deaf") == count

    return up


def test_success_is_code_0_when_all_have_ended(run, log):
    launch = run("if [[ $EPL_TASK_DIR == */1 ]]; then sleep 0.5; fi; echo end")
    assert launch.code == 0 and log(1) == "end\n"


def test_failure_ends_the_others_and_gives_its_code(start, tmp_path):
    launch = start(ONE_FAILS, workers=3)
    began = time.monotonic()
    assert launch.wait() == 7
    assert time.monotonic() - began < 5
    assert not launch.survivors()


def test_failure_is_reported_with_worker_host_code_and_log(run, tmp_path):
    output = run(ONE_FAILS).output
    assert re.search(r"worker 1 failed: exit code 7 \(host \S+, pid \d+, \d+\.\d s\)", output)
    assert "last lines of logs/1/stderr_1.log:\nepl-launch:   | last words of job.sh\n" in output


def test_failure_report_holds_20_lines_at_most(run):
    lines = re.findall(r"  \| (.*)", run("seq 1 50; exit 1", workers=1).output)
    assert lines == [str(i) for i in range(31, 51)]


def test_failure_without_output_says_so(run):
    assert "it wrote nothing to logs/0/stderr_0.log" in run("exit 1", workers=1).output


def test_failure_of_the_debugged_worker_is_reported(run):
    launch = run("exit 9", "--debug", workers=1)
    assert launch.code == 9 and "worker 0 failed: exit code 9" in launch.output


def test_worker_that_ignores_sigterm_is_killed(start):
    launch = start(STUBBORN, "--kill_after", "0.5", name="job.py", args=["logs/0/stderr_0.log"])
    began = time.monotonic()
    assert launch.wait() == 5
    assert 0.5 < time.monotonic() - began < 8
    assert not launch.survivors()


def test_worker_that_ignores_sigterm_is_killed_within_10_seconds_by_default(start):
    launch = start(STUBBORN, name="job.py", args=["logs/0/stderr_0.log"])
    began = time.monotonic()
    assert launch.wait() == 5
    assert 4 < time.monotonic() - began < 10
    assert not launch.survivors()


def test_worker_gets_the_time_to_end_by_itself(run, log):
    script = (
        "if [[ $EPL_TASK_DIR == */1 ]]; then until [ -e ready ]; do sleep 0.1; done; exit 7; fi\n"
        "trap 'echo cleaned up; exit 0' TERM; touch ready; " + WAIT
    )
    launch = run(script)
    assert launch.code == 7 and "cleaned up" in log(0)


@pytest.mark.parametrize("name, code", [("KILL", 137), ("SEGV", 139), ("TERM", 143)])
def test_death_by_signal_is_named_and_gives_128_plus_its_number(run, name, code):
    launch = run(f"kill -{name} $$; sleep 60", workers=1)
    assert launch.code == code
    assert f"worker 0 failed: killed by SIG{name} " in launch.output


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_to_the_launcher_ends_everything(start, log, until, signum, code):
    launch = start(FAMILY, "--kill_after", "0.5")
    assert until(family_is_up(launch, log))
    os.kill(launch.process.pid, signum)
    assert launch.wait(8) == code
    assert not launch.survivors()


def test_ctrl_c_in_the_terminal_reaches_the_launcher_alone(start, until):
    launch = start("trap 'echo got TERM; exit 0' TERM; trap 'echo got INT' INT; echo up; " + WAIT, workers=1)
    while "up" not in launch.process.stdout.readline():
        pass
    os.killpg(launch.process.pid, signal.SIGINT)
    assert launch.wait(8) == 130
    assert "got TERM" in launch.output and "got INT" not in launch.output


def test_second_ctrl_c_kills_at_once(start, log, until):
    launch = start(FAMILY, "--kill_after", "60")
    assert until(family_is_up(launch, log))
    os.kill(launch.process.pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(launch.process.pid, signal.SIGINT)
    assert launch.wait(5) == 130
    assert not launch.survivors()


def test_killed_launcher_leaves_no_orphan(start, log, until):
    launch = start(FAMILY, "--kill_after", "0.5")
    assert until(family_is_up(launch, log))
    launch.process.kill()
    assert launch.none_left_within(8), launch.survivors()


def test_launcher_killed_while_it_starts_leaves_no_orphan(start, until):
    for delay in (0.05, 0.1, 0.15, 0.2):
        launch = start("sleep 60", "--kill_after", "0.2", workers=3)
        time.sleep(delay)
        launch.process.kill()
        assert launch.none_left_within(5), launch.survivors()


def test_killed_guard_is_reported_and_leaves_no_orphan(start, log, until):
    launch = start(FAMILY)
    assert until(family_is_up(launch, log))
    own = [pid for pid, command in launch.survivors().items() if "epl-launch" in command]
    (guard,) = set(own) - {launch.process.pid}
    os.kill(guard, signal.SIGKILL)
    assert launch.wait(8) == 1
    assert "guard process was killed" in launch.output
    assert not launch.survivors()


def test_what_workers_leave_running_is_named_and_ended(run):
    launch = run("setsid sleep 61 & echo end", workers=1)
    assert launch.code == 0
    assert re.search(r"ending what they left running: \d+ \(sleep 61\)", launch.output)
    assert not launch.survivors()


def test_failure_of_a_worker_ends_its_own_children(run):
    launch = run("sleep 61 & setsid sleep 62 & exit 3", workers=1)
    assert launch.code == 3
    assert not launch.survivors()


def test_launcher_in_a_launched_script_is_ended_too(start, log, until, tmp_path, launcher):
    (tmp_path / "inner.sh").write_text("sleep 61")
    inner = f"{launcher} --num_workers 2 --gpu_per_worker 1 --log_dir inner inner.sh"
    launch = start(inner, workers=1)
    assert until(lambda: list(launch.survivors().values()).count("sleep 61 ") == 2)
    os.kill(launch.process.pid, signal.SIGINT)
    assert launch.wait(10) == 130
    assert not launch.survivors()


def test_restarts_run_all_again_with_new_logs_until_success(run, log):
    text = """
        echo "try $EPL_RESTART_COUNT"
        [[ $EPL_TASK_DIR == */0 ]] && touch up$EPL_RESTART_COUNT && exec sleep 0.3
        until [[ -e up$EPL_RESTART_COUNT ]]; do sleep 0.05; done  # worker 0 has written
        [[ $EPL_RESTART_COUNT -lt 2 ]] && exit 4
        exit 0
    """
    launch = run(text, "--max_restarts", "3")
    assert launch.code == 0
    assert [log(0), log(0, ".restart1"), log(1, ".restart2")] == ["try 0\n", "try 1\n", "try 2\n"]
    assert "restart 2 of 3" in launch.output and "restart 3 of 3" not in launch.output


def test_restarts_end_with_the_code_of_the_last_failure(run):
    launch = run("exit $((EPL_RESTART_COUNT + 3))", "--max_restarts", "2", workers=1)
    assert launch.code == 5 and launch.output.count("failed: exit code") == 3


def test_interrupted_job_is_not_started_again(start, until):
    launch = start("echo up; sleep 60", "--max_restarts", "2", workers=1)
    while "up" not in launch.process.stdout.readline():
        pass
    os.kill(launch.process.pid, signal.SIGTERM)
    assert launch.wait(8) == 143 and "starting all workers again" not in launch.output


def test_who_runs_on_after_others_ended_well_is_told_once():
    console = mock.Mock()
    starts = [mock.Mock(worker_index=index) for index in range(3)]
    job = LaunchedJob(starts, {}, [], mock.Mock(), console, mock.Mock())
    job._take_end(1, 0, mock.Mock())
    now = time.monotonic()
    job._tell_who_is_left(now + 1)
    assert not console.say.called
    for later in (40, 80):
        job._tell_who_is_left(now + later)
    (text,) = [call[0][0] for call in console.say.call_args_list]
    assert text.startswith("worker(s) 1 ended with exit code 0, and worker(s) 0, 2 still run.")


def test_each_worker_is_a_process_group_and_session_of_its_own(run, log):
    run("read -r _ _ _ _ group session _ < /proc/$$/stat; echo $$ $group $session")
    for index in range(2):
        assert len(set(log(index).split())) == 1
