"""`-H` and `--hostfile`: one job on several machines. A stand-in for ssh runs the commands here as real processes."""

import contextlib
import datetime
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from epl.launcher import agent, cores, ssh
from epl.utils.version import VERSION
from tests.launcher.test_launcher_causes import FOLLOWS, TALK
from tests.utils.networks import CAN_MAKE, two_networks

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(90)

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TWO = "127.0.0.2:2,127.0.0.3:2"
SHOW_ENV = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"


@pytest.fixture
def path(tmp_path):
    """Variables that put the stand-in before ssh."""
    directory = os.path.join(HERE, "stand_ins")
    (tmp_path / "tmp").mkdir()
    return {
        "PATH": directory + os.pathsep + os.environ["PATH"],
        "SSH_CALLS": str(tmp_path / "calls"),
        "TMPDIR": str(tmp_path / "tmp"),
    }


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def test_workers_of_all_machines_are_one_job(run, log, tmp_path, path):
    flags = ["-H", TWO, "-x", "GIVEN", "-x", "SET=a b", "--show_all"]
    launch = run(SHOW_ENV, *flags, workers=4, name="job.py", GIVEN="x", EPL_ZERO_LEVEL="v1", LEFT_HERE="y", **path)
    assert launch.code == 0, launch.output
    shown = [json.loads(log(index)) for index in range(4)]
    configs = [json.loads(env["TF_CONFIG"]) for env, _ in shown]
    hosts = configs[0]["cluster"]["worker"]
    assert [host.rpartition(":")[0] for host in hosts] == ["127.0.0.2"] * 2 + ["127.0.0.3"] * 2 and len(set(hosts)) == 4
    assert [config["task"]["index"] for config in configs] == [0, 1, 2, 3]
    assert all(config["cluster"]["worker"] == hosts for config in configs)
    for env, directory in shown:
        assert (env["GIVEN"], env["SET"], env["EPL_ZERO_LEVEL"], directory) == ("x", "a b", "v1", str(tmp_path))
        assert "LEFT_HERE" not in env and env["EPL_COMMUNICATION_START_TIMEOUT"] == "21600"
    assert len({env["EPL_JOB_SECRET"] for env, _ in shown}) == 1 and len(shown[0][0]["EPL_JOB_SECRET"]) == 64
    assert ["EPL_LISTEN_FD" in env for env, _ in shown] == [True, False, False, False]
    assert all(f'[worker {index}] [{{"' in launch.output for index in range(4))
    assert "127.0.0.2: worker 1: pid" in launch.output and "Welcome" not in launch.output


def test_no_secret_stands_on_a_command_line(run, log, tmp_path, path):
    run(SHOW_ENV, "-H", TWO, workers=4, name="job.py", **path)
    assert json.loads(log(0))[0]["EPL_JOB_SECRET"] not in "".join(calls(tmp_path))


def test_the_workers_of_each_machine_share_its_cores(run, log, path):
    script = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    run(script, "-H", "127.0.0.2:2,127.0.0.3:1", workers=3, name="job.py", **path)
    cpus = os.sched_getaffinity(0)
    shares = cores.divide(cores.read_cores(cpus), 2)
    assert [json.loads(log(index)) for index in range(3)] == [*shares, sorted(cpus)]


def training_script():
    with open(os.path.join(ROOT, "tests", "cluster", "jobs", "mean.py")) as source:
        return source.read()


@pytest.mark.skipif(not CAN_MAKE, reason="namespaces need root and iproute2")
def test_two_machines_train_over_their_network(start, path):
    hosts = "10.203.0.1,10.203.0.2"
    with two_networks() as networks:
        names = f"10.203.0.1={networks.own},10.203.0.2={networks.stranger}"
        flags = ["-H", hosts, "--show_all"]
        launch = start(training_script(), *flags, name="job.py", PYTHONPATH=ROOT, NETWORKS=names, **path)
        code = launch.wait(60)
    assert code == 0, launch.output
    assert "[worker 1] worker 1 of 2 at ['10.203.0.1', '10.203.0.2']: weight -1.5" in launch.output


def test_workers_train_together(start, path):
    launch = start(training_script(), "-H", "127.0.0.2,127.0.0.3", "--show_all", name="job.py", PYTHONPATH=ROOT, **path)
    assert launch.wait(60) == 0, launch.output
    for index in (0, 1):
        text = f"[worker {index}] worker {index} of 2 at ['127.0.0.2', '127.0.0.3']: weight -1.5"
        assert text in launch.output


