"""What the flags mean: the environment, arguments, directories and refusals that they lead to."""

import datetime
import json
import os
import re
import subprocess
import sys

import pytest

from epl.utils.version import VERSION

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(60)

SHOW_ENV = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], sys.executable]))"
START = "EPL_COMMUNICATION_START_TIMEOUT"
SIZE = ("--num_workers", "2", "--gpu_per_worker", "1")


def shown(log, index):
    """Environment, arguments and interpreter that a worker running SHOW_ENV saw."""
    return json.loads(log(index))


def test_each_worker_sees_the_cluster_and_its_own_index(run, log):
    assert run(SHOW_ENV, workers=3, name="job.py").code == 0
    configs = [json.loads(shown(log, index)[0]["TF_CONFIG"]) for index in range(3)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(3)]
    hosts = configs[0]["cluster"]["worker"]
    assert all(config["cluster"] == {"worker": hosts} for config in configs)
    assert len(set(hosts)) == 3 and all(host.startswith("127.0.0.1:") for host in hosts)


def test_without_gpu_a_worker_gets_virtual_cpu_devices(run, log):
    run(SHOW_ENV, devices=3, name="job.py")
    env = shown(log, 1)[0]
    assert (env["CUDA_VISIBLE_DEVICES"], env["EPL_CLUSTER_NUM_VIRTUAL_DEVICES"]) == ("", "3")


def test_python_script_runs_unbuffered_by_the_same_python_with_its_arguments_only(run, log):
    run(SHOW_ENV, name="job.py", args=["--num_workers", "9", "--debug", "-x", "a b", "$HOME"])
    env, arguments, python = shown(log, 0)
    assert arguments == ["--num_workers", "9", "--debug", "-x", "a b", "$HOME"]
    assert os.path.realpath(python) == os.path.realpath(sys.executable)
    assert env["PYTHONUNBUFFERED"] == "1"


def test_python_script_without_arguments_gets_none(run, log, tmp_path):
    run(SHOW_ENV, name="job.py")
    assert shown(log, 1)[1] == []
    assert shown(log, 1)[0]["EPL_TASK_DIR"] == str(tmp_path / "logs" / "1")


def test_shell_script_without_arguments_gets_its_task_dir(run, log, tmp_path):
    run('echo "$#" "$1"')
    assert log(1) == "1 {}\n".format(tmp_path / "logs" / "1")


def test_shell_script_gets_the_arguments_and_its_task_dir_where_asked(run, log, tmp_path):
    run('printf "%s|" "$@"', args=["a b", "--dir={task_dir}/out", "--", "-1"])
    assert log(0) == "a b|--dir={}/out|--|-1|".format(tmp_path / "logs" / "0")


def test_shell_script_finds_the_same_python(run, log):
    run('python -c "import sys; print(sys.prefix)"')
    assert log(0).strip() == sys.prefix


def test_malloc_settings_leave_the_users_own(run, log):
    run(SHOW_ENV, name="job.py", MALLOC_ARENA_MAX="7")
    env = shown(log, 0)[0]
    assert (env["MALLOC_ARENA_MAX"], env["MALLOC_MMAP_MAX_"]) == ("7", "0")


def test_malloc_has_an_arena_for_each_device(run, log):
    run(SHOW_ENV, name="job.py", workers=1, devices=3)
    assert shown(log, 0)[0]["MALLOC_ARENA_MAX"] == "3"


def test_malloc_settings_can_be_left_out(run, log):
    run(SHOW_ENV, "--no_malloc_tuning", name="job.py")
    assert not [key for key in shown(log, 0)[0] if key.startswith("MALLOC_")]


def test_env_sets_variables_of_the_workers(run, log):
    run('echo "$A,$TF_CONFIG"', "--env", "A=b=c", "--env", "TF_CONFIG=mine")
    assert log(0) == "b=c,mine\n"


def test_x_gives_variables_with_their_value_here_or_another_one(run, log):
    run('echo "$A,$B"', "-x", "A", "-x", "B=2", A="1")
    assert log(1) == "1,2\n"


