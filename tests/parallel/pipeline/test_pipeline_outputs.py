"""Outputs of pipelines in data parallelism are merged over the micro batches of a replica, then over the replicas."""

import os
from typing import Any, Dict, List

import numpy as np
import pytest

from tests.parity import fixtures
from tests.parity.oracle import Oracle
from tests.parity.scripts import pipeline_outputs, pipelines
from tests.runtime.spanning import FOUR_WORKERS, Nursery, Ran, case, once, write_cases

MICRO_BATCHES = 4
oracle = fixtures.oracle  # found here by pytest
SCRIPT = "tests.parity.scripts.pipeline_outputs.merged"
ACROSS = {"devices": 2, "replicas": 2, "cluster__device_place_prefer_intra_node": False}
# The stages lie in two workers; a constructor has both replicas, or each of two constructors has one.
SPANNING = {
    2: case(SCRIPT, constructors=[0], micro_batches=MICRO_BATCHES, **ACROSS),
    4: case(SCRIPT, constructors=[0, 2], micro_batches=MICRO_BATCHES),
}


def check(outputs: List[Dict[str, Any]], replicas: int) -> None:
    """Compares what each process recorded with the rows that were fed; `replicas` are those of each process."""
    for step in range(pipeline_outputs.STEPS):
        rows = slice(step * pipelines.STEP_ROWS, (step + 1) * pipelines.STEP_ROWS)
        shape = [len(outputs), replicas * MICRO_BATCHES, -1]
        x = pipelines.ALL_ROWS.x[rows].reshape(shape + [pipelines.FEATURES])
        totals = (pipelines.ALL_ROWS.y[rows].reshape(shape) + x[..., 0]).sum(-1)
        for worker, results in enumerate(outputs):
            of_local = slice(worker, worker + 1)
            for scope, mine in (("global", slice(None)), ("local", of_local)):
                parts, sums = np.concatenate(x[mine]), np.concatenate(totals[mine])
                expected = {
                    "concat": (np.concatenate(parts), sums),
                    "mean": (parts.mean(0), sums.mean()),
                    "sum": (parts.sum(0), sums.sum()),
                }
                for way, values in expected.items():
                    for found, value in zip(results["merged"][step]["%s_%s" % (scope, way)], values):
                        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "workers,replicas", [(1, 2), *(pytest.param(2, replicas, marks=pytest.mark.long) for replicas in (1, 2))]
)
def test_micro_batches_come_first_then_replicas(oracle: Oracle, workers: int, replicas: int) -> None:
    topology = (1, 4) if workers == 1 else (2, 2)
    answers = oracle.plan(topology, pipeline_outputs.merged, micro_batches=MICRO_BATCHES, replicas=replicas)
    check([answer.results for answer in answers], replicas)


def _run(directory: str) -> Dict[int, Ran]:
    ran = {}
    with Nursery() as nursery:
        for workers, job in SPANNING.items():
            folder = os.path.join(directory, str(workers))
            os.mkdir(folder)
            write_cases({"merged": job}, folder)
            finished = nursery.run("spanning_training.py", [folder], folder, FOUR_WORKERS[:workers], 120.0)
            ran[workers] = Ran(folder, {"merged": job}, finished)
    return ran


@pytest.mark.long
@pytest.mark.parametrize("workers,replicas", [(2, 2), (4, 1)])
def test_stages_in_several_workers(tmp_path_factory: Any, workers: int, replicas: int) -> None:
    ran = once(tmp_path_factory, "outputs", _run)[workers]
    check([answer.results for answer in ran.answers("merged")], replicas)
