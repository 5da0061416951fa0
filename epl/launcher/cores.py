"""Which CPUs the workers of this machine get: each its share of those that the launcher itself may use.

    8 cores, 3 workers     worker 0: 0 1 2     worker 1: 2 3 4 5     worker 2: 5 6 7

A worker gets whole cores, with both of their hardware threads, which lie next to each other and to the same memory as
far as /sys tells. Shares are equal: where the number does not come out even, neighbours have the core between them
together. TensorFlow and OpenMP start as many threads as their process has CPUs. guard.py sets what is chosen here.
"""

import glob
import os
import re
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from epl.launcher.devices import Devices

_SYSTEM = "/sys/devices/system"
# Read by OpenMP and by libraries of linear algebra. Some of them count the CPUs of the machine if it is not set.
_THREADS = "OMP_NUM_THREADS"
# TensorFlow's threads that run ops. An op that waits for another run, as `StagingArea.put` does at a full area, keeps
# one of them, so a worker needs a second one also where it has a single CPU.
_OP_THREADS = "TF_NUM_INTEROP_THREADS"
_FEWEST_OP_THREADS = 2


def bind(devices: Devices, wanted: Optional[bool], environ: Mapping[str, str], system: str = _SYSTEM) -> Devices:
    """Gives each worker of this machine its CPUs, and the number of threads that goes with them.

    Args:
      devices: what the workers have so far.
      wanted: whether to bind; None: where there are several workers and no GPUs.
      environ: the environment of the launcher; a number of threads in it stays.
      system: the folder in which Linux describes the machine.

    Returns:
      `devices` with CPUs, or as it was.
    """
    workers = len(devices.environments)
    if wanted is None:
        wanted = workers > 1 and not any(one["CUDA_VISIBLE_DEVICES"] for one in devices.environments)
    if not wanted:
        return devices
    cpus = os.sched_getaffinity(0)
    shares = divide(read_cores(cpus, system), workers)
    environments: List[Mapping[str, str]] = []
    for one, share in zip(devices.environments, shares):
        threads = {_THREADS: str(len(share))}
        if len(share) < _FEWEST_OP_THREADS:
            threads[_OP_THREADS] = str(_FEWEST_OP_THREADS)
        environments.append({**one, **{name: number for name, number in threads.items() if name not in environ}})
    return Devices(environments, f"{devices.text}; {_describe(shares, len(cpus))}", shares)


def divide(cores: Sequence[Sequence[int]], workers: int) -> List[List[int]]:
    """The CPUs of each worker: an equal part of the cores, or of the CPUs if there are fewer cores than workers.

    Args:
      cores: the CPUs of each core; neighbours in the list go to the same worker.
      workers: how many shares there are.
    """
    units = cores if len(cores) >= workers else [[cpu] for core in cores for cpu in core]
    count = len(units)
    shares = []
    for worker in range(workers):
        first, end = worker * count // workers, -(-(worker + 1) * count // workers)
        shares.append(sorted(cpu for unit in units[first:end] for cpu in unit))
    return shares


def read_cores(cpus: Set[int], system: str = _SYSTEM) -> List[List[int]]:
    """The cores to which these CPUs belong, those of one NUMA node next to each other; of each core, its CPUs."""
    nodes: Dict[int, int] = {}
    for path in glob.glob(os.path.join(system, "node", "node[0-9]*", "cpulist")):
        number = int(os.path.basename(os.path.dirname(path))[len("node") :])
        nodes.update((cpu, number) for cpu in _read_list(path))
    cores: Dict[Tuple[int, int], List[int]] = {}
    for cpu in sorted(cpus):
        siblings = _read_list(os.path.join(system, "cpu", f"cpu{cpu}", "topology", "thread_siblings_list"))
        cores.setdefault((nodes.get(cpu, 0), min(siblings, default=cpu)), []).append(cpu)
    return [cores[place] for place in sorted(cores)]


def describe_cpus(cpus: Iterable[int]) -> str:
    """Numbers of CPUs as `taskset -c` reads them, such as "0-3,8"."""
    runs: List[List[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _describe(shares: Sequence[Sequence[int]], cpus: int) -> str:
    if len(shares) > cpus:
        return f"more workers than CPUs: {len(shares)} share {cpus}"
    sizes = sorted({len(share) for share in shares})
    return f"each bound to {' to '.join(map(str, sizes[:: max(1, len(sizes) - 1)]))} of {cpus} CPU(s)"


def _read_list(path: str) -> List[int]:
    """The numbers in a file of /sys, such as "0-3,8"; none if there is no such file."""
    try:
        with open(path) as file:
            runs = re.findall(r"(\d+)(?:-(\d+))?", file.read())
    except OSError:
        return []
    return [cpu for first, last in runs for cpu in range(int(first), int(last or first) + 1)]
