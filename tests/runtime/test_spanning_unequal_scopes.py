"""Scopes of epl.replicate with different numbers of devices, on devices of their own in several workers.

Workers with devices of the first scope drive the model, the others serve: they have no data, and no session.
"""

from typing import Any, Dict, Sequence

import pytest

from tests.parity import fixtures
from tests.parity.oracle import Oracle, compare
from tests.parity.scripts import unequal
from tests.runtime.spanning import Nursery, Ran, case, codes, once, outputs, write_cases

pytestmark = pytest.mark.timeout(300)
oracle = fixtures.oracle  # found here by pytest


def model(constructors: Sequence[int], counts: Sequence[int], **arguments: Any) -> Any:
    """A model of tests/parity whose scopes have so many devices."""
    return case(
        "tests.parity.scripts.unequal.train", constructors, counts=list(counts), apart=True, **arguments
    )  # fmt: skip


CASES: Dict[str, Any] = {
    "larger_first": model([0, 1], (2, 1), name="tables", optimizer="adam"),
    "smaller_first": model([0], (1, 2), name="layers", optimizer="momentum"),
}


@pytest.fixture
def ran(tmp_path_factory: Any) -> Ran:
    """Three workers with one device each."""

    def run(directory: str) -> Ran:
        write_cases(CASES, directory)
        with Nursery() as nursery:
            finished = nursery.run("spanning_training.py", [directory], directory, ["127.0.0.1"] * 3, 240.0)
        return Ran(directory, CASES, finished)

    found: Ran = once(tmp_path_factory, "unequal_scopes", run)
    assert set(codes(found.workers)) == {0}, outputs(found.workers)
    return found


@pytest.mark.parametrize("key", sorted(CASES))
def test_trains_as_one_device_does(oracle: Oracle, ran: Ran, key: str) -> None:
    arguments = {name: value for name, value in CASES[key]["arguments"].items() if name != "apart"}
    compare(oracle.plain(unequal.train, **arguments), ran.answers(key))


@pytest.mark.parametrize("key", sorted(CASES))
def test_workers_without_devices_of_the_first_scope_serve(ran: Ran, key: str) -> None:
    for worker in range(3):
        assert ("served" in ran.recorded(key, worker)) == (worker not in CASES[key]["constructors"])
