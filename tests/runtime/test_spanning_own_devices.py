"""A split on devices of its own that lie in other workers than the code beside it trains as one device does.

Workers with devices of the first TaskGraph drive the model, the others serve: they have no data, and no session.
A job runs its scripts one after the other, first those that more workers drive: one that has served plans fewer graphs.
"""

from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np
import pytest

from tests.parity import fixtures
from tests.parity.checks import CONTINUED, compare_evaluation, of_worker_0
from tests.parity.oracle import Oracle, compare
from tests.parity.scripts import splits
from tests.runtime.spanning import Nursery, Ran, case, codes, once, outputs, write_cases

pytestmark = pytest.mark.timeout(300)
oracle = fixtures.oracle  # found here by pytest


def split(constructors: Sequence[int], apart: Sequence[int], script: str = "train", **arguments: Any) -> Any:
    """A model of tests/parity, with so many devices for replicated code and for the split in a model replica."""
    return case("tests.parity.scripts.splits." + script, constructors, apart=list(apart), **arguments)


class Job(NamedTuple):
    workers: int
    cases: Dict[str, Any]


FEATURES = {"offload__level": "v0", "gradient_checkpoint__type": "auto", "optimizer__num_apply_group": 2}
JOBS = {
    "three": Job(
        3,
        {
            "split_first": split([0, 1], (1, 2), name="loss_outside", optimizer="momentum"),
            "head": split([0], (1, 2), name="head", optimizer="adam", clip=0.1),
        },
    ),
    "four": Job(
        4,
        {
            "two_beside_two": split([0, 1], (2, 2), name="head", optimizer="adam"),
            "evaluated": split([0, 1], (2, 2), script="evaluated"),
            "ends": split([0, 1], (2, 2), script="until_the_end", groups=1, batches=[5, 3]),
            "three_parts": split([0], (1, 3), name="resource_head", optimizer="momentum"),
            "replicated_behind": split([0], (1, 2), name="experts", optimizer="momentum"),
        },
    ),
    "two": Job(
        2,
        {
            "replicas_alone": split([0], (2, 2), devices=2, name="head", optimizer="adam"),
            "one_for_all": split([0], (1, 3), devices=2, name="decayed", optimizer="momentum"),
            "seven_experts": split([0], (1, 2), devices=2, name="seven_experts", optimizer="momentum"),
            "micro_batches": split(
                [0], (2, 2), devices=2, name="head", optimizer="momentum", ratios=[3, 1], pipeline__num_micro_batch=2
            ),
            "one_device_without_parts": split([0], (2, 2), devices=2, name="head", optimizer="adam", ratios=[0, 1]),
            "other_features": split([0], (2, 2), devices=2, name="blocks", optimizer="momentum", **FEATURES),
        },
    ),
    "six": Job(6, {"two_groups": split([0, 3], (1, 2), name="head", optimizer="adam")}),
}
OF_PLAN = {"apart", "ratios", "pipeline__num_micro_batch"}.union(FEATURES)
TRAINED = [
    (name, key) for name, job in JOBS.items() for key, one in job.cases.items() if one["script"].endswith("train")
]


def _run(directory: str, workers: int, cases: Dict[str, Any]) -> Ran:
    write_cases(cases, directory)
    with Nursery() as nursery:
        finished = nursery.run("spanning_training.py", [directory], directory, ["127.0.0.1"] * workers, 240.0)
    return Ran(directory, cases, finished)


@pytest.fixture
def ran(request: Any, tmp_path_factory: Any) -> Ran:
    """A job of the table."""
    name = request.param
    found: Ran = once(tmp_path_factory, "own_devices_" + name, lambda directory: _run(directory, *JOBS[name]))
    assert set(codes(found.workers)) == {0}, outputs(found.workers)
    return found


def of_job(name: str, *values: Any) -> Any:
    """A parameter; long if the job is."""
    return pytest.param(name, *values, marks=[] if name == "three" else pytest.mark.long)


@pytest.mark.parametrize("ran, key", [of_job(*one) for one in TRAINED], indirect=["ran"])
def test_trains_as_one_device_does(oracle: Oracle, ran: Ran, key: str) -> None:
    arguments = {name: value for name, value in ran.cases[key]["arguments"].items() if name not in OF_PLAN}
    reference = oracle.plain(splits.train, **arguments)
    compare(reference, ran.answers(key))
    for answer in ran.answers(key):
        np.testing.assert_allclose(answer.results["norm"], reference.results["norm"], rtol=1e-6)


@pytest.mark.parametrize("ran, key", [of_job(*one) for one in TRAINED], indirect=["ran"])
def test_workers_without_devices_of_the_first_taskgraph_serve(ran: Ran, key: str) -> None:
    drivers = ran.cases[key]["constructors"]
    for worker in range(len(ran.workers)):
        assert ("served" in ran.recorded(key, worker)) == (worker not in drivers)


@pytest.mark.parametrize("ran", [of_job("four")], indirect=True)
def test_evaluation_gives_what_one_device_gives(oracle: Oracle, ran: Ran) -> None:
    compare_evaluation(oracle.plain(splits.evaluated), ran.answers("evaluated"))


@pytest.mark.parametrize("ran", [of_job("four")], indirect=True)
def test_the_end_of_data_of_one_worker_ends_the_step_of_all(ran: Ran) -> None:
    first, second = [answer.results for answer in ran.answers("ends")]
    assert first["steps"] == second["steps"] == [3, 3]
    for name, value in first["variables"][0].items():
        np.testing.assert_array_equal(value, second["variables"][0][name])


@pytest.mark.long
def test_checkpoints_are_those_of_one_device(oracle: Oracle, tmp_path: Any) -> None:
    """One device and a plan continue from each other's; slots included."""
    reference = oracle.plain(splits.saved)
    path = reference.results["path"]
    places: List[Any] = [([0, 1], (2, 2)), ([0], (1, 3))]
    cases = {}
    for number, place in enumerate(places):
        cases["saved%d" % number] = split(*place, script="saved")
        cases["continued%d" % number] = split(*place, script="saved", path=path)
    ran = _run(str(tmp_path), 4, cases)
    assert set(codes(ran.workers)) == {0}, outputs(ran.workers)
    further = oracle.plain(splits.saved, path=path)
    for number in range(len(places)):
        saved = of_worker_0(ran.answers("saved%d" % number))
        compare(reference, saved)
        assert sorted(saved[0].results["variables"][0]) == sorted(reference.results["variables"][0])
        compare(further, [oracle.plain(splits.saved, path=saved[0].results["path"])], CONTINUED)
        compare(further, of_worker_0(ran.answers("continued%d" % number)), CONTINUED)
