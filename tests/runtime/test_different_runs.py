"""Two workers in runs of different kinds: both end at once, with what each of them does."""

import pytest

from tests.runtime.spanning import Nursery, codes, outputs

pytestmark = pytest.mark.timeout(170)
TWO = ["127.0.0.1"] * 2


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as it:
        yield it


@pytest.mark.parametrize(
    "level,done,words",
    [
        ("v1", "assigns", "values of the variables"),
        ("each", "assigns", "values of the variables"),
        ("each", "evaluates", "values of all workers without a training step"),
    ],
)
def test_workers_whose_runs_differ_are_told_at_once(nursery, tmp_path, level, done, words):
    workers = nursery.run("different_runs.py", [level, done], tmp_path, TWO, 140)
    assert codes(workers) == [1, 1], outputs(workers)
    for worker in workers:
        assert "disagree" in worker.output and words in worker.output and "/rows" in worker.output


@pytest.mark.parametrize("level,done", [("v1", "assigns in all"), ("each", "evaluates in all")])
def test_workers_whose_runs_are_the_same_train(nursery, tmp_path, level, done):
    workers = nursery.run("different_runs.py", [level, done], tmp_path, TWO, 140)
    assert codes(workers) == [0, 0], outputs(workers)
    assert workers[0].output.count("loss") == 1
