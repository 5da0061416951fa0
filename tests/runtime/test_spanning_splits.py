"""Splits in stages that lie in several workers: the parts of a stage are exchanged by the workers that serve it.

The models, and those that are split within one process, are those of tests/parity/test_split_pipelines.py.
"""

import functools
from typing import Any, Dict, Sequence

import pytest

from tests.parity import fixtures
from tests.parity.checks import CONTINUED, of_worker_0
from tests.parity.oracle import Oracle, compare, compare_with_noise
from tests.parity.scripts import split_pipelines
from tests.runtime.spanning import (
    FOUR_WORKERS,
    Nursery,
    Ran,
    case,
    check_end_of_data,
    codes,
    once,
    outputs,
    write_cases,
)

pytestmark = pytest.mark.timeout(300)
oracle = fixtures.oracle  # found here by pytest
long = pytest.mark.long
LIMIT = 240.0
SAVED = {"name": "wide_layers", "stages": 2, "optimizer": "momentum"}


def split(
    name: str, script: str = "train", constructors: Sequence[int] = (0, 2), devices: int = 1, **others: Any
) -> Any:
    """A model of tests/parity in two stages, each split over two devices."""
    arguments = dict({"name": name, "stages": 2, "split": 2, "micro_batches": 2, "optimizer": "momentum"}, **others)
    return case("tests.parity.scripts.split_pipelines." + script, constructors, devices, **arguments)


# Two workers drive a replica each, the stages after the first one are in the others.
FOUR = {
    "wide_layers": split("wide_layers", micro_batches=4),
}
MORE = {
    "transformer": split("transformer", schedule="PreferForward"),
    "tied_table": split("tied_table"),
    "big_table": split("big_table"),
    "clipped": split("wide_layers", clip=0.5),
    "resource_variables": split("resource_layers", micro_batches=4),
}
SESSIONS = "tests.runtime.jobs.spanning_sessions."
ENDS = {"ends": case(SESSIONS + "data_ends", name="wide_layers", split=2, micro_batches=[20, 13])}
FEATURES = {
    "mixed_precision": {"amp__level": "O1", "amp__loss_scale": "dynamic"},
    "updates_in_groups": {"optimizer__num_apply_group": 2},
    "recomputed": {"gradient_checkpoint__type": "auto"},
    "offloaded": {"offload__level": "v0"},
    "summed": {"communication__gradients_reduce_method": "sum"},
}
DEALT_OUT = {"cluster__device_place_prefer_intra_node": False, "replicas": 2, "devices": 2}
# Groups of two replicas, which are replicas of each other: each stage has four devices.
GROUPS = {
    "groups": split("wide_layers", **DEALT_OUT),
    "clipped_groups": split("wide_layers", clip=0.5, **DEALT_OUT),
}
# Both devices of a stage are in one of two workers.
TWO = {"one_drives": split("wide_layers", constructors=[0], **DEALT_OUT)}


def _run(directory: str, cases: Dict[str, Any], workers: int) -> Ran:
    write_cases(cases, directory)
    with Nursery() as nursery:
        finished = nursery.run("spanning_training.py", [directory], directory, FOUR_WORKERS[:workers], LIMIT)
    assert set(codes(finished)) == {0}, outputs(finished)
    return Ran(directory, cases, finished)


def _model(ran: Ran, name: str) -> Dict[str, Any]:
    return {key: value for key, value in ran.cases[name]["arguments"].items() if key in ("name", "optimizer")}


def _reference(oracle: Oracle, ran: Ran, name: str) -> Any:
    arguments = ran.cases[name]["arguments"]
    replicas = len(ran.cases[name]["constructors"]) * arguments.get("replicas", 1)
    model = _model(ran, name)
    if "clip" in arguments:  # of the mean
        return oracle.plain(split_pipelines.train, stages=2, clip=arguments["clip"], **model)
    return oracle.plain(
        split_pipelines.accumulated, micro_batches=arguments["micro_batches"], replicas=replicas, **model
    )


def _check(oracle: Oracle, ran: Ran, name: str) -> None:
    answers, model = ran.answers(name), _model(ran, name)
    again = functools.partial(oracle.plain, split_pipelines.train, stages=2, **model)
    compare_with_noise(_reference(oracle, ran, name), answers, again)
    assert all(held.startswith("net/") for answer in answers for held in answer.results.get("held", ()))


