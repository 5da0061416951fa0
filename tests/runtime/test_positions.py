"""Positions of input that a script saves are kept by worker."""

import re

import pytest

from tests.runtime.spanning import codes, outputs, run_workers
from tests.tensorflows import WITH_ESTIMATOR

pytestmark = pytest.mark.timeout(240)


def run(way, folder, logs, count, steps=3):
    """So many workers make steps; the rows that each read, and what each said."""
    logs.mkdir()
    workers = run_workers("positions.py", [way, str(folder), str(steps)], logs, ["127.0.0.1"] * count, 100)
    assert codes(workers) == [0] * count, outputs(workers)
    return [[int(row) for row in re.findall(r"row (\d+)", worker.output)] for worker in workers], workers


@pytest.mark.parametrize("way", ["saver", pytest.param("estimator", marks=WITH_ESTIMATOR)])
def test_each_worker_goes_on_with_its_own_rows(tmp_path, way):
    folder = tmp_path / "model"
    folder.mkdir()
    assert run(way, folder, tmp_path / "first", 2)[0] == [[0, 2, 4], [1, 3, 5]]
    assert run(way, folder, tmp_path / "second", 2)[0] == [[6, 8, 10], [7, 9, 11]]


def test_positions_of_another_number_of_workers_are_not_used(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    run("saver", folder, tmp_path / "two", 2)
    rows, workers = run("saver", folder, tmp_path / "one", 1)
    assert rows == [[0, 1, 2]]
    said = "has no position of the input for worker 0 of 1, but those of 2 worker(s): its input stays where it is"
    assert said in workers[0].output
