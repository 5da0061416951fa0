"""The processes of a job and this process among them: from arguments of `epl.Cluster`, TF_CONFIG or a scheduler.

In EPL every process that trains is a worker, and a chief is the first one. Parameter servers of TF_CONFIG are not
counted; those that a script names in the arguments of `epl.Cluster` are the last workers.
`epl/cluster/cluster.py` knows the devices of the workers.
"""

import json
import logging
import os
import re
import warnings
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from epl.env import Env
from epl.utils import schedulers
from epl.utils.errors import ClusterError

logger = logging.getLogger("epl")

_EXAMPLE = '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": 0}}'
_LOCAL_HOST = "127.0.0.1:0"
# In the order in which their hosts become workers. Of TF_CONFIG, neither ps nor evaluator is part of the cluster.
_JOBS = ("chief", "worker", "ps")
_SHOWN = 200  # characters that an error shows of a TF_CONFIG that cannot be parsed
_NUMBER = re.compile("[0-9]{1,9}")

Hosts = Union[str, Sequence[str]]


class JobHosts(NamedTuple):
    """Every worker's `host:port`, in the order of their indices, and the index of this process."""

    hosts: Tuple[str, ...]
    worker_index: int


def from_environment() -> JobHosts:
    """Returns the job that the environment variable TF_CONFIG describes; without it, the job of srun or mpirun.

    The job is one local worker if TF_CONFIG names no cluster, or is absent and no scheduler has started several tasks.

    Raises:
      ClusterError: TF_CONFIG is malformed, incomplete, or gives this process a task that does not train; or a scheduler
        has started several tasks, and the environment does not say how to join them.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return _from_scheduler()
    try:
        description = json.loads(text)
    except ValueError as error:
        raise _incomplete(f"is not JSON ({error})", text) from None
    except RecursionError:
        raise _incomplete("is nested too deeply", text[:_SHOWN] + "...") from None
    if not isinstance(description, dict):
        raise _incomplete(f"holds a {type(description).__name__} where an object is expected", text)
    if "cluster" not in description and "task" not in description:
        return JobHosts((_LOCAL_HOST,), 0)
    for part in ("cluster", "task"):
        if not isinstance(description.get(part), dict):
            raise _incomplete(f'has no object "{part}"', text)
    job, index = _task(description["task"], text)
    jobs: Dict[str, List[str]] = {}
    servers: List[str] = []
    for name, hosts in description["cluster"].items():
        if name == "evaluator":
            continue
        if name not in _JOBS:
            raise _incomplete(f'names a job "{name}"; EPL knows {", ".join(_JOBS)}', text)
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise _incomplete(f'has no list of "host:port" for the job "{name}"', text)
        if name == "ps":
            servers = hosts
        else:
            jobs[name] = hosts
    found = _assemble(jobs, job, index, f"TF_CONFIG={text}")
    if servers and found.worker_index == 0 and Env.get().says_first("parameter servers in TF_CONFIG"):
        warnings.warn(
            f"TF_CONFIG names {len(servers)} parameter server(s) (ps), and EPL has none: they are not counted, and the "
            f"{len(found.hosts)} worker(s) train without them. Leave them out of the job, or name them under worker. "
            "This is said once.",
            stacklevel=5,
        )
    return found


def _from_scheduler() -> JobHosts:
    task = schedulers.find(os.environ)
    if task is None:
        return JobHosts((_LOCAL_HOST,), 0)
    hosts = schedulers.addresses(task, os.environ)
    _check_hosts(hosts, f"the environment of {task.launcher}")
    # Shown by default: a task that is taken for a part of a job waits for the others.
    if task.rank == 0 and Env.get().says_first("a job of a scheduler"):
        logger.warning(
            "EPL: %s has started %d tasks, which are one job: %s", task.launcher, task.size, ", ".join(hosts)
        )
    return JobHosts(hosts, task.rank)


def from_arguments(worker_hosts: Hosts, ps_hosts: Optional[Hosts], job_name: str, worker_index: int) -> JobHosts:
    """Returns the job that arguments of `epl.Cluster` describe.

    Args:
      worker_hosts: `host:port` of each worker, a sequence or one string separated by commas.
      ps_hosts: the same for parameter servers, which become workers after the others.
      job_name: "worker" or "ps": whose index `worker_index` is.
      worker_index: index of this process in its job.
    """
    jobs = {"worker": _split(worker_hosts, "worker_hosts"), "ps": _split(ps_hosts, "ps_hosts") if ps_hosts else []}
    if job_name not in ("worker", "ps"):
        raise ClusterError(f'epl.Cluster got job_name={job_name!r}; expected "worker" or "ps".')
    return _assemble(jobs, job_name, worker_index, "epl.Cluster arguments")


def rows_by_machine(job: JobHosts) -> JobHosts:
    """Returns the job with the workers of one machine next to each other; machines keep the order of first appearance.

    So rank 0 stays first, and all processes get the same order from the same hosts.
    """
    machines: List[str] = []
    for host in job.hosts:
        if machine_of(host) not in machines:
            machines.append(machine_of(host))
    order = sorted(range(len(job.hosts)), key=lambda worker: (machines.index(machine_of(job.hosts[worker])), worker))
    return JobHosts(tuple(job.hosts[worker] for worker in order), order.index(job.worker_index))


def machine_of(host: str) -> str:
    """Returns the machine of a "host:port"."""
    return host.rpartition(":")[0] or host


def _task(task: Mapping[str, Any], text: str) -> Tuple[str, int]:
    job = task.get("type")
    if not isinstance(job, str):
        raise _incomplete('has no string "type" in "task"', text)
    if job == "evaluator":
        raise ClusterError(
            "TF_CONFIG makes this process the evaluator, and EPL has none: every process of its job trains. Evaluate "
            f"in a process of its own without TF_CONFIG, from the checkpoints of the job. TF_CONFIG={text}"
        )
    if job == "ps":
        raise ClusterError(
            "TF_CONFIG makes this process a parameter server (ps), and EPL has none: the workers average gradients "
            "among themselves. Start no process for ps, or name it under worker, where it trains with the others. "
            f"TF_CONFIG={text}"
        )
    if job not in _JOBS:
        raise _incomplete(f'has the task type "{job}"; EPL knows {", ".join(_JOBS)}', text)
    index = task.get("index")
    # Some schedulers write the index as a string; TensorFlow's own RunConfig accepts that too.
    if isinstance(index, str) and _NUMBER.fullmatch(index):
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        raise _incomplete('has no integer "index" in "task"', text)
    return job, index


def _assemble(jobs: Mapping[str, Sequence[str]], job: str, index: int, where: str) -> JobHosts:
    """Puts the hosts of all jobs into one list of workers and finds this process in it."""
    if not jobs.get("worker") and not jobs.get("chief"):
        raise ClusterError(
            f"Get hosts information failed for incomplete TF_CONFIG: no worker has a host. Seen: {where}. Expected "
            f"something like {_EXAMPLE}"
        )
    own_hosts = jobs.get(job, ())
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(own_hosts):
        raise ClusterError(
            f'this process is task {index!r} of the job "{job}", which has {len(own_hosts)} host(s); expected an index '
            f"from 0 up to one less. Seen: {where}"
        )
    hosts = [host for name in _JOBS for host in jobs.get(name, ())]
    before = sum(len(jobs.get(name, ())) for name in _JOBS[: _JOBS.index(job)])
    _check_hosts(hosts, where)
    return JobHosts(tuple(hosts), before + index)


def _check_hosts(hosts: Sequence[str], where: str) -> None:
    for host in hosts:
        machine, _, port = host.rpartition(":")
        readable = host.isprintable() and " " not in host
        if not readable or not machine or not _NUMBER.fullmatch(port) or int(port) > 65535:
            raise ClusterError(f"the host {host!r} is not of the form host:port. Seen: {where}")
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        raise ClusterError(f"two processes of the job have the same host and port: {', '.join(twice)}. Seen: {where}")


def _split(hosts: Hosts, argument: str) -> List[str]:
    if isinstance(hosts, str):
        return [host.strip() for host in hosts.split(",") if host.strip()]
    found = list(hosts) if isinstance(hosts, Iterable) else None
    if found is None or not all(isinstance(host, str) for host in found):
        raise ClusterError(
            f'epl.Cluster got {argument}={hosts!r}; expected a list of "host:port", or one string with commas, such as '
            '["10.0.0.1:2222", "10.0.0.2:2222"].'
        )
    return found


def _incomplete(problem: str, text: str) -> ClusterError:
    return ClusterError(
        f"Get hosts information failed for incomplete TF_CONFIG: it {problem}. Expected something like {_EXAMPLE}. "
        f"Seen: TF_CONFIG={text}"
    )