def _check_checkpoints(oracle: Oracle, ran: Ran) -> None:
    """One device continues from the checkpoint of the plan, and the plan from that of one device."""
    reference = oracle.plain(split_pipelines.saved, **SAVED)
    saved, continued = [of_worker_0(ran.answers(name)) for name in ("saved", "continued")]
    compare(reference, saved)
    assert sorted(saved[0].results["variables"][0]) == sorted(reference.results["variables"][0])
    further = oracle.plain(split_pipelines.saved, path=reference.results["path"], **SAVED)
    compare(further, [oracle.plain(split_pipelines.saved, path=saved[0].results["path"], **SAVED)], CONTINUED)
    compare(further, continued, CONTINUED)


def _saved(oracle: Oracle, **arguments: Any) -> Dict[str, Any]:
    """A case that begins anew, and one that begins with the checkpoint of one device."""
    path = oracle.plain(split_pipelines.saved, **SAVED).results["path"]
    paths = {"saved": "", "continued": path}
    return {name: split("wide_layers", script="saved", path=paths[name], **arguments) for name in paths}


@pytest.fixture(scope="module")
def four(oracle: Oracle, tmp_path_factory: Any) -> Ran:
    """Four workers of one device."""
    cases = dict(FOUR, **_saved(oracle))
    return once(tmp_path_factory, "splits_in_four", lambda path: _run(path, cases, 4))


@pytest.fixture(scope="module")
def more(tmp_path_factory: Any) -> Ran:
    """Four workers of one device, with further models."""
    cases = dict(MORE, **ENDS)
    return once(tmp_path_factory, "more_splits_in_four", lambda path: _run(path, cases, 4))


@pytest.fixture(scope="module")
def features(tmp_path_factory: Any) -> Ran:
    """Four workers of one device, with features that compute what they compute in one process."""
    cases = {name: split("wide_layers", **config) for name, config in FEATURES.items()}
    return once(tmp_path_factory, "splits_with_features", lambda path: _run(path, cases, 4))


@pytest.fixture(scope="module")
def groups(oracle: Oracle, tmp_path_factory: Any) -> Ran:
    """Four workers of two devices."""
    cases = dict(GROUPS, **_saved(oracle, **DEALT_OUT))
    return once(tmp_path_factory, "groups_of_splits", lambda path: _run(path, cases, 4))


@pytest.mark.long
def test_two_stages_in_four_workers(oracle: Oracle, four: Ran) -> None:
    _check(oracle, four, "wide_layers")


@pytest.mark.long
def test_checkpoints_are_those_of_one_device(oracle: Oracle, four: Ran) -> None:
    _check_checkpoints(oracle, four)


@long
@pytest.mark.parametrize("name", sorted(MORE))
def test_models(oracle: Oracle, more: Ran, name: str) -> None:
    _check(oracle, more, name)


@long
def test_the_end_of_data_of_one_constructor_ends_the_step_of_all(oracle: Oracle, more: Ran) -> None:
    """13 micro batches are 3 steps of 4."""
    model = {"name": "wide_layers", "optimizer": "adam"}
    expected = oracle.plain(split_pipelines.accumulated, micro_batches=4, replicas=2, **model)
    check_end_of_data(more.answers("ends"), expected.results["loss"][:3])


@long
@pytest.mark.parametrize("name", sorted(FEATURES))
def test_features_as_in_one_process(oracle: Oracle, features: Ran, name: str) -> None:
    arguments = dict(features.cases[name]["arguments"], replicas=2)
    (expected,) = oracle.plan((1, 4), split_pipelines.train, **arguments)
    compare(expected, features.answers(name), 2e-6)


@long
@pytest.mark.parametrize("name", ["groups", "clipped_groups"])
def test_groups_are_replicas(oracle: Oracle, groups: Ran, name: str) -> None:
    _check(oracle, groups, name)


@long
def test_checkpoints_of_groups(oracle: Oracle, groups: Ran) -> None:
    _check_checkpoints(oracle, groups)


@long
def test_one_worker_drives_all_replicas(oracle: Oracle, tmp_path: Any) -> None:
    _check(oracle, _run(str(tmp_path), TWO, 2), "one_drives")