def test_debug_gives_worker_0_the_terminal_and_no_log(run, log, tmp_path):
    launch = run("echo out of $EPL_TASK_DIR", "--debug")
    assert "\nout of {}\n".format(tmp_path / "logs" / "0") in launch.output
    assert not (tmp_path / "logs" / "0" / "stderr_0.log").exists()
    assert log(1) == "out of {}\n".format(tmp_path / "logs" / "1")


@pytest.mark.parametrize("flags", [["--debug", "False"], ["--debug=false"]])
def test_debug_false_is_false(run, log, flags):
    assert "[worker 0] here" in run("echo here", *flags).output
    assert log(0) == "here\n"


@pytest.mark.parametrize("label, suffix", [([], ""), (["--task_label", "trial"], "_trial")])
def test_default_log_dir_tells_date_size_script_and_label(run, tmp_path, label, suffix):
    run("echo", *label, name="train.v2.sh", log_dir=None)
    (name,) = os.listdir(str(tmp_path / "experiments"))
    assert name in {
        f"{day}_2w1g_train{suffix}"
        for day in (datetime.date.today(), datetime.date.today() - datetime.timedelta(days=1))
    }


def test_machine_rank_starts_only_that_worker_with_the_addresses_as_given(run, log, tmp_path):
    launch = run(SHOW_ENV, "--machine_list", "10.0.0.1:2222,10.0.0.2:2223", "--machine_rank", "1", name="job.py")
    assert launch.code == 0 and os.listdir(str(tmp_path / "logs")) == ["1"]
    env = shown(log, 1)[0]
    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2223"]},
        "task": {"type": "worker", "index": 1},
    }
    assert "EPL_LISTEN_FD" not in env
    assert START not in env  # who waits cannot know that the other machine has started


@pytest.mark.parametrize(
    "flags, environment, expected", [([], {}, "21600"), ([], {START: "5"}, "5"), (["--env", START + "=7"], {}, "7")]
)
def test_workers_that_one_launcher_ends_together_may_wait_for_hours(run, log, flags, environment, expected):
    run(SHOW_ENV, *flags, name="job.py", **environment)
    assert [shown(log, worker)[0][START] for worker in (0, 1)] == [expected] * 2


