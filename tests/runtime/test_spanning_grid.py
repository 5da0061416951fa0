"""Models x stages x micro batches x replicas x schedules, the stages of each replica in two workers or three.

    2 stages, 1 replica  : a | b            4 stages, 1 replica  : a b | c d
    2 stages, 2 replicas : a A | b B        4 stages, 2 replicas : a c A C | b d B D
    3 stages, 1 replica  : a | b | c        3 stages, 2 replicas : a c B | b A C

Small and large letters are the stages of the two replicas. Worker 0 drives all of them; where a replica begins in
worker 1, that one drives it.
"""

import itertools
import os
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
import pytest

from tests.parity import fixtures
from tests.parity.oracle import Oracle, compare
from tests.parity.pairwise import pairwise
from tests.parity.scripts import pipelines
from tests.parity.scripts.pipeline_models import STATISTICS
from tests.runtime.spanning import FOUR_WORKERS, Nursery, Ran, case, codes, once, outputs, write_cases

LIMIT = 300.0  # of each job
pytestmark = [pytest.mark.long, pytest.mark.timeout(1700)]
oracle = fixtures.oracle  # found here by pytest

SCHEDULES = ["PreferBackward", "PreferForward", "PreferBackwardOptimizer"]


class Cell(NamedTuple):
    name: str
    stages_and_replicas: Tuple[int, int]
    micro_batches: int
    schedule: str


GRID = [
    Cell(*values)
    for values in itertools.product(
        ["mlp", "cnn", "lstm", "encoder"], itertools.product([2, 3, 4], [1, 2]), [1, 2, 4, 8], SCHEDULES
    )
]
CELLS: List[Cell] = pairwise(GRID, lambda cell: np.prod(cell.stages_and_replicas) * cell.micro_batches)


def _cell_name(cell: Cell) -> str:
    return "{}-{}stages-{}replicas-{}micro-{}".format(
        cell.name, *cell.stages_and_replicas, cell.micro_batches, cell.schedule
    )


def _job(cell: Cell) -> Tuple[int, int]:
    """Workers, and the devices of each: one number in all cases of a job, as a process makes its devices once."""
    stages, replicas = cell.stages_and_replicas
    workers = 3 if cell.stages_and_replicas == (3, 1) else 2
    return workers, stages * replicas // workers


def _case(cell: Cell) -> Any:
    stages, replicas = cell.stages_and_replicas
    constructors = [0, 1] if cell.stages_and_replicas == (3, 2) else [0]
    return case(
        "tests.parity.scripts.pipelines.train",
        constructors=constructors,
        devices=_job(cell)[1],
        name=cell.name,
        stages=stages,
        micro_batches=cell.micro_batches,
        replicas=replicas // len(constructors),
        schedule=cell.schedule,
        rows_known=cell.name == "lstm",
        cluster__device_place_prefer_intra_node=replicas == 1,
    )


def _run(directory: str) -> Dict[Tuple[int, int], Ran]:
    ran = {}
    with Nursery() as nursery:
        for job in sorted(set(map(_job, CELLS))):
            folder = os.path.join(directory, "%dx%d" % job)
            os.mkdir(folder)
            cases = {_cell_name(cell): _case(cell) for cell in CELLS if _job(cell) == job}
            write_cases(cases, folder)
            finished = nursery.run("spanning_training.py", [folder], folder, FOUR_WORKERS[: job[0]], LIMIT)
            ran[job] = Ran(folder, cases, finished)
    return ran


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: Any) -> Dict[Tuple[int, int], Ran]:
    """The jobs, by their workers and the devices of each."""
    return once(tmp_path_factory, "grid", _run)  # type: ignore[no-any-return]


@pytest.mark.parametrize("cell", CELLS, ids=_cell_name)
def test_stages_in_several_workers_equal_accumulation_on_one_device(oracle: Oracle, jobs: Any, cell: Cell) -> None:
    replicas = cell.stages_and_replicas[1]
    reference = oracle.plain(pipelines.accumulated, name=cell.name, micro_batches=cell.micro_batches, replicas=replicas)
    compare(reference, jobs[_job(cell)].answers(_cell_name(cell)), own=[STATISTICS])


def test_all_workers_end_with_code_0(jobs: Dict[Tuple[int, int], Ran]) -> None:
    for ran in jobs.values():
        assert set(codes(ran.workers)) == {0}, outputs(ran.workers)
