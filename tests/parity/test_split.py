"""What is split over devices trains as if it were not."""

from typing import Tuple

import numpy as np
import pytest

from tests.parity.checks import check_evaluation, continue_from_each_other
from tests.parity.context import STEPS
from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import splits

every_topology = pytest.mark.parametrize(
    "topology", [(1, 2), (2, 1), (1, 3), (1, 4), (4, 1), (2, 2)], ids=topology_name
)
some_topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)

# Each model in one process with two devices, or in two with one; the other way round in the long tests.
TRAINED = [
    pytest.param(name, topology, marks=[pytest.mark.long] if (place + turn) % 2 else [])
    for place, name in enumerate(sorted(splits.SPLITS))
    for turn, topology in enumerate([(1, 2), (2, 1)])
]

ACCUMULATED = 5e-6  # sums of gradients that nearly cancel: their rounding is that of the larger terms


@every_topology
def test_a_wide_head(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, splits.train, name="head", optimizer="adam")


@pytest.mark.parametrize(
    "name,topology", TRAINED, ids=lambda value: topology_name(value) if isinstance(value, tuple) else value
)
def test_models(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    oracle.check(topology, splits.train, name=name, optimizer="momentum")


@pytest.mark.parametrize(
    "topology,name,groups",
    [
        ((1, 2), "everything", 1),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ((2, 1), "resource_head", 1),
                ((2, 2), "decayed", 1),
                ((1, 3), "head", 1),
                ((1, 4), "everything", 2),
            ]
        ),
    ],
)
def test_moving_averages(oracle: Oracle, topology: Tuple[int, int], name: str, groups: int) -> None:
    answers = oracle.check(topology, splits.train, name=name, optimizer="momentum", groups=groups, averages=True)
    assert any("ExponentialMovingAverage" in held for _, parts in answers[0].results["parts"] for held in parts)


@some_topologies
def test_losses_of_rows(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, splits.vector)


@some_topologies
def test_a_branch_that_scores_and_weights_of_columns(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.plain(splits.scored)
    for answer in oracle.check(topology, splits.scored, reference):
        np.testing.assert_allclose(answer.results["scores"], reference.results["scores"], rtol=1e-4, atol=1e-5)


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize("name,after", [("head", True), ("head", False), ("small_table", False)])
def test_clipped(oracle: Oracle, topology: Tuple[int, int], name: str, after: bool) -> None:
    answers = oracle.check(topology, splits.train, name=name, clip=0.1, communication__clip_after_allreduce=after)
    norms = oracle.plain(splits.train, name=name, clip=0.1).results["norm"]
    for answer in answers:
        np.testing.assert_allclose(answer.results["norm"], norms, rtol=1e-6)


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize(
    "name,optimizer,clip",
    [
        pytest.param("resource_head", "adam", 0.0, marks=pytest.mark.long),
        ("everything", "momentum", 0.0),
        ("small_table", "momentum", 0.1),
        ("head", "layerwise", 0.0),
    ],
)
def test_updates_in_groups(oracle: Oracle, topology: Tuple[int, int], name: str, optimizer: str, clip: float) -> None:
    """Norms that each update takes are sums over all ranks, and wait for no group that waits for them."""
    oracle.check(topology, splits.train, name=name, optimizer=optimizer, clip=clip, optimizer__num_apply_group=3)


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize("name,clip", [("head", 0.0), ("small_table", 0.0), ("everything", 0.1)])
def test_sum_over_ranks(oracle: Oracle, topology: Tuple[int, int], name: str, clip: float) -> None:
    """All gradients, of parts and of what every rank holds, are as many times larger as there are ranks."""
    oracle.check(
        topology,
        splits.train,
        name=name,
        optimizer="momentum",
        clip=clip,
        factor=2.0,
        communication__gradients_reduce_method="sum",
    )


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize(
    "name,steps,change,optimizer",
    [
        ("head", 3, "", "layerwise"),
        ("small_table", 2, "", "momentum"),
        ("tied", 2, "", "momentum"),
        ("resource_head", 2, "clipped", "momentum"),
        ("everything", 3, "clipped", "momentum"),
        pytest.param("two_tables", 2, "", "adam", marks=pytest.mark.long),
        pytest.param("two_tables", 3, "clipped", "momentum", marks=pytest.mark.long),
    ],
)
def test_accumulation(
    oracle: Oracle, topology: Tuple[int, int], name: str, steps: int, change: str, optimizer: str
) -> None:
    answers = oracle.check(
        topology, splits.accumulated, tolerance=ACCUMULATED, name=name, steps=steps, change=change, optimizer=optimizer
    )
    for answer in answers:
        assert answer.results["variables"][0]["global_step"] == STEPS // steps


@pytest.mark.parametrize(
    "topology,kind",
    [
        ((1, 2), "auto"),
        ((2, 1), "auto"),
        ((1, 2), "collection"),
        pytest.param((2, 1), "collection", marks=pytest.mark.long),
    ],
)
def test_recomputation(oracle: Oracle, topology: Tuple[int, int], kind: str) -> None:
    answers = oracle.check(topology, splits.train, name="blocks", optimizer="momentum", gradient_checkpoint__type=kind)
    assert all(answer.results["recomputed"][0] > 0 for answer in answers)


def test_accumulation_with_recomputation_in_groups(oracle: Oracle) -> None:
    oracle.check(
        (1, 2),
        splits.accumulated,
        tolerance=ACCUMULATED,
        name="blocks",
        steps=2,
        change="clipped",
        gradient_checkpoint__type="auto",
        optimizer__num_apply_group=2,
    )


@pytest.mark.parametrize(
    "topology,resource",
    [
        ((1, 2), False),
        ((2, 2), True),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [((1, 2), True), ((2, 1), False), ((2, 1), True), ((2, 2), False)]
        ),
    ],
    ids=lambda value: topology_name(value) if isinstance(value, tuple) else str(value),
)
def test_checkpoints_are_those_of_one_device(oracle: Oracle, topology: Tuple[int, int], resource: bool) -> None:
    continue_from_each_other(oracle, topology, splits.saved, {}, resource=resource)


@pytest.mark.parametrize("topology", [(1, 2), (2, 1), pytest.param((2, 2), marks=pytest.mark.long)], ids=topology_name)
def test_evaluation_gives_what_one_device_gives(oracle: Oracle, topology: Tuple[int, int]) -> None:
    check_evaluation(oracle, topology)
