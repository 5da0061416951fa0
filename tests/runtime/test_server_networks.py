"""What a stranger on the network reaches of jobs whose model spans processes, tried while they train."""

import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List

import pytest

from tests.parity.launching import LAUNCHER, environment
from tests.runtime.spanning import JOBS
from tests.utils.networks import CAN_MAKE, connect, inside, two_networks

pytestmark = [pytest.mark.timeout(150), pytest.mark.skipif(not CAN_MAKE, reason="namespaces need root and iproute2")]
SCRIPT = os.path.join(JOBS, "spanning_faults.py")
LISTENS = "0A"


class Jobs:
    """Processes that train until they are told to end; each writes a log. A context manager."""

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        self._processes: List[Any] = []

    def start(self, network: str, *command: str, **settings: str) -> None:
        with open(str(self._directory / f"log_{len(self._processes)}"), "w") as log:
            self._processes.append(
                subprocess.Popen(
                    inside(network, sys.executable, *command, "until told", str(self._directory)),
                    env=environment(EPL_CLUSTER_DEVICE_TYPE="cpu", EPL_CLUSTER_NUM_VIRTUAL_DEVICES="1", **settings),
                    cwd=str(self._directory),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def wait_for_training(self) -> None:
        end = time.monotonic() + 90
        while not (self._directory / "trains").exists() and time.monotonic() < end:
            assert all(process.poll() is None for process in self._processes), self.logs()
            time.sleep(0.2)

    def end(self) -> List[int]:
        """Tells them to end; their exit codes."""
        (self._directory / "told").write_text("")
        return [process.wait(60) for process in self._processes]

    def logs(self) -> List[str]:
        return [(self._directory / f"log_{index}").read_text() for index in range(len(self._processes))]

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            process.terminate()  # a launcher ends its workers
        for process in self._processes:
            process.wait(30)


def reached(network: str, stranger: str, address: str) -> Dict[int, str]:
    """What a stranger gets from each port of a namespace that something listens at, on any interface."""
    command = inside(network, "cat", "/proc/net/tcp", "/proc/net/tcp6")
    rows = [line.split() for line in subprocess.check_output(command, universal_newlines=True).split("\n")]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3:4] == [LISTENS]}
    return {port: connect(stranger, address, port) for port in sorted(ports)}


def test_a_stranger_reaches_nothing_of_a_job_of_one_machine_and_the_job_trains(tmp_path: Any) -> None:
    with two_networks() as networks, Jobs(tmp_path) as jobs:
        jobs.start(networks.own, LAUNCHER, "--num_workers", "2", "--gpu_per_worker", "1", "--show_all", SCRIPT)
        jobs.wait_for_training()
        answers = reached(networks.own, networks.stranger, "10.203.0.1")
        assert jobs.end() == [0], jobs.logs()
    assert len(answers) >= 2 and set(answers.values()) == {"refused"}, answers


@pytest.mark.long
def test_a_job_of_two_machines_trains_and_its_servers_are_in_its_network_alone(tmp_path: Any) -> None:
    hosts = ["10.203.0.1:4000", "10.203.0.2:4000"]
    with two_networks() as networks, Jobs(tmp_path) as jobs:
        for index, network in enumerate(networks):
            task = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
            jobs.start(network, SCRIPT, TF_CONFIG=json.dumps(task))
        jobs.wait_for_training()
        inner, outer = (reached(networks.own, networks.stranger, f"10.20{net}.0.1") for net in (3, 4))
        assert jobs.end() == [0, 0], jobs.logs()
    assert "connected" in inner.values() and set(outer.values()) == {"no answer"}, (inner, outer)
    assert all("of lo and one, and TensorFlow's protocol has no authentication" in log for log in jobs.logs())
