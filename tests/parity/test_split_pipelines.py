"""Stages of a pipeline whose layers are split over the replicas of the stage compute what one device computes."""

from typing import Any, List, Tuple

import pytest

from tests.parity.oracle import Oracle, compare, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import pipelines, split_pipelines

SCHEDULES = ["PreferBackward", "PreferForward", "PreferBackwardOptimizer"]
# Processes that other tests start as well; see test_pipelines.py.
ONE, TWO = (1, 4), (2, 2)
REPLICAS = {ONE: 2, TWO: 1}  # of each process, so that each stage has two devices
FLOAT64 = 1e-12
CLIP = 0.5  # norms of some steps lie above, those of others below

long = pytest.mark.long


def _reference(
    oracle: Oracle, name: str, micro_batches: int, replicas: int, optimizer: str, **arguments: Any
) -> Answer:
    shape = {"micro_batches": micro_batches, "replicas": replicas, "optimizer": optimizer}
    return oracle.plain(split_pipelines.accumulated, name=name, **shape, **arguments)


def _check(
    oracle: Oracle,
    topology: Tuple[int, int],
    name: str,
    micro_batches: int,
    optimizer: str = "momentum",
    replicas: int = 0,
    script: Any = split_pipelines.train,
    **arguments: Any,
) -> List[Answer]:
    replicas = replicas or REPLICAS[topology]
    of_reference = {key: arguments[key] for key in ("dtype",) if key in arguments}
    reference = _reference(oracle, name, micro_batches, topology[0] * replicas, optimizer, **of_reference)
    shape = {"stages": 2, "split": 2, "micro_batches": micro_batches, "replicas": replicas, "optimizer": optimizer}
    shape.update(arguments)
    return oracle.check(topology, script, reference, name=name, **shape)


@pytest.mark.parametrize(
    "micro_batches,schedule",
    [(1, "PreferBackward"), (4, "PreferBackward"), (2, "PreferForward"), (2, "PreferBackwardOptimizer")]
    + [
        pytest.param(count, schedule, marks=long)
        for count, schedule in [
            (2, "PreferBackward"),
            (1, "PreferForward"),
            (4, "PreferForward"),
            (1, "PreferBackwardOptimizer"),
            (4, "PreferBackwardOptimizer"),
        ]
    ],
)
def test_wide_layers(oracle: Oracle, micro_batches: int, schedule: str) -> None:
    answers = _check(oracle, ONE, "wide_layers", micro_batches, schedule=schedule)
    held = [name.replace("net/", "") for name in answers[0].results["held"]]
    assert [name for name in held if not name.endswith("Momentum")] == [
        "head/bias", "head/kernel", "middle/narrow/kernel", "middle/wide/bias", "middle/wide/kernel",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "topology,name,micro_batches,optimizer",
    [
        pytest.param(ONE, "transformer", 2, "momentum", marks=long),
        (ONE, "wide_head", 4, "adam"),
        (TWO, "wide_head", 4, "adam"),
        (ONE, "big_table", 2, "momentum"),
        (ONE, "tied_table", 2, "momentum"),
        pytest.param(TWO, "transformer", 4, "momentum", marks=long),
        pytest.param(TWO, "wide_layers", 4, "momentum", marks=long),
        pytest.param(TWO, "big_table", 4, "momentum", marks=long),
        pytest.param(TWO, "tied_table", 4, "momentum", marks=long),
    ],
    ids=lambda value: topology_name(value) if isinstance(value, tuple) else str(value),
)
def test_models(oracle: Oracle, topology: Tuple[int, int], name: str, micro_batches: int, optimizer: str) -> None:
    # Adam divides by roots of gradients that are hardly more than their rounding in float32.
    own = {"dtype": "float64"} if optimizer == "adam" else {}
    _check(oracle, topology, name, micro_batches, optimizer, **own)


