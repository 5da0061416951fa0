"""Workers that drive stages on devices of other workers, and the workers that serve them: real processes."""

import json
import os
import re
from typing import Any, Iterator, List

import pytest

from tests.parity.launching import Finished, launch, left_behind
from tests.runtime.spanning import JOBS, LIMIT, Nursery, codes, outputs
from tests.tensorflows import WITH_ESTIMATOR

SCRIPT = "spanning.py"
pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as workers:
        yield workers


def run_workers(nursery: Nursery, what: str, directory: Any) -> List[Finished]:
    return nursery.run(SCRIPT, [what, str(directory)], directory)


@pytest.fixture(scope="module")
def trained(nursery: Nursery, tmp_path_factory: Any) -> List[Finished]:
    return run_workers(nursery, "trains", tmp_path_factory.mktemp("trained"))


def test_all_end_with_code_0_when_the_constructors_have_finished(trained: List[Finished]) -> None:
    assert codes(trained) == [0, 0, 0, 0], outputs(trained)
    assert "serves" in trained[1].output and "drives" in trained[2].output


def test_served_devices_compute_and_reduce(trained: List[Finished]) -> None:
    # Row k - 1 in step k on worker 0, 2 more on worker 2: the mean gradient is k.
    for constructor in (0, 2):
        assert re.findall(r"step 10 (.*)", trained[constructor].output) == ["[[10.0], [10.0]]"], outputs(trained)
        weight = json.loads(re.findall(r"final (.*)", trained[constructor].output)[0])
        assert abs(weight[0][0] - (1 - 0.001 * 55)) < 1e-5


@pytest.mark.long
def test_processes_can_meet_again_after_a_training(nursery: Nursery, tmp_path: Any) -> None:
    workers = run_workers(nursery, "twice", tmp_path)
    assert codes(workers) == [0, 0, 0, 0], outputs(workers)
    assert all("step 10" in workers[constructor].output for constructor in (0, 2))


@pytest.mark.long
def test_the_end_of_data_of_one_ends_the_step_of_all(nursery: Nursery, tmp_path: Any) -> None:
    workers = run_workers(nursery, "data ends", tmp_path)
    assert codes(workers) == [0, 0, 0, 0], outputs(workers)
    for constructor in (0, 2):
        assert "data ended after 5" in workers[constructor].output, outputs(workers)


FAULTS = {
    "raises": r"worker 2.*ValueError: something in the script",
    "stops with code": r"worker 2.*sys\.exit\(7\)",
    "server stops": r"worker [13].*sys\.exit\(7\)",
    "server killed": r"worker 3 .*died",
    "server killed while idle": r"worker 3 .*died",
    "constructor killed": r"worker 2 .*died",
    "finishes early": r"worker (0|1).*(left|ended)",
    "differ": r"worker [02] opens the communicators \['stage[12]'\], and worker [02] opens",
}
# Who is told: not the one at fault, and not one that has done its work.
TOLD = {
    "server killed": (0, 1, 2),
    "server killed while idle": (0, 1, 2),
    "server stops": (0, 2),
    "finishes early": (2,),
    "differ": (0, 1, 2, 3),
}


QUICK = ("raises", "differ")


@pytest.mark.parametrize(
    "what", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in sorted(FAULTS)]
)
def test_all_end_with_the_cause_when_one_fails(nursery: Nursery, what: str, tmp_path: Any) -> None:
    workers = run_workers(nursery, what, tmp_path)
    for index in TOLD.get(what, (0, 1, 3)):
        assert workers[index].code not in (0, None), outputs(workers)
        assert re.search(FAULTS[what], workers[index].output), outputs(workers)


@pytest.mark.long
def test_the_launcher_names_the_worker_that_failed_first(tmp_path: Any) -> None:
    arguments = [
        "--num_workers",
        "4",
        "--gpu_per_worker",
        "1",
        "--log_dir",
        "logs",
        os.path.join(JOBS, SCRIPT),
        "raises",
        str(tmp_path),
    ]
    finished = launch(arguments, tmp_path, 2 * LIMIT)
    assert finished.code != 0
    assert "worker 2 failed" in finished.output, finished.output
    assert not left_behind(str(tmp_path))


@pytest.mark.long
@WITH_ESTIMATOR
def test_monitored_session_and_estimator_run_on_the_servers(nursery: Nursery, tmp_path: Any) -> None:
    workers = run_workers(nursery, "grpc target", tmp_path)
    assert codes(workers) == [0, 0, 0, 0], outputs(workers)
    for constructor in (0, 2):
        assert re.findall(r"step (\d)", workers[constructor].output) == ["1", "2", "3", "4"], outputs(workers)
        assert "estimator 3" in workers[constructor].output
