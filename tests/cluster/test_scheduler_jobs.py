"""Tasks of srun and mpirun are one job without TF_CONFIG. Stand-ins start the tasks as real processes."""

import os
import subprocess
import sys

import pytest

from tests.utils.networks import CAN_MAKE, two_networks

pytestmark = pytest.mark.timeout(120)

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MEAN = os.path.join(HERE, "jobs", "mean.py")
LAUNCHER = os.path.join(ROOT, "tools", "epl-launch")


def start(*command, **env):
    environment = dict(os.environ, PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="", PYTHON=sys.executable, **env)
    environment["PATH"] = os.path.join(HERE, "stand_ins") + os.pathsep + os.environ["PATH"]
    environment.pop("TF_CONFIG", None)
    return subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=environment,
        timeout=110,
    )


@pytest.mark.parametrize(
    "launcher, machines",
    [
        (["srun", "-n", 2, "-w", "node1"], ["127.0.0.1", "127.0.0.1"]),
        pytest.param(["srun", "-n", 2, "-w", "127.0.0.[1-2]"], ["127.0.0.1", "127.0.0.2"], marks=pytest.mark.long),
        (["mpirun", "-n", 2, "-H", "node1:2"], ["127.0.0.1", "127.0.0.1"]),
    ],
)
def test_tasks_train_together(launcher, machines):
    done = start(*launcher, sys.executable, MEAN)
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        assert f"{rank}: worker {rank} of 2 at {machines}: weight -1.5" in done.stdout
    assert done.stdout.count("has started 2 tasks, which are one job: 127.0.0.1:") == 1


@pytest.mark.skipif(not CAN_MAKE, reason="namespaces need root and iproute2")
def test_tasks_on_two_machines_train_over_their_network():
    with two_networks() as networks:
        names = f"10.203.0.1={networks.own},10.203.0.2={networks.stranger}"
        done = start("srun", "-n", 2, "-w", "10.203.0.[1-2]", sys.executable, MEAN, NETWORKS=names)
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        assert f"{rank}: worker {rank} of 2 at ['10.203.0.1', '10.203.0.2']: weight -1.5" in done.stdout


@pytest.mark.long
def test_mpirun_on_several_machines_takes_the_list_of_the_user():
    hosts = "127.0.0.1:1,127.0.0.2:1"
    done = start("mpirun", "-n", 2, "-H", hosts, sys.executable, MEAN, EPL_JOB_HOSTS=hosts)
    assert done.returncode == 0, done.stdout
    assert "1: worker 1 of 2 at ['127.0.0.1', '127.0.0.2']: weight -1.5" in done.stdout


def test_tasks_that_nothing_joins_do_not_train_alone():
    done = start("mpirun", "-n", 2, "-H", "node1:1,node2:1", sys.executable, MEAN)
    assert done.returncode != 0
    assert "nothing joins them to one job" in done.stdout and "-x EPL_JOB_HOSTS=node1:4,node2:4" in done.stdout
    assert "weight" not in done.stdout


def test_an_empty_tf_config_trains_each_task_alone():
    done = start("srun", "-n", 2, "-w", "node1", "env", "TF_CONFIG={}", sys.executable, MEAN)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("worker 0 of 1 at ['127.0.0.1']: weight -1.0") == 2


@pytest.mark.parametrize("size", [["--num_workers", 1], ["-H", "localhost:1"]])
def test_the_launcher_in_every_task_is_refused(tmp_path, size):
    launch = size + ["--gpu_per_worker", 1, "--log_dir", tmp_path / "logs", MEAN]
    done = start("srun", "-n", 2, "-w", "node1", sys.executable, LAUNCHER, *launch)
    assert done.returncode == 2
    assert "srun has started epl-launch as task 1 of 2, and each would start a job of its own" in done.stdout
    assert not (tmp_path / "logs").exists()


def test_a_launcher_of_one_worker_does_not_read_the_scheduler(tmp_path):
    launch = [
        "--num_workers",
        2,
        "--gpu_per_worker",
        1,
        "--machine_rank",
        0,
        "--machine_list",
        "127.0.0.1:1,127.0.0.1:2",
    ]
    done = start(sys.executable, LAUNCHER, *launch, "--dry_run", MEAN, PMIX_RANK="0", EPL_CLUSTER_DEVICE_TYPE="cpu")
    assert done.returncode == 0, done.stdout


def test_the_launcher_in_one_task_wins_over_the_scheduler(tmp_path):
    launch = ["--num_workers", 2, "--gpu_per_worker", 1, "--log_dir", tmp_path / "logs", "--show_all", MEAN]
    done = start("srun", "-n", 1, "-w", "node1", sys.executable, LAUNCHER, *launch)
    assert done.returncode == 0, done.stdout
    assert "worker 1 of 2 at ['127.0.0.1', '127.0.0.1']: weight -1.5" in done.stdout