def test_a_hostfile_gives_the_number_of_workers(launcher, tmp_path, path):
    (tmp_path / "hosts").write_text("127.0.0.2 slots=1\n# a comment\n127.0.0.3:2\n")
    (tmp_path / "job.sh").write_text("echo here\n")
    done = subprocess.run(
        [sys.executable, launcher, "--hostfile", "hosts", "--gpu_per_worker", "1", "--log_dir", "logs", "job.sh"],
        cwd=str(tmp_path),
        env=dict(os.environ, PYTHON=sys.executable, EPL_CLUSTER_DEVICE_TYPE="cpu", **path),
        stdout=subprocess.PIPE,
        timeout=60,
    )
    assert done.returncode == 0 and b"[worker 0] here" in done.stdout
    assert sorted(os.listdir(str(tmp_path / "logs"))) == ["0", "1", "2"]


def test_one_failure_ends_all_machines(start, until, path):
    script = "[ $EPL_TASK_DIR = $PWD/logs/3 ] && sleep 1 && exit 7\nsleep 60 & wait\n"
    launch = start(script, "-H", TWO, workers=4, **path)
    assert launch.wait(30) == 7, launch.output
    assert "worker 3 failed: exit code 7" in launch.output
    assert "the part of the job on 127.0.0.3 (worker(s) 2, 3) ended: exit code 7" in launch.output
    assert launch.none_left_within(5), launch.survivors()


def test_the_part_with_the_first_cause_decides_although_another_ends_first(run, path):
    launch = run(FOLLOWS, "-H", "127.0.0.2:1,127.0.0.3:1", "--kill_after", "1", name="job.py", **path)
    assert launch.code == 3, launch.output
    assert "the part of the job on 127.0.0.3 (worker(s) 1) ended: exit code 3" in launch.output
    assert "127.0.0.3: first cause: worker 1: ValueError: rotten" in launch.output


def test_a_cause_on_another_machine_that_does_not_end_is_ended(run, path):
    script = TALK + 'if me == 1: time.sleep(50)\nfail(4, "JobError: it", (1, "it does not answer"))'
    launch = run(script, "-H", "127.0.0.2:1,127.0.0.3:1", name="job.py", **path)
    assert launch.code == 4 and not launch.survivors(), launch.output
    assert "127.0.0.2: first cause: worker 1: it does not answer" in launch.output


def test_a_machine_that_is_told_to_end_reports_a_failure_that_it_had_seen(run, tmp_path, path):
    script = TALK + (
        "if me == 0: time.sleep(50)\n"  # the cause; on the machine of worker 1, which waits for it
        "if me == 1:\n"
        "    open('failed', 'w').close()\n"
        "    fail(5, 'JobError: it', (0, 'it hangs'))\n"
        "while not os.path.exists('failed'): time.sleep(0.1)\n"
        "time.sleep(1.5)\n"
        "fail(6, 'OSError: full')\n"
    )
    launch = run(script, "-H", "127.0.0.2:2,127.0.0.3:1", name="job.py", workers=3, **path)
    assert launch.code == 6, launch.output
    assert "127.0.0.2: first cause: worker 0: it hangs" in launch.output
    assert "worker 1 failed because of that: exit code 5" in launch.output


def started(launch, until, count):
    """Waits until so many workers run."""
    assert until(lambda: sum("job.sh" in command for command in launch.survivors().values()) >= count, 20)


