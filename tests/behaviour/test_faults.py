"""What goes wrong in one process ends the whole job, soon, with words that name the process and the cause."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List

import pytest

from tests.parity.launching import Finished, environment, launch, left_behind

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs", "faulty.py")
LIMIT = 60.0  # of a whole job, start of the processes on a busy machine included


def _launch(what: str, directory: Any, **settings: str) -> Finished:
    arguments = [
        "--num_workers",
        "2",
        "--gpu_per_worker",
        "2",
        "--show_all",
        "--log_dir",
        "logs",
        SCRIPT,
        what,
        str(directory),
    ]
    finished = launch(arguments, directory, 2 * LIMIT, **settings)
    assert finished.code != 0, finished.output
    assert finished.seconds < LIMIT, finished.output
    assert not left_behind(str(directory))
    return finished


def _without_launcher(what: str, directory: Any, **settings: str) -> List[Finished]:
    """Starts the two workers by hand: nobody ends the one when the other fails."""
    ports = []
    for _ in range(2):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
    hosts = ["127.0.0.1:%d" % port for port in ports]
    start = time.time()
    processes = []
    for worker in range(2):
        config = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": worker}})
        with open(str(directory / ("log_%d" % worker)), "w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, SCRIPT, what, str(directory)],
                    cwd=str(directory),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(TF_CONFIG=config, EPL_CLUSTER_NUM_VIRTUAL_DEVICES="2", **settings),
                )
            )
    finished = []
    try:
        for worker, process in enumerate(processes):
            if what in ("never starts", "hangs") and worker == 1:
                continue
            process.wait(LIMIT)
            with open(str(directory / ("log_%d" % worker))) as log:
                finished.append(Finished(process.returncode, log.read(), time.time() - start))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    return finished


# What happens, and what must be said about it.
FAULTS: Dict[str, str] = {
    "killed": r"(?i)SIGKILL|signal 9|killed",
    "fails": r"first cause: worker 1: (.*\n){0,3}.*this row is rotten\n(.*\n){0,3}.*worker 1 failed: exit code 1",
    "raises": r"first cause: worker 1: RuntimeError: something in the script\n.*worker 1 failed: exit code 1",
    "other shapes": r"my_layer",
    "other variables": r"only_here",
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", sorted(FAULTS))
def test_the_launcher_names_worker_and_cause(what: str, tmp_path: Any) -> None:
    finished = _launch(what, tmp_path)
    assert re.search(r"(?i)(worker|rank|process) 1", finished.output), finished.output
    assert re.search(FAULTS[what], finished.output), finished.output


@pytest.mark.timeout(180)
def test_a_worker_that_never_starts(tmp_path: Any) -> None:
    finished = _launch("never starts", tmp_path, EPL_COMMUNICATION_START_TIMEOUT="4")
    assert re.search(r"(?i)(worker|rank|process) 1", finished.output), finished.output
    assert re.search(r"first cause: worker 0: JobError: .*worker 1 .*did not appear", finished.output), finished.output


@pytest.mark.timeout(180)
def test_a_machine_that_is_not_there(tmp_path: Any) -> None:
    ports = []
    for _ in range(2):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
    missing = "127.0.0.1:%d" % ports[1]
    finished = launch(
        [
            "--num_workers",
            "2",
            "--gpu_per_worker",
            "1",
            "--machine_rank",
            "0",
            "--machine_list",
            "127.0.0.1:%d,%s" % (ports[0], missing),
            SCRIPT,
            "nothing",
            str(tmp_path),
        ],
        tmp_path,
        2 * LIMIT,
        EPL_COMMUNICATION_START_TIMEOUT="3",
    )
    assert finished.code != 0
    assert re.search(r"(?i)(worker|process) 1", finished.output), finished.output
    assert missing in finished.output
    assert not left_behind(str(tmp_path))


@pytest.mark.timeout(180)
def test_a_worker_that_hangs(tmp_path: Any) -> None:
    finished = _launch("hangs", tmp_path, EPL_COMMUNICATION_STALL_WARNING="1", EPL_COMMUNICATION_TIMEOUT="5")
    # Two devices in each process: it is ranks 2 and 3 that are missing.
    assert re.search(r"(?i)missing.*2.*3|rank.* 2.*3.*(missing|not)", finished.output), finished.output
    assert re.search(r"first cause: worker 0: DeadlineExceededError: .*gave up after", finished.output), finished.output


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["killed", "fails", "raises", "leaves", "other shapes"])
def test_the_other_worker_ends_by_itself(what: str, tmp_path: Any) -> None:
    survivor = _without_launcher(what, tmp_path)[0]
    assert survivor.code != 0, survivor.output
    assert re.search(r"(?i)(worker|process) 1", survivor.output), survivor.output


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["hangs", "never starts"])
def test_the_other_worker_gives_up_waiting(what: str, tmp_path: Any) -> None:
    survivor = _without_launcher(what, tmp_path, EPL_COMMUNICATION_TIMEOUT="4", EPL_COMMUNICATION_START_TIMEOUT="6")[0]
    assert survivor.code != 0, survivor.output
    assert re.search(r"(?i)(worker|process) 1|ranks? 2", survivor.output), survivor.output
