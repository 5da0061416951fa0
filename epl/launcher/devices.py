"""Which devices the workers of this machine get, as environment variables.

This module searches for free GPUs (by nvidia-smi, or a CUDA_VISIBLE_DEVICES that the user set) and chooses among them.
gpu_info.py counts GPUs without nvidia-smi; epl/cluster/cluster.py turns them into devices of TensorFlow.
"""

import re
import subprocess
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from epl.utils import gpu_info

# A GPU is free if at most this share of its memory is in use: the driver itself may use some.
_FREE_USED_SHARE = 0.01
_SMI_SECONDS = 60
_SMI = ["nvidia-smi", "--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits"]


class DeviceError(Exception):
    """The machine does not have the requested devices."""


class Gpu(NamedTuple):
    """One GPU of this machine."""

    name: str  # as CUDA_VISIBLE_DEVICES names it
    free: bool


class Devices(NamedTuple):
    """The devices of the workers of this machine."""

    environments: Sequence[Mapping[str, str]]  # one per worker
    text: str  # one line for the user
    cpus: Sequence[Sequence[int]] = ()  # one share per worker (cores.py); empty: those of the launcher


def assign(workers: int, per_worker: int, environ: Mapping[str, str]) -> Devices:
    """Chooses the devices for `workers` workers of this machine.

    Each worker in turn gets a block of free GPUs. The blocks come from the first sequence of consecutive free GPUs that
    is long enough for all workers; without one, from the first free GPUs. GPUs that the user named in
    CUDA_VISIBLE_DEVICES are taken in that order, free or not. Without any GPU the workers get virtual CPU devices.

    Args:
      workers: how many workers start on this machine.
      per_worker: GPUs per worker.
      environ: the environment of the launcher.

    Raises:
      DeviceError: there are GPUs, but fewer (free ones) than needed.
    """
    gpus, seen = _usable_gpus(environ)
    wanted = environ.get("EPL_CLUSTER_DEVICE_TYPE", "auto").lower()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not gpus and wanted == "gpu":
        raise DeviceError(f"EPL_CLUSTER_DEVICE_TYPE=gpu, but there is no GPU: {seen}")
    if not gpus:
        cpu = {"CUDA_VISIBLE_DEVICES": "", "EPL_CLUSTER_NUM_VIRTUAL_DEVICES": str(per_worker)}
        return Devices([cpu] * workers, f"{per_worker} virtual CPU device(s) per worker, no GPU ({seen})")
    environments = []
    for block in _blocks(gpus, workers, per_worker, seen):
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(block)}
        if visible is None:
            # nvidia-smi numbers GPUs by bus address; CUDA numbers them by speed, unless CUDA_DEVICE_ORDER says
            # otherwise.
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environments.append(environment)
    return Devices(environments, f"{per_worker} GPU(s) per worker ({seen})")


def workers_that_fit(most: int, per_worker: int, environ: Mapping[str, str]) -> int:
    """How many workers the free GPUs are enough for: from 1 to `most`; `most` on a machine without GPUs."""
    gpus, _ = _usable_gpus(environ)
    return max(1, min(most, sum(gpu.free for gpu in gpus) // per_worker)) if gpus else most


def _usable_gpus(environ: Mapping[str, str]) -> Tuple[List[Gpu], str]:
    """The GPUs that the environment allows, and how they were found."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if environ.get("EPL_CLUSTER_DEVICE_TYPE", "auto").lower() == "cpu":
        return [], "EPL_CLUSTER_DEVICE_TYPE=cpu"
    if visible is not None:
        return [Gpu(name, True) for name in _visible_names(visible)], f"CUDA_VISIBLE_DEVICES={visible!r}"
    return _find_gpus()


def _visible_names(visible: str) -> List[str]:
    """The devices before the first illegal one, as CUDA reads it ("-1" hides all)."""
    names: List[str] = []
    for name in visible.split(","):
        name = name.strip()
        if not re.match(r"\d+$|GPU-|MIG-", name):
            break
        names.append(name)
    return names


def _blocks(gpus: List[Gpu], workers: int, per_worker: int, seen: str) -> List[List[str]]:
    needed = workers * per_worker
    free = [gpu.name for gpu in gpus if gpu.free]
    if len(free) < needed:
        busy = ", ".join(gpu.name for gpu in gpus if not gpu.free)
        raise DeviceError(
            f"{workers} worker(s) x {per_worker} GPU(s) need {needed} free GPU(s) of this machine, it has {len(free)} "
            + (f"({seen}; in use: {busy}). " if busy else f"({seen}). ")
            + "Ask for fewer, wait, or name the GPUs to use in CUDA_VISIBLE_DEVICES "
            + '(CUDA_VISIBLE_DEVICES="" gives virtual CPU devices)'
        )
    runs = (gpus[first : first + needed] for first in range(len(gpus) - needed + 1))
    chosen = next(([gpu.name for gpu in run] for run in runs if all(gpu.free for gpu in run)), free)
    return [chosen[i * per_worker : (i + 1) * per_worker] for i in range(workers)]


def _find_gpus() -> Tuple[List[Gpu], str]:
    """All GPUs of this machine in the order of their bus addresses, and how they were found."""
    try:
        answer = subprocess.run(
            _SMI,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            timeout=_SMI_SECONDS,
        )
    except FileNotFoundError:
        problem = "nvidia-smi not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"nvidia-smi failed: {error}"
    else:
        if answer.returncode == 0:
            gpus = [_parse_gpu(line) for line in answer.stdout.splitlines() if line.strip()]
            return gpus, f"nvidia-smi lists {len(gpus)} GPU(s)"
        problem = f"nvidia-smi failed with code {answer.returncode}: {answer.stdout.strip().splitlines()[-1:]}"
    count = gpu_info.driver_gpu_count()
    if count:
        problem += f", but the driver has {count} GPU(s); which of them are free is not known"
    return [Gpu(str(index), True) for index in range(count)], problem


def _parse_gpu(line: str) -> Gpu:
    try:
        index, used, total = (field.strip() for field in line.split(","))
    except ValueError:
        raise DeviceError(f"nvidia-smi gave {line!r}; expected index, used and total memory") from None
    try:
        free = float(used) <= _FREE_USED_SHARE * float(total)
    except ValueError:
        free = True  # "[N/A]": some devices do not report their memory
    return Gpu(index, free)