def test_dry_run_prints_commands_and_starts_nothing(run, tmp_path):
    launch = run("touch started", "--dry_run", args=["a b"])
    assert launch.code == 0
    assert os.listdir(str(tmp_path)) == ["job.sh"]
    assert launch.output.count("bash job.sh 'a b'") == 2
    assert "EPL_CLUSTER_NUM_VIRTUAL_DEVICES=1" in launch.output and '"index": 1' in launch.output


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--num_workers", "2", "job.sh"], "--gpu_per_worker"),
        (["--gpu_per_worker", "2", "job.sh"], "--num_workers"),
        (["--num_workers", "0", "--gpu_per_worker", "1", "job.sh"], "at least 1, got 0"),
        (["--num_workers", "two", "--gpu_per_worker", "1", "job.sh"], "'two'"),
        (["--num_workers", "1", "--gpu_per_worker", "0", "job.sh"], "--gpu_per_worker must be at least 1"),
        (list(SIZE), "training_script"),
        (list(SIZE) + ["missing.py"], "'missing.py' does not exist"),
        (list(SIZE) + ["."], "'.' is a directory"),
        (list(SIZE) + ["a\0b.py"], "'a\\x00b.py' holds a NUL character"),
        (list(SIZE) + ["--log_dir", "a\0", "job.sh"], "'a\\x00' holds a NUL character"),
        (["job.sh"] + list(SIZE), "--num_workers stands after the script job.sh"),
        (list(SIZE) + ["--debug=maybe", "job.sh"], "'maybe'"),
        (list(SIZE) + ["--machine_rank", "2", "--machine_list", "a:1,b:1", "job.sh"], "from 0 to num_workers - 1 = 1"),
        (list(SIZE) + ["--machine_rank", "0", "job.sh"], "--machine_list"),
        (list(SIZE) + ["--machine_list", "a:1", "job.sh"], "1 address(es), --num_workers is 2"),
        (list(SIZE) + ["--machine_list", "a:1,b", "job.sh"], "'b' is not ip:port"),
        (list(SIZE) + ["--machine_list", "a:1,a:1", "job.sh"], "more than once"),
        (["--check", "job.sh"], "--check takes no script; leave it out (-H checks several machines)"),
        (["--check", "--machine_list", "a:1"], "takes no --machine_list"),
        (["--check", "--num_workers", "0"], "at least 1, got 0"),
        (["--check", "--log_dir", "a"], "--check starts no job and takes no --log_dir"),
        (["--check", "--dry_run"], "--check starts no job and takes no --dry_run"),
        (["--check", "--max_restarts", "1"], "--check starts no job and takes no --max_restarts"),
        (["-H", "a:2", "job.sh"], "required: --gpu_per_worker"),
        (list(SIZE) + ["-H", "a:1", "job.sh"], "-H: its 1 host(s) have 1 slot(s) for 2 tasks"),
        (list(SIZE) + ["-H", "a:x", "job.sh"], "-H: 'a:x' is neither host, nor host:slots"),
        (list(SIZE) + ["-H", "a:2", "--machine_rank", "0", "job.sh"], "-H does not go together with --machine_rank"),
        (list(SIZE) + ["-H", "a:2", "--debug", "job.sh"], "-H does not go together with --debug"),
        (list(SIZE) + ["--hostfile", "job.sh", "-H", "a:2", "job.sh"], "does not go together with -H"),
        (list(SIZE) + ["--hostfile", "none", "job.sh"], "--hostfile none: No such file"),
        (list(SIZE) + ["--hostfile", "job.sh", "job.sh"], "it names no host"),
        (list(SIZE) + ["-x", "NOT_SET_ANYWHERE", "job.sh"], "-x NOT_SET_ANYWHERE: the variable is not set here"),
        (list(SIZE) + ["-x", "EPL_JOB_SECRET", "job.sh"], "every user of this machine can read a command line"),
        (list(SIZE) + ["--max_restarts", "-1", "job.sh"], "--max_restarts"),
        (list(SIZE) + ["--kill_after", "nan", "job.sh"], "--kill_after"),
        (list(SIZE) + ["--env", "A", "job.sh"], "KEY=VALUE"),
        (
            ["--num_worker", "2", "--gpu_per_worker", "1", "job.sh"],
            "unknown option --num_worker; did you mean --num_workers?",
        ),
        (list(SIZE) + ["--debog=True", "job.sh"], "unknown option --debog; did you mean --debug?"),
        (
            list(SIZE) + ["--nnodes", "2", "job.sh"],
            "unknown option --nnodes, which other launchers have. Here -H HOST:SLOTS",
        ),
        (list(SIZE) + ["--master_addr=a", "job.sh"], "Here --machine_list has the address of every worker"),
        (["--nproc_per_node", "2", "-H", "a:2,b:2", "job.sh"], "give them as slots, -H node1:4,node2:4"),
        (["-np", "two", "job.sh"], "'two'"),
        (["-np", "2", "python", "missing.py"], "'missing.py' does not exist"),
        (["-np", "2", "python"], "required: training_script"),
        (["-np", "2", "python", "-O", "job.sh"], "-O is an option of Python"),
        (["-np", "2", "/other/bin/python3", "job.sh"], "run by the launcher's own Python"),
        (["-np", "2", "-m"], "needs the name of a module"),
        (["-np", "2", "-m", "no_such.module"], "there is no module no_such for `-m no_such.module`"),
        (["-np", "2", "--show_rank", "1,2", "job.sh"], "from 0 to num_workers - 1 = 1, as in 1,3; got '2'"),
        (["-np", "2", "--show_rank", "1", "--show_all", "job.sh"], "--show_rank does not go together with --show_all"),
        (["--check", "--show_rank", "1"], "--check starts no job and takes no --show_rank"),
        (list(SIZE) + ["--zzz", "job.sh"], "unknown option --zzz; epl-launch --help"),
    ],
)
def test_wrong_arguments_are_refused_with_code_2(tmp_path, monkeypatch, capsys, flags, message):
    from epl.launcher import options as launcher_options

    (tmp_path / "job.sh").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as refusal:
        launcher_options.parse(flags)
    assert refusal.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["-np", "3"], ["-n", "3"], ["--nproc_per_node", "3"], ["--nproc-per-node=3"]])
