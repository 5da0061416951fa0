"""What the variables of launchers say about a job. Real tasks are in tests/cluster/test_scheduler_jobs.py."""

import fcntl
import os
import subprocess
import termios

import pytest

from epl.utils import schedulers
from epl.utils.errors import ClusterError


def slurm(rank=0, size=4, nodes="n[1-2]", counts="2(x2)", **more):
    environ = {
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts,
    }
    return dict(environ, **more)


def open_mpi(rank=0, size=4, local_rank=0, local_size=2, **more):
    environ = {
        "PMIX_NAMESPACE": "8888.1",
        "PMIX_RANK": str(rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
    }
    return dict(environ, **more)


def horovod(rank=0, size=4, local_rank=0, local_size=4, **more):
    environ = {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(local_size),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "41017",
    }
    return dict(environ, **more)


def torch(rank=0, size=4, **more):
    environ = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "RANK": str(rank), "WORLD_SIZE": str(size)}
    return dict(environ, **more)


def machines(environ):
    task = schedulers.find(environ)
    return [address.rpartition(":")[0] for address in schedulers.addresses(task, environ)]


def ports(environ):
    return [int(address.rpartition(":")[2]) for address in schedulers.addresses(schedulers.find(environ), environ)]


def refusal(environ):
    with pytest.raises(ClusterError) as error:
        schedulers.addresses(schedulers.find(environ), environ)
    assert "TF_CONFIG={}" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        slurm(size=1, nodes="n1", counts="1"),
        open_mpi(size=1, local_size=1),
        horovod(size=1, local_size=1),
        torch(size=1),
        {"RANK": "0", "WORLD_SIZE": "4"},  # names that anybody may use
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]"},  # a script of sbatch
    ],
)
def test_one_process_is_no_job(environ):
    assert schedulers.find(environ) is None


@pytest.mark.parametrize(
    "environ, expected",
    [
        (slurm(rank=3), ["n1", "n1", "n2", "n2"]),
        (slurm(SLURM_DISTRIBUTION="cyclic:block"), ["n1", "n2", "n1", "n2"]),
        (slurm(SLURMD_NODENAME="n2", rank=2), ["n1", "n1", "n2", "n2"]),
        (slurm(size=2, nodes="n1", counts="2"), ["127.0.0.1"] * 2),
        (slurm(size=3, nodes="n[1-2]", counts="2,1"), ["n1", "n1", "n2"]),
        (open_mpi(local_size=4), ["127.0.0.1"] * 4),
        (open_mpi(rank=3, local_rank=1, EPL_JOB_HOSTS="a:2,b:2"), ["a", "a", "b", "b"]),
        (open_mpi(rank=3, local_rank=1, EPL_JOB_HOSTS="a,b"), ["a", "a", "b", "b"]),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "EPL_JOB_PORT": "5000"}, ["127.0.0.1"] * 2),
        (horovod(rank=3, local_rank=3), ["127.0.0.1"] * 4),
        (horovod(rank=3, local_rank=1, local_size=2, EPL_JOB_HOSTS="a:2,b:2"), ["a", "a", "b", "b"]),
        (torch(rank=1, LOCAL_RANK="1", LOCAL_WORLD_SIZE="4"), ["127.0.0.1"] * 4),
        (torch(rank=1, EPL_JOB_HOSTS="a,b,c,d"), ["a", "b", "c", "d"]),
    ],
)
def test_the_machine_of_each_task(environ, expected):
    assert machines(environ) == expected


