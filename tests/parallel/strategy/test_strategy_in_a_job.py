"""Two workers train by the strategy that worker 0 reads; what is wrong with it is an error of both."""

import json
import os

import pytest

from tests.runtime.spanning import once, outputs, run_workers


def _run(directory):
    workers = run_workers("use_strategy.py", [directory], directory, ["127.0.0.1"] * 2, limit=150.0)
    assert [worker.code for worker in workers] == [0, 0], outputs(workers)
    told = []
    for worker in range(2):
        with open(os.path.join(directory, "told_%d.json" % worker)) as source:
            told.append(json.load(source))
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """By worker: what became of each case."""
    return once(tmp_path_factory, "use_strategy", _run)


@pytest.mark.timeout(180)
def test_all_workers_train_by_the_file_of_worker_0(told):
    for of_worker in told:
        assert of_worker["level"] == ["v1", "planner"]
        assert of_worker["used"] == of_worker["recorded"] and of_worker["used"][0] > of_worker["used"][2]
        assert of_worker["equal"] == [] and of_worker["plan"] is None


@pytest.mark.timeout(180)
def test_all_workers_train_by_what_worker_0_finds(told):
    """The machine file is on worker 0 alone."""
    assert told[0]["decided"] == told[1]["decided"]
    for of_worker in told:
        assert of_worker["origin"] == "planner"
        assert of_worker["searched"] == pytest.approx(of_worker["recorded"], rel=1e-5)


@pytest.mark.timeout(180)
def test_errors_are_those_of_all_workers(told):
    for of_worker in told:
        assert "auto.plan_file 'none.json' cannot be used: No such file" in of_worker["missing"]
        assert "zero.level is 'v0' (from code), and the strategy" in of_worker["contradicts"]
