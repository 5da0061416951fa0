"""The job that srun, mpirun, horovodrun or torchrun has started: how many tasks, which one, on which machines.

    srun -n 4 python train.py          task 0   SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=4, SLURM_STEP_NODELIST=...
                                       task 1   SLURM_PROCID=1, ...
    mpirun -n 4 python train.py        task 0   OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=4, ...

Without this, each task would train alone and write the same checkpoint. TF_CONFIG goes before all of this: see
epl/cluster/tf_config.py. This module reads variables and files of hosts; it starts and connects nothing.
"""

import os
import re
import zlib
from typing import List, Mapping, NamedTuple, Optional, Tuple

from epl.utils import host_lists
from epl.utils.errors import ClusterError
from epl.utils.job_variables import JOB_HOSTS, JOB_PORT

# What trains each task as a job of its own.
ALONE = "TF_CONFIG={}"
# Below the ports that Linux gives to connections by default (32768 and up), above those of services.
_FIRST_PORT, _PORTS = 10000, 20000
_LOOPBACK = "127.0.0.1"


class _Mpi(NamedTuple):
    """The variables of a launcher of ranks: of the rank, the number of ranks, and the same on the own machine.

    Attributes:
      also: a variable that it sets as well, where those of the rank have names that anybody may use.
      passing: how its ranks are given a variable, with {} for NAME=value.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    also: str = ""
    passing: str = "mpirun -x {} (-genv with MPICH and Intel MPI)"


_MPI = (
    _Mpi(
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Mpi(
        "mpirun of MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Mpi("mpirun of MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Mpi(
        "horovodrun",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        passing="{} horovodrun ...",
    ),
    _Mpi(
        "torchrun or a PyTorchJob",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        also="MASTER_ADDR",
        passing="export {} on every machine",
    ),
)
# Equal in all ranks of one job, and different for another one at the same time.
_MPI_JOBS = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_ess_jobid",
    "PMI_JOBID",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "MASTER_PORT",
)
# Files of hosts that mpirun was told to use; an MPIJob of Kubernetes sets the first or the last of them.
_MPI_FILES = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "I_MPI_HYDRA_HOST_FILE")


class SchedulerTask(NamedTuple):
    """One of several tasks that a scheduler started together."""

    launcher: str  # what started it, for messages
    rank: int
    size: int
    mpi: Optional[_Mpi]  # None: Slurm


def find(environ: Mapping[str, str]) -> Optional[SchedulerTask]:
    """Which of several tasks this process is; None if no scheduler has started it, or it is the only task.

    Raises:
      ClusterError: the variables contradict each other, or do not say how many tasks there are.
    """
    slurm, mpi = _slurm(environ), _mpi(environ)
    if slurm is not None and _has_terminal(environ):
        # A shell or notebook, below which only mpirun starts tasks; what srun --mpi=pmi2 sets has no local size.
        of_mpirun = mpi is not None and mpi.mpi is not None and mpi.mpi.local_size in environ
        return mpi if of_mpirun and mpi is not None and mpi.size > 1 else None
    # mpirun inside of Slurm starts its own helpers by srun; their tasks have the variables of both.
    if mpi is None or (slurm is not None and (slurm.rank, slurm.size) == (mpi.rank, mpi.size)):
        found = slurm
    else:
        found = mpi
    if found is None and "PMIX_RANK" in environ:
        raise ClusterError(
            f"PMIX_RANK={environ['PMIX_RANK']}: this process is one of several that PMIx has started, and nothing says "
            "of how many: each would train alone and write the same checkpoint. Start it by srun, mpirun or "
            f"epl-launch, or set TF_CONFIG; {ALONE} trains each task as a job of its own."
        )
    return None if found is None or found.size == 1 else found


def addresses(task: SchedulerTask, environ: Mapping[str, str]) -> Tuple[str, ...]:
    """`host:port` of every task, by index. Only the first is listened at; the others name their machines.

    Raises:
      ClusterError: the environment does not say where the tasks are, or names no job from which a port follows.
    """
    machines = _slurm_machines(task, environ) if task.mpi is None else _mpi_machines(task, task.mpi, environ)
    port = _port(task, environ)
    return tuple(f"{machine}:{port + index}" for index, machine in enumerate(machines))


def _slurm(environ: Mapping[str, str]) -> Optional[SchedulerTask]:
    # A script of sbatch has SLURM_PROCID and SLURM_NTASKS as well, but is no task of a step.
    if "SLURM_STEP_NUM_TASKS" not in environ:
        return None
    return _task("srun", environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", None)


def _has_terminal(environ: Mapping[str, str]) -> bool:
    """Whether this is in the task to which `srun --pty` has given a terminal: the first one of its step."""
    if "SLURM_PTY_PORT" not in environ:
        return False
    try:
        with open("/proc/{}/stat".format(int(environ.get("SLURM_TASK_PID", ""))), "rb") as stat:
            # pid (name) state parent group session terminal ...; the name may hold anything.
            return int(stat.read().rpartition(b")")[2].split()[4]) != 0
    except (OSError, ValueError, IndexError):
        return False


def _mpi(environ: Mapping[str, str]) -> Optional[SchedulerTask]:
    for mpi in _MPI:
        if mpi.size in environ and (mpi.also or mpi.size) in environ:
            return _task(mpi.name, environ, mpi.rank, mpi.size, mpi)
    return None


def _task(launcher: str, environ: Mapping[str, str], index: str, count: str, mpi: Optional[_Mpi]) -> SchedulerTask:
    numbers = [environ.get(name, "") for name in (index, count)]
    if not all(re.fullmatch("[0-9]{1,6}", number) for number in numbers) or not int(numbers[0]) < int(numbers[1]):
        raise ClusterError(
            f"{launcher} has started this process, and {index}={numbers[0]!r} is no number below {count}="
            f"{numbers[1]!r}. Set TF_CONFIG; {ALONE} trains each task as a job of its own."
        )
    return SchedulerTask(launcher, int(numbers[0]), int(numbers[1]), mpi)


def _slurm_machines(task: SchedulerTask, environ: Mapping[str, str]) -> List[str]:
    """The machine of each task of a step; loopback if there is one machine."""
    nodes = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", ""))
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", ""))
    order = environ.get("SLURM_DISTRIBUTION", "block").partition(":")[0].partition(",")[0]
    seen = f"SLURM_STEP_NODELIST={nodes}, SLURM_STEP_TASKS_PER_NODE={counts}, SLURM_DISTRIBUTION={order}"
    try:
        if order.startswith(("plane", "arbitrary")):
            raise ValueError(f"the distribution {order} is not supported; start by srun -m block")
        machines = host_lists.deal(host_lists.expand_nodes(nodes), host_lists.expand_counts(counts), order == "cyclic")
    except ValueError as error:
        raise _unknown(task, f"{error}. Seen: {seen}") from None
    if len(machines) != task.size:
        raise _unknown(task, f"the list has {len(machines)} task(s). Seen: {seen}")
    own = environ.get("SLURMD_NODENAME", machines[task.rank])
    if own != machines[task.rank]:
        raise _unknown(task, f"by the list this task is on {machines[task.rank]}, and it runs on {own}. Seen: {seen}")
    return machines if len(set(machines)) > 1 else [_LOOPBACK] * task.size


def _mpi_machines(task: SchedulerTask, mpi: _Mpi, environ: Mapping[str, str]) -> List[str]:
    """The machine of each rank: loopback if all are here, else by the list that the user or mpirun gives."""
    rank, size = environ.get(mpi.local_rank, ""), environ.get(mpi.local_size, "")
    if size == str(task.size):
        return [_LOOPBACK] * task.size
    name, text = _mpi_hosts(environ)
    if not name:
        raise _unknown(
            task,
            f"{mpi.local_size}={size or '(not set)'}: not all ranks are on this machine, and no list says where they "
            "are. Pass one on, in the order of the ranks: "
            f"{mpi.passing.format(JOB_HOSTS + '=node1:4,node2:4')}. Inside Slurm start by srun instead",
        )
    try:
        machines = host_lists.fill(host_lists.parse_hosts(text), task.size)
    except ValueError as error:
        raise _unknown(task, f"{name}: {error}") from None
    own = machines[task.rank]
    expected = (str(machines[: task.rank].count(own)), str(machines.count(own)))
    if size and expected != (rank, size):
        raise _unknown(
            task,
            f"by {name} it is rank {expected[0]} of {expected[1]} on {own}, and by {mpi.local_rank} it is rank {rank} "
            f"of {size} there. Give the machines in the order of the ranks, as host:slots",
        )
    return machines


def _mpi_hosts(environ: Mapping[str, str]) -> Tuple[str, str]:
    """Where a list of hosts comes from, and the list; two empty texts if there is none."""
    if environ.get(JOB_HOSTS, "").strip():
        return JOB_HOSTS, environ[JOB_HOSTS]
    for variable in _MPI_FILES:
        path = environ.get(variable, "")
        if os.path.isfile(path) and os.access(path, os.R_OK):
            with open(path, encoding="utf-8", errors="replace") as source:
                return f"{variable}={path}", source.read()
    return "", ""


def _port(task: SchedulerTask, environ: Mapping[str, str]) -> int:
    """The port of worker 0: the user's, or one that follows from the name of the job, so that jobs differ."""
    given = environ.get(JOB_PORT, "").strip()
    last = 65536 - task.size
    if given:
        if not re.fullmatch("[0-9]{1,5}", given) or not 1 <= int(given) <= last:
            raise ClusterError(f"{JOB_PORT}={given!r} is no port from 1 to {last}: {task.size} numbers are needed.")
        return int(given)
    if task.mpi is None:
        job = "{}.{}".format(environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "0"))
    else:
        job = next((environ[name] for name in _MPI_JOBS if environ.get(name)), "")
    if not job:
        passing = _MPI[0].passing if task.mpi is None else task.mpi.passing
        raise _unknown(
            task,
            "no variable names the job, so that no port follows from it. Pass a free one on: "
            f"{passing.format(JOB_PORT + '=23456')}",
        )
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


def _unknown(task: SchedulerTask, problem: str) -> ClusterError:
    return ClusterError(
        f"{task.launcher} has started {task.size} tasks, this is task {task.rank}, and nothing joins them to one job: "
        f"{problem}. Each task would train alone and write the same checkpoint. TF_CONFIG or epl-launch join them as "
        f"well; {ALONE} trains each task as a job of its own."
    )
