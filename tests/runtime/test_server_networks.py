"""What a stranger on the network reaches of a job of one machine whose model spans processes: nothing."""

import os
import subprocess
import sys
import time
from typing import Any, List

import pytest

from tests.parity.launching import LAUNCHER, environment
from tests.runtime.spanning import JOBS
from tests.utils.networks import CAN_MAKE, connect, inside, two_networks

pytestmark = [pytest.mark.timeout(150), pytest.mark.skipif(not CAN_MAKE, reason="namespaces need root and iproute2")]
LISTENS = "0A"


def listening_ports(network: str) -> List[int]:
    """The TCP ports of a namespace that something listens at, on any interface."""
    command = inside(network, "cat", "/proc/net/tcp", "/proc/net/tcp6")
    rows = [line.split() for line in subprocess.check_output(command, universal_newlines=True).split("\n")]
    return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3:4] == [LISTENS]})


def test_a_stranger_reaches_nothing_of_a_job_of_one_machine_and_the_job_trains(tmp_path: Any) -> None:
    script = [os.path.join(JOBS, "spanning_faults.py"), "until told", str(tmp_path)]
    options = ["--num_workers", "2", "--gpu_per_worker", "1", "--log_dir", "logs", "--show_all"]
    with two_networks() as networks, open(str(tmp_path / "output"), "w+") as output:
        job = subprocess.Popen(
            inside(networks.own, sys.executable, LAUNCHER, *options, *script),
            env=environment(EPL_CLUSTER_DEVICE_TYPE="cpu"),
            cwd=str(tmp_path),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            end = time.monotonic() + 90
            while not (tmp_path / "trains").exists() and time.monotonic() < end and job.poll() is None:
                time.sleep(0.2)
            ports = listening_ports(networks.own)
            answers = {port: connect(networks.stranger, "10.203.0.1", port) for port in ports}
            (tmp_path / "told").write_text("")
            code = job.wait(60)
        finally:
            job.terminate()  # the launcher ends its workers
            job.wait(30)
        output.seek(0)
        assert code == 0, output.read()
    assert len(ports) >= 2 and set(answers.values()) == {"refused"}, answers
