"""The device of this process on which ops are measured: what it is, its threads, its memory."""

import os
from typing import Optional, Tuple

from epl.cluster.cluster import Cluster
from epl.planner.profile.op_timing import MeasuredDevice
from epl.utils import tf_compat

_SHARE_OF_MEMORY = 0.5  # of what is free; the rest is for what runs beside
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def local_device(cluster: Cluster) -> MeasuredDevice:
    """The first device of this process, with all cores of the process, as while no other device computes.

    Half of the free memory may be used; a GPU's is that which TensorFlow can allocate.
    """
    if cluster.device_type == "GPU":
        limit = _first_gpu(cluster)[1]
        return MeasuredDevice("/device:GPU:0", 1, limit * _SHARE_OF_MEMORY)
    threads = len(os.sched_getaffinity(0))
    free = min(_memory_of("MemAvailable"), _cgroup_limit() or float("inf"))
    return MeasuredDevice("/device:CPU:0", threads, free * _SHARE_OF_MEMORY)


def device_memory(cluster: Cluster) -> Tuple[int, str]:
    """Bytes of one device, and where the number comes from."""
    if cluster.device_type == "GPU":
        return _first_gpu(cluster)[1], "what TensorFlow can allocate on the GPU"
    devices = cluster.worker_num * len(cluster.local_ranks)
    limit = _cgroup_limit()
    total = _memory_of("MemTotal")
    source = "MemTotal of /proc/meminfo" if limit is None or limit >= total else "the memory limit of the cgroup"
    return int(min(total, limit or total) // devices), f"{source}, divided by {devices} device(s)"


def device_model(cluster: Cluster) -> str:
    """The name of the processor."""
    if cluster.device_type == "GPU":
        return _first_gpu(cluster)[0]
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names and names[0] else "CPU"


def _first_gpu(cluster: Cluster) -> Tuple[str, int]:
    """Model of the first GPU of this process, and bytes that can be allocated there."""
    return tf_compat.gpus(cluster.config_proto())[0]


def _memory_of(what: str) -> float:
    with open("/proc/meminfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith(what + ":"):
                return 1024.0 * int(line.split()[1])
    return 0.0


def _cgroup_limit() -> Optional[float]:
    """Bytes that the control group of this process may use; None without a limit."""
    for path in _CGROUP_LIMITS:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            return float(text)
    return None