def test_the_number_of_workers_has_the_spellings_of_other_launchers(tmp_path, monkeypatch, flags):
    (tmp_path / "job.sh").write_text("")
    monkeypatch.chdir(tmp_path)
    options = parsed(flags + ["job.sh", "-n", "9"])
    assert (options.num_workers, options.gpu_per_worker, options.script_args) == (3, 1, ["-n", "9"])
    assert parsed(flags + ["--gpu_per_worker", "2", "job.sh"]).gpu_per_worker == 2


@pytest.mark.parametrize(
    "words, script, is_module, arguments",
    [
        (["python", "train.py", "--rate", "1"], "train.py", False, ["--rate", "1"]),
        (["python3", "-u", "train.py", "-m", "a"], "train.py", False, ["-m", "a"]),
        ([sys.executable, "train.py"], "train.py", False, []),
        (["-m", "package.train", "-m", "a"], "package.train", True, ["-m", "a"]),
        (["python", "-m", "package.train", "a"], "package.train", True, ["a"]),
        (["--", "python", "-m", "json.tool"], "json.tool", True, []),
    ],
)
def test_python_and_modules_are_understood(tmp_path, monkeypatch, words, script, is_module, arguments):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    options = parsed(list(SIZE) + words)
    assert (options.script, options.is_module, options.script_args) == (script, is_module, arguments)


def test_a_script_of_the_name_python_is_a_script(tmp_path, monkeypatch):
    (tmp_path / "python").write_text("")
    monkeypatch.chdir(tmp_path)
    assert parsed(list(SIZE) + ["python", "a"]).script == "python"


def parsed(flags):
    from epl.launcher import options as launcher_options

    return launcher_options.parse(flags)


def test_a_module_runs_by_the_same_python_with_its_arguments(start, log, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(SHOW_ENV)
    launch = start("", "-m", "package.train", name="7", args=["--num_workers", "9"], log_dir=None)
    assert launch.wait() == 0, launch.output
    (directory,) = (tmp_path / "experiments").iterdir()
    _, arguments, python = json.loads((directory / "1" / "stderr_1.log").read_text())
    assert directory.name.endswith("_2w1g_train") and arguments == ["7", "--num_workers", "9"]
    assert os.path.realpath(python) == os.path.realpath(sys.executable)


def test_show_rank_shows_these_workers(run):
    output = run("echo here", "--show_rank", "1,3", workers=4).output
    assert sorted(line for line in output.splitlines() if line.endswith("here")) == [
        "[worker 1] here",
        "[worker 3] here",
    ]


@pytest.mark.parametrize(
    "workers, flags, who",
    [
        (4, [], "all 4 workers"),
        (1, [], "the worker"),
        (2, ["--machine_rank", "1", "--machine_list", "10.0.0.1:1,10.0.0.2:1"], "worker 1"),
    ],
)
def test_the_end_of_a_good_job_is_told(run, workers, flags, who):
    last = run("true", *flags, workers=workers).output.splitlines()[-1]
    assert re.match(rf"epl-launch: {who} ended, \d+\.\d s$", last), last


def test_the_end_of_a_failed_job_is_not_told_as_that_of_a_good_one(run):
    assert " ended, " not in run("exit 3").output


def test_a_log_directory_that_cannot_be_made_is_told(run, tmp_path):
    (tmp_path / "file").write_text("")
    launch = run("true", log_dir="file/logs")
    assert launch.code == 2
    assert "the log directory file/logs/0 cannot be made: file: there is a file; give another one by" in launch.output


def test_wrong_arguments_start_nothing(run, tmp_path):
    launch = run("touch started", "--machine_rank", "7")
    assert launch.code == 2
    assert os.listdir(str(tmp_path)) == ["job.sh"]


def test_version_is_that_of_the_package(launcher):
    answer = subprocess.run(
        [sys.executable, launcher, "--version"], stdout=subprocess.PIPE, universal_newlines=True, timeout=30
    )
    assert (answer.returncode, answer.stdout) == (0, f"epl-launch {VERSION}\n")


def test_help_does_not_load_tensorflow(launcher):
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", launcher, "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=dict(os.environ, PYTHON=sys.executable),
        timeout=30,
    )
    assert answer.returncode == 0 and "--machine_list" in answer.stdout
    assert "epl.launcher.main" in answer.stderr
    assert "tensorflow" not in answer.stderr and "numpy" not in answer.stderr