@pytest.mark.parametrize("signum, code", [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_no_machine_keeps_workers_when_the_launcher_ends(start, until, path, signum, code):
    launch = start("sleep 61 & wait\n", "-H", TWO, workers=4, **path)
    started(launch, until, 5)  # the launcher, too, has the name of the script
    launch.process.send_signal(signum)
    assert launch.wait(30) == code, launch.output
    assert launch.none_left_within(15), launch.survivors()


def test_a_second_interrupt_kills_at_once(start, until, tmp_path, path):
    launch = start(
        "trap 'touch told' TERM; sleep 62 & wait; wait; sleep 62\n", "-H", TWO, "--kill_after", "50", workers=4, **path
    )
    started(launch, until, 5)
    launch.process.send_signal(signal.SIGINT)
    assert until((tmp_path / "told").exists)
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait(20) == 130, launch.output
    assert launch.none_left_within(5), launch.survivors()


def test_the_first_interrupt_after_a_failure_does_not_kill(start, until, tmp_path, path):
    script = (
        "if [ $EPL_TASK_DIR = $PWD/logs/1 ]; then until [ -e up ]; do sleep 0.1; done; exit 7; fi\n"
        "trap 'touch told; sleep 2; touch saved; exit 1' TERM; touch up; sleep 64 & wait\n"
    )
    launch = start(script, "-H", "127.0.0.2:1,127.0.0.3:1", "--kill_after", "20", **path)
    assert until((tmp_path / "told").exists, 20)
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait(30) == 130 and (tmp_path / "saved").exists(), launch.output


def test_a_second_interrupt_does_not_wait_for_an_agent_that_hangs(start, until, path):
    launch = start("echo up; sleep 65 & wait\n", "-H", TWO, "--kill_after", "50", workers=4, **path)
    started(launch, until, 5)
    hanging = [pid for pid, command in launch.survivors().items() if agent.FLAG in command and "ssh" not in command]
    for pid in hanging:
        os.kill(pid, signal.SIGSTOP)
    launch.process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # two signals at once are one
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait(10) == 130, launch.output
    for pid in hanging:
        os.kill(pid, signal.SIGCONT)
    assert "does not end; closing the connection" in launch.output
    assert launch.none_left_within(15), launch.survivors()


def test_the_socket_of_a_connection_has_a_short_name(run, path, tmp_path):
    (tmp_path / ("d" * 90)).mkdir()
    launch = run("true\n", "-H", "127.0.0.2", "--dry_run", workers=1, **dict(path, TMPDIR=str(tmp_path / ("d" * 90))))
    (name,) = {word for word in launch.output.split() if word.startswith("ControlPath=")}
    assert len(name) < len("ControlPath=") + 50


def test_a_connection_that_is_lost_ends_the_job(start, until, path):
    launch = start("sleep 63 & wait\n", "-H", TWO, workers=4, **path)
    started(launch, until, 5)
    (client,) = [
        pid for pid, command in launch.survivors().items() if "stand_ins/ssh" in command and "127.0.0.3" in command
    ]
    os.kill(client, signal.SIGKILL)
    assert launch.wait(30) == 137, launch.output
    assert "the part of the job on 127.0.0.3 (worker(s) 2, 3) ended: killed by SIGKILL" in launch.output
    assert launch.none_left_within(15), launch.survivors()


def test_a_machine_that_is_missing_starts_nothing(run, tmp_path, path):
    launch = run("touch started\n", "-H", "127.0.0.2:1,down:1", "--max_restarts", "3", **path)
    assert launch.code == 255 and "starting all workers again" not in launch.output
    assert "down: ssh: connect to host down port 22: Connection refused" in launch.output
    assert "`ssh -o BatchMode=yes down true` must work here" in launch.output
    assert not (tmp_path / "started").exists()


def test_a_restart_uses_the_connection_again(run, log, tmp_path, path):
    script = "echo run $EPL_RESTART_COUNT; exit $((1 - EPL_RESTART_COUNT))\n"
    launch = run(script, "-H", "127.0.0.2:1,127.0.0.3:1", "--max_restarts", "1", **path)
    assert launch.code == 0, launch.output
    assert log(1, ".restart1") == "run 1\n"
    opened = [line for line in calls(tmp_path) if "-O exit" not in line]
    paths = {word for line in opened for word in line.split() if word.startswith("ControlPath=")}
    assert len(opened) == 4 and len(paths) == 1 and all("ControlMaster=auto" in line for line in opened)
    assert sum("-O exit" in line for line in calls(tmp_path)) == 2
    assert not os.path.exists(os.path.dirname(paths.pop().partition("=")[2]))


@contextlib.contextmanager
def written_by_another_job(path):
    path.parent.mkdir(parents=True)
    with open(str(path), "w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        yield


def test_a_default_log_directory_in_use_gets_a_number_on_all_machines(run, tmp_path, path):
    default = tmp_path / "experiments" / f"{datetime.date.today()}_2w1g_job"
    script = "echo $EPL_TASK_DIR; exit $((1 - EPL_RESTART_COUNT))\n"
    with written_by_another_job(default / "1" / "stderr_1.log"):
        launch = run(script, "-H", "127.0.0.2,127.0.0.3", "--max_restarts", "1", log_dir=None, **path)
    assert launch.code == 0, launch.output
    for index in (0, 1):
        directory = f"{default}_2/{index}"
        for suffix in ("", ".restart1"):
            with open(f"{directory}/stderr_{index}{suffix}.log") as log:
                assert log.read() == directory + "\n"


def test_a_given_log_directory_in_use_is_refused_once(run, tmp_path, path):
    with written_by_another_job(tmp_path / "logs" / "1" / "stderr_1.log"):
        launch = run("touch started\n", "-H", "127.0.0.2,127.0.0.3", "--max_restarts", "3", **path)
    assert launch.code == 2 and not (tmp_path / "started").exists()
    assert launch.output.count("another job is writing to logs/1/stderr_1.log") == 1


def test_this_machine_alone_needs_no_ssh(run, log, tmp_path):
    launch = run(SHOW_ENV, "-H", "localhost:2", name="job.py", PATH="/nowhere")
    assert launch.code == 0, launch.output
    hosts = json.loads(json.loads(log(1))[0]["TF_CONFIG"])["cluster"]["worker"]
    assert [host.rpartition(":")[0] for host in hosts] == ["127.0.0.1"] * 2


def test_an_answer_may_come_in_parts(tmp_path):
    (tmp_path / "agent.py").write_text(
        "import sys, time\n"
        "for part in ('Welcome!\\nepl-launch ag', 'ent: {\"port\": 7, \"log_number\": 2}', '\\nfirst'):\n"
        "    print(part, end='', flush=True)\n"
        "    time.sleep(0.3)\n"
    )
    order = agent.AgentOrder(VERSION, "", {}, {}, "", 0, False)
    one = ssh._Agent("node", "node", [0], [sys.executable, str(tmp_path / "agent.py")], order)
    output = b""
    while one.descriptors:
        output += one.read()[0]
    one.close()
    assert (one.process.wait(), one.ready, one.port, output) == (0, True, 7, b"first")


def test_an_end_before_the_start_of_workers_is_a_failure(run, tmp_path, path):
    launch = run("touch started\n", "-H", "127.0.0.2:1,forced:1", **path)
    assert launch.code == 1 and not (tmp_path / "started").exists()
    assert "the part of the job on forced ended with exit code 0 before it started a worker" in launch.output


def test_a_secret_of_the_machine_does_not_count(run, log, tmp_path):
    (tmp_path / "key").write_text("k" * 32)
    launch = run(
        SHOW_ENV, "-H", "localhost:1", "--secret_file", "key", workers=1, name="job.py", EPL_JOB_SECRET="s" * 32
    )
    assert launch.code == 0, launch.output
    env, _ = json.loads(log(0))
    assert env["EPL_JOB_SECRET_FILE"] == str(tmp_path / "key") and "EPL_JOB_SECRET" not in env


def test_localhost_next_to_other_machines_is_refused(run, path):
    launch = run("touch started\n", "-H", "localhost:1,127.0.0.2:1", **path)
    assert launch.code == 2 and "localhost stands next to other machines" in launch.output


def test_a_dry_run_shows_the_commands_and_starts_nothing(run, tmp_path, path):
    launch = run("touch started\n", "-H", TWO, "--dry_run", workers=4, **path)
    assert launch.code == 0 and sorted(os.listdir(str(tmp_path))) == ["job.sh", "tmp"]
    assert "# worker(s) 2, 3 on 127.0.0.3" in launch.output and "ssh -T -o BatchMode=yes" in launch.output


@pytest.mark.parametrize(
    "change, text",
    [
        ({"version": "0"}, f"EPL here is version {VERSION}"),
        ({"directory": "/no/such"}, "the working directory /no/such cannot be used here: No such file"),
        ({}, "the training script 'none.py' cannot be read here"),
    ],
)
def test_a_machine_that_does_not_fit_is_refused(tmp_path, change, text):
    options = dict.fromkeys(ssh.Options._fields, None)
    options.update(num_workers=1, gpu_per_worker=1, ranks=[0], script="none.py")
    order = agent.AgentOrder(VERSION, str(tmp_path), {}, options, "127.0.0.1", 0, False)._replace(**change)
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "epl_launch.py"), agent.FLAG],
        input=json.dumps(order._asdict()) + "\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=30,
    )
    assert done.returncode == 2 and text in done.stderr


