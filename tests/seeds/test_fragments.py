"""Every fragment of the project's documents runs as it is printed, and trains as one device does."""

import os
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.pool import Answer
from tests.runtime.spanning import Ran, case, codes, once, outputs, run_workers, write_cases
from tests.seeds import fragments
from tests.seeds.fragments import FRAGMENTS, TABLE, Entry

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
long = pytest.mark.long


def _jobs() -> List[Any]:
    """Each fragment on 1, 2, 4 and 8 devices of a process and on two workers, where a replica fits into these."""
    jobs = []
    for name, entry in FRAGMENTS.items():
        for topology in [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1)]:
            if entry.stages != 1 and topology in [(1, 1), (2, 1)]:
                continue  # on one device stages do not fit; for two workers see below
            is_quick = topology == (1, 8) if entry.stages != 1 else topology in [(1, 2), (2, 1)]
            marks = [] if is_quick else [long]
            job_id = f"{name}-{topology_name(topology)}"
            jobs.append(pytest.param(name, topology, id=job_id, marks=marks))
    return jobs


@pytest.mark.grid
@pytest.mark.parametrize("name, topology", _jobs())
def test_it_trains_as_one_device_does(oracle: Oracle, name: str, topology: Tuple[int, int]) -> None:
    entry = FRAGMENTS[name]
    reference = oracle.plain(fragments.train, name=name).results
    answers = oracle.plan(topology, fragments.train, name=name)
    _compare(entry, answers, reference)


def _compare(entry: Entry, answers: List[Answer], reference: Dict[str, List[Any]]) -> None:
    runs = np.mean([answer.results["loss"] for answer in answers], axis=0)
    losses = np.reshape(runs, [-1, entry.reads]).mean(axis=1)
    np.testing.assert_allclose(losses, reference["loss"], rtol=entry.losses)
    seen, expected = answers[0].results["variables"][0], reference["variables"][0]
    for variable, value in expected.items():
        allowed = entry.weights * max(float(np.max(np.abs(value))), 1e-3)
        np.testing.assert_allclose(seen[variable], value, rtol=0, atol=allowed, err_msg=variable)


STAGED = [name for name, entry in FRAGMENTS.items() if entry.stages != 1]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: Any) -> Ran:
    """Two workers with a stage each: the second serves the first, so no worker of the oracle can run these."""
    script = "tests.seeds.fragments.train"
    cases = {name: case(script, constructors=[0], name=name, written_for=2) for name in STAGED}

    def run(directory: str) -> Ran:
        write_cases(cases, directory)
        workers = run_workers("spanning_training.py", [directory], directory, ["127.0.0.1"] * 2, 120.0)
        return Ran(directory, cases, workers)

    return once(tmp_path_factory, "seeds", run)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", STAGED)
def test_stages_in_two_workers_train_as_one_device_does(oracle: Oracle, two_workers: Ran, name: str) -> None:
    assert set(codes(two_workers.workers)) == {0}, outputs(two_workers.workers)
    reference = oracle.plain(fragments.train, name=name).results
    _compare(FRAGMENTS[name], two_workers.answers(name), reference)


@pytest.mark.parametrize(
    "name, topology, written_for, numbers",
    [
        ("large_scale_classification", (1, 4), 8, "epl.split(8) needs groups of 8 devices, and the job has 4"),
        ("split", (1, 4), 8, "epl.split(8) needs groups of 8 devices, and the job has 4"),
        ("pipeline", (1, 1), 1, "Total devices 1 is not divisible by num_device_per_replica 2"),
    ],
)
def test_a_number_of_devices_that_does_not_fit_is_refused(
    oracle: Oracle, name: str, topology: Tuple[int, int], written_for: int, numbers: str
) -> None:
    error = oracle.failing_plan(topology, fragments.train, name=name, written_for=written_for)[0].error
    assert error is not None and numbers in error, error


def test_the_table_names_every_fragment() -> None:
    named = {name for names in TABLE.values() for name in names}
    assert named - set(FRAGMENTS) == {name for name in named if os.path.exists(os.path.join(ROOT, name))}
    assert set(FRAGMENTS) <= named
