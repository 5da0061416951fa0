"""`make gpu-check`: the oracle of the parity tests with its workers on GPUs, and the report of what was seen.

Where there are fewer GPUs than ranks, the ranks share the first one: NCCL takes processes with another NCCL_HOSTID for
other hosts, and uses sockets over loopback. GPU_CHECK=cpu rehearses the check without a GPU.
"""

import datetime
import os
import platform
import subprocess
import sys
from typing import Dict, Iterator, List

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from epl.utils import gpu_info  # noqa: E402 pylint: disable=wrong-import-position
from tests.parity.oracle import Oracle  # noqa: E402 pylint: disable=wrong-import-position
from tests.parity.pool import Pool, Topology  # noqa: E402 pylint: disable=wrong-import-position

REHEARSED = os.environ.get("GPU_CHECK") == "cpu"

_SHARED = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "2",
}


class Report:
    """Rows of "what | seen", in the order of the tests."""

    def __init__(self) -> None:
        self.rows: List[str] = []

    def say(self, what: str, seen: str) -> None:
        """Adds a row."""
        self.rows.append(f"| {what} | {seen} |")


_REPORT = Report()


def settings_of(topology: Topology, worker: int) -> Dict[str, str]:
    """The environment of a worker: its own GPUs if there are enough, or the first one for all."""
    if REHEARSED:
        return {}
    settings = {"NVIDIA_TF32_OVERRIDE": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "CUDA_VISIBLE_DEVICES": "0"}
    if topology.mode != "plan":
        return settings
    settings.update(EPL_CLUSTER_DEVICE_TYPE="gpu", EPL_CLUSTER_NUM_VIRTUAL_DEVICES="0")
    first = worker * topology.devices
    if topology.workers * topology.devices <= gpu_info.driver_gpu_count():
        settings["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + topology.devices)))
    else:
        settings.update(_SHARED, NCCL_HOSTID=f"epl-gpu-check-{worker}")
    return settings


@pytest.fixture(scope="session")
def gpus() -> int:
    """How many GPUs there are; 2 in a rehearsal."""
    return 2 if REHEARSED else gpu_info.driver_gpu_count()


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The oracle, its workers on GPUs."""
    pool = Pool(settings_of)
    yield Oracle(pool)
    pool.close()


@pytest.fixture(scope="session")
def report() -> Report:
    """Where tests say what they have seen."""
    return _REPORT


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Leaves the check out where it was not asked for: it takes minutes, and needs a GPU."""
    if not os.environ.get("GPU_CHECK"):
        for item in items:
            if os.path.dirname(str(item.fspath)) == os.path.dirname(os.path.abspath(__file__)):
                item.add_marker(pytest.mark.skip(reason="runs by make gpu-check"))


def pytest_sessionfinish() -> None:
    """Writes the report."""
    path = os.environ.get("GPU_CHECK_REPORT")
    if not path or not _REPORT.rows:
        return
    import tensorflow.compat.v1 as tf

    lines = [
        f"# EPL on GPUs, {datetime.date.today().isoformat()}" + (" (rehearsed without a GPU)" if REHEARSED else ""),
        "",
        f"- Cards: {_cards()}",
        f"- TensorFlow {tf.VERSION}, Python {platform.python_version()}, {platform.platform()}",
        "",
        "| What | Seen |",
        "| --- | --- |",
        *_REPORT.rows,
    ]
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")


def _cards() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.check_output(command, timeout=30).decode().strip().replace("\n", "; ")
    except (OSError, subprocess.SubprocessError):
        return "none seen by nvidia-smi"