def test_a_file_of_hosts_that_mpirun_has_is_read(tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("worker-0.job slots=2\nworker-1.job slots=2\n")
    environ = open_mpi(rank=2, OMPI_MCA_orte_default_hostfile=str(hostfile))
    assert machines(environ) == ["worker-0.job"] * 2 + ["worker-1.job"] * 2


@pytest.mark.parametrize(
    "environ, launcher",
    [
        (dict(slurm(rank=1, size=2), **open_mpi(rank=3)), "mpirun of Open MPI"),  # mpirun starts helpers by srun
        (dict(slurm(rank=1), PMI_RANK="1", PMI_SIZE="4"), "srun"),  # srun --mpi=pmi2
    ],
)
def test_mpirun_inside_of_slurm_and_srun_with_pmi(environ, launcher):
    assert schedulers.find(environ).launcher == launcher


@pytest.fixture
def with_terminal():
    """Variables of a step of `srun --pty`: those of its task 0, which has a terminal."""
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        ["sleep", "60"],
        stdin=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    yield {"SLURM_PTY_PORT": "40000", "SLURM_TASK_PID": str(process.pid)}
    process.kill()
    process.wait()
    os.close(controller)
    os.close(terminal)


@pytest.fixture
def without_terminal():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield {"SLURM_PTY_PORT": "40000", "SLURM_TASK_PID": str(process.pid)}
    process.kill()
    process.wait()


@pytest.mark.parametrize("more", [{}, {"PMIX_RANK": "0"}, {"PMI_RANK": "0", "PMI_SIZE": "4"}])
def test_an_interactive_shell_in_a_step_of_several_tasks_is_alone(with_terminal, more):
    assert schedulers.find(slurm(**with_terminal, **more)) is None


def test_mpirun_in_an_interactive_shell_starts_a_job(with_terminal):
    task = schedulers.find(dict(slurm(), **open_mpi(), **with_terminal))
    assert (task.launcher, task.size) == ("mpirun of Open MPI", 4)


def test_srun_in_an_interactive_shell_starts_a_job(without_terminal):
    assert schedulers.find(slurm(**without_terminal)).size == 4


@pytest.mark.parametrize("more", [{"SLURM_PTY_PORT": "1"}, {"SLURM_PTY_PORT": "1", "SLURM_TASK_PID": "0"}])
def test_a_task_that_cannot_be_seen_is_one_of_several(more):
    assert schedulers.find(slurm(**more)).size == 4


def test_the_port_follows_from_the_job_and_the_step():
    first = ports(slurm())
    assert first == list(range(first[0], first[0] + 4)) and 10000 <= first[0] < 30000
    assert ports(slurm(rank=3)) == first
    assert ports(slurm(SLURM_STEP_ID="1")) != first and ports(slurm(SLURM_JOB_ID="18")) != first
    assert ports(open_mpi(local_size=4)) != ports(open_mpi(local_size=4, PMIX_NAMESPACE="9999.1"))


def test_the_port_of_the_user_wins():
    assert ports(slurm(EPL_JOB_PORT="4000")) == [4000, 4001, 4002, 4003]


@pytest.mark.parametrize("port", ["x", "0", "65533"])
def test_what_is_no_port_is_refused(port):
    with pytest.raises(ClusterError, match="EPL_JOB_PORT=.* is no port from 1 to 65532"):
        ports(slurm(EPL_JOB_PORT=port))


@pytest.mark.parametrize(
    "environ, text",
    [
        (open_mpi(), "no list says where they are"),
        (open_mpi(EPL_JOB_HOSTS="a:1,b:1"), "have 2 slot(s) for 4 tasks"),
        (open_mpi(EPL_JOB_HOSTS="a:x"), "EPL_JOB_HOSTS: 'a:x' is neither host"),
        (open_mpi(rank=2, EPL_JOB_HOSTS="a:3,b:1"), "it is rank 2 of 3 on a, and by OMPI_COMM_WORLD_LOCAL_RANK"),
        (open_mpi(local_size=4, PMIX_NAMESPACE=""), "no variable names the job"),
        (horovod(local_size=2), "EPL_JOB_HOSTS=node1:4,node2:4 horovodrun"),
        (torch(rank=3), "export EPL_JOB_HOSTS=node1:4,node2:4 on every machine"),
        (torch(LOCAL_WORLD_SIZE="4", MASTER_PORT=""), "export EPL_JOB_PORT=23456 on every machine"),
        (slurm(counts="2"), "2 machine(s) and 1 number(s) of tasks"),
        (slurm(counts="2,1"), "the list has 3 task(s)"),
        (slurm(nodes="n[1"), "no list of machines"),
        (slurm(SLURM_DISTRIBUTION="arbitrary"), "srun -m block"),
        (slurm(SLURMD_NODENAME="n2"), "by the list this task is on n1, and it runs on n2"),
    ],
)
def test_several_tasks_that_nothing_joins_are_refused(environ, text):
    assert text in refusal(environ)


@pytest.mark.parametrize(
    "environ, text",
    [
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0: this process is one of several"),
        (slurm(rank=4), "SLURM_PROCID='4' is no number below"),
        (horovod(rank=""), "HOROVOD_RANK='' is no number below"),
        (slurm(rank="x"), "SLURM_PROCID='x' is no number below"),
    ],
)
def test_tasks_whose_number_is_unknown_are_refused(environ, text):
    with pytest.raises(ClusterError) as error:
        schedulers.find(environ)
    assert text in str(error.value) and "TF_CONFIG={}" in str(error.value)