@long
@pytest.mark.parametrize(
    "topology,name,micro_batches,schedule",
    [
        (ONE, "wide_layers", 1, "PreferBackward"),
        (ONE, "wide_layers", 4, "PreferForward"),
        (TWO, "wide_layers", 2, "PreferBackwardOptimizer"),
        (TWO, "transformer", 4, "PreferBackward"),
    ],
)
def test_adam(oracle: Oracle, topology: Tuple[int, int], name: str, micro_batches: int, schedule: str) -> None:
    """In float64: where a gradient is nothing but what was rounded, a step is as long as elsewhere."""
    wanted = {"optimizer": "adam", "schedule": schedule, "dtype": "float64", "tolerance": FLOAT64}
    _check(oracle, topology, name, micro_batches, **wanted)


@pytest.mark.parametrize("stages", [pytest.param(3, marks=long), 4])
def test_stages_that_are_split_as_a_whole(oracle: Oracle, stages: int) -> None:
    """Between them tensors pass in parts."""
    _check(oracle, TWO, "transformer", 2, stages=stages)


def test_groups_are_replicas(oracle: Oracle) -> None:
    """Two groups of two devices in each stage."""
    _check(oracle, TWO, "wide_layers", 2, replicas=2)


@long
def test_resource_variables(oracle: Oracle) -> None:
    _check(oracle, ONE, "wide_layers", 2, resource=True)


def test_an_iterator(oracle: Oracle) -> None:
    """Its end amid the micro batches changes nothing."""
    answers = _check(oracle, TWO, "wide_head", 4, script=split_pipelines.read, surplus=3)
    assert all(len(answer.results["loss"]) == pipelines.STEPS for answer in answers)


def test_clipped(oracle: Oracle) -> None:
    """The norm is that of all parts of all stages, once a step."""
    shape = {"name": "wide_layers", "stages": 2, "optimizer": "momentum", "clip": CLIP}
    reference = oracle.plain(split_pipelines.train, **shape)
    oracle.check(ONE, split_pipelines.train, reference, split=2, micro_batches=2, replicas=2, **shape)


def test_checkpoints_are_those_of_one_device(oracle: Oracle) -> None:
    """Each continues from the checkpoint of the other; slots included."""
    shape = {"name": "wide_layers", "optimizer": "momentum", "stages": 2}
    plan = {"split": 2, "micro_batches": 2, "replicas": 2}
    reference = oracle.plain(split_pipelines.saved, **shape)
    answers = oracle.check(ONE, split_pipelines.saved, reference, **shape, **plan)
    assert sorted(answers[0].results["variables"][0]) == sorted(reference.results["variables"][0])
    further = oracle.plain(split_pipelines.saved, path=reference.results["path"], **shape)
    compare(further, [oracle.plain(split_pipelines.saved, path=answers[0].results["path"], **shape)], 1e-5)
    compare(further, oracle.plan(ONE, split_pipelines.saved, path=reference.results["path"], **shape, **plan), 1e-5)


def test_sum_instead_of_mean(oracle: Oracle) -> None:
    reference = _reference(oracle, "wide_layers", 2, 2, "sgd", summed=True)
    shape = {"stages": 2, "split": 2, "micro_batches": 2, "replicas": 2, "optimizer": "sgd"}
    oracle.check(
        ONE, split_pipelines.train, reference, name="wide_layers", communication__gradients_reduce_method="sum", **shape
    )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"optimizer__num_apply_group": 2}, marks=long),
        pytest.param({"gradient_checkpoint__type": "auto"}, marks=long),
        pytest.param({"offload__level": "v0"}, marks=long),
    ],
    ids=lambda config: sorted(config)[0],
)
def test_with_other_features(oracle: Oracle, config: Any) -> None:
    _check(oracle, ONE, "wide_layers", 2, **config)


@pytest.mark.parametrize("name", ["wide_layers", pytest.param("transformer", marks=long)])
@pytest.mark.parametrize("micro_batches", [2, pytest.param(1, marks=long)])
def test_processes_with_different_numbers_of_rows(oracle: Oracle, name: str, micro_batches: int) -> None:
    shape = {"stages": 2, "split": 2, "micro_batches": micro_batches, "workers": [8, 4], "optimizer": "momentum"}
    oracle.check(TWO, split_pipelines.uneven, name=name, **shape)