def test_what_is_carried_over():
    environ = {"PATH": "p", "EPL_A": "1", "NCCL_DEBUG": "INFO", "HOME": "h", "SSH_TTY": "t", "EPL_LISTEN_FD": "3"}
    assert sorted(ssh.carried(dict(environ, TF_CONFIG="{}"))) == ["EPL_A", "NCCL_DEBUG", "PATH"]


def check_of(hosts, path, **env):
    """Output and exit code of `--check -H hosts`."""
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "epl-launch"), "--check", "-H", hosts],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env={**os.environ, **path, "PYTHON": sys.executable, "EPL_CLUSTER_DEVICE_TYPE": "cpu", **env},
        cwd=path["TMPDIR"],
        timeout=200,
    )
    return done.stdout, done.returncode


@pytest.mark.timeout(240)
def test_check_looks_at_each_machine_and_reduces_between_them(path):
    output, code = check_of("127.0.0.2,127.0.0.3:2", path)
    assert code == 0 and output.count("epl-launch --check: EPL") == 2, output
    assert "1 worker(s), 1 virtual" in output and "2 worker(s), 1 virtual" in output
    assert re.search(r"ok    all-reduce of 1 MB 127.0.0.2 and 127.0.0.3: \d+\.\d\d ms \(\w+\)", output), output
    assert "all is well on 2 machine(s)" in output


@pytest.mark.timeout(240)
def test_a_machine_that_fails_its_check_is_named_and_the_others_are_checked(path):
    output, code = check_of("127.0.0.2,down", path)
    assert code == 1 and output.count("epl-launch --check: EPL") == 1, output
    assert "not tried, because of the failures on down" in output and "1 failure(s)" in output
