"""Groups of devices that each hold all parts of a split are replicas in data parallelism."""

from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.checks import check_evaluation, continue_from_each_other
from tests.parity.context import STEPS
from tests.parity.oracle import Oracle, replica_differences, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import split_amp, splits
from tests.parity.test_split import ACCUMULATED

GROUPS = 2
ACROSS = {"cluster__device_place_prefer_intra_node": False}  # each group has a device of each process
PLACES: List[Any] = [((2, 2), {}), ((1, 4), {}), ((2, 2), ACROSS), ((4, 1), {})]


def _placements(in_short: int) -> Any:
    """The first so many places; the others in long runs."""
    places = PLACES[:in_short] + [pytest.param(*place, marks=pytest.mark.long) for place in PLACES[in_short:]]
    return pytest.mark.parametrize(
        "topology,config",
        places,
        ids=lambda value: topology_name(value) if isinstance(value, tuple) else "across" if value else "",
    )


every_placement = _placements(3)
long_placements = _placements(1)
# What they compute from a batch is no mean over its rows: each group does so with its own.
OF_BATCHES = ("experts", "scaled_by_a_loss", "branched", "own_gradients", "penalised", "python_functions")


def _check_parts(answers: List[Answer], groups: int) -> None:
    """Asserts that the devices with the same part, one of each group, hold the same, bit for bit."""
    held = [(worker, part, values) for worker, answer in enumerate(answers) for part, values in answer.results["parts"]]
    for part in {part for _, part, _ in held}:
        same = [(worker, values) for worker, other, values in held if other == part]
        assert len(same) == groups and same[0][1]
        for worker, values in same[1:]:
            for name, value in values.items():
                np.testing.assert_array_equal(value, same[0][1][name], err_msg="%s of worker %d" % (name, worker))


def _check(
    oracle: Oracle, topology: Tuple[int, int], name: str, groups: int = GROUPS, **arguments: Any
) -> List[Answer]:
    reference = None
    if name in OF_BATCHES:
        of_plan = {key: value for key, value in arguments.items() if "__" not in key}
        reference = oracle.by_hand((1, groups), splits.train, name=name, groups=groups, own_losses=True, **of_plan)
    answers = oracle.check(topology, splits.train, reference=reference, name=name, groups=groups, **arguments)
    _check_parts(answers, groups)
    return answers


@every_placement
def test_a_wide_head(oracle: Oracle, topology: Tuple[int, int], config: Any) -> None:
    _check(oracle, topology, "head", optimizer="adam", **config)


@long_placements
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("experts", "small_table") else pytest.param(name, marks=pytest.mark.long)
        for name in sorted(splits.SPLITS)
    ],
)
def test_models(oracle: Oracle, topology: Tuple[int, int], config: Any, name: str) -> None:
    _check(oracle, topology, name, optimizer="momentum", **config)


@long_placements
@pytest.mark.parametrize("name", [pytest.param("head", marks=pytest.mark.long), "small_table"])
def test_clipped(oracle: Oracle, topology: Tuple[int, int], config: Any, name: str) -> None:
    """The norm has each part once."""
    answers = _check(oracle, topology, name, clip=0.1, **config)
    norms = oracle.plain(splits.train, name=name, clip=0.1).results["norm"]
    for answer in answers:
        np.testing.assert_allclose(answer.results["norm"], norms, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["experts", "small_table"])
def test_four_groups(oracle: Oracle, name: str) -> None:
    _check(oracle, (2, 4), name, groups=4, optimizer="momentum")


@pytest.mark.long
@pytest.mark.parametrize("optimizer,clip", [("momentum", 0.1), ("layerwise", 0.0)])
def test_groups_that_lie_in_processes_in_different_ways(oracle: Oracle, optimizer: str, clip: float) -> None:
    """Norms are rounded by where the addends come from; all groups take the same."""
    devices = [
        ["/job:worker/replica:0/task:%d/device:CPU:%d" % place for place in group]
        for group in ([(0, 0), (0, 1), (0, 2), (1, 0)], [(0, 3), (1, 1), (1, 2), (1, 3)])
    ]
    _check(oracle, (2, 4), "head", optimizer=optimizer, clip=clip, devices=devices)


@pytest.mark.long
@long_placements
@pytest.mark.parametrize("name", ["head", "everything"])
def test_sum_over_ranks(oracle: Oracle, topology: Tuple[int, int], config: Any, name: str) -> None:
    _check(
        oracle, topology, name, optimizer="momentum", factor=4.0, communication__gradients_reduce_method="sum", **config
    )


@pytest.mark.long
@pytest.mark.parametrize("topology", [(2, 2), (1, 4)], ids=topology_name)
@pytest.mark.parametrize(
    "name,optimizer,config",
    [
        ("small_table", "momentum", {"optimizer__num_apply_group": 3}),
        ("head", "layerwise", {"optimizer__num_apply_group": 3}),
        ("blocks", "momentum", {"gradient_checkpoint__type": "auto"}),
    ],
    ids=lambda value: sorted(value)[0] if isinstance(value, dict) else None,
)
def test_with_other_features(oracle: Oracle, topology: Tuple[int, int], name: str, optimizer: str, config: Any) -> None:
    _check(oracle, topology, name, optimizer=optimizer, **config)


@long_placements
@pytest.mark.parametrize(
    "name,optimizer", [("small_table", "momentum"), pytest.param("head", "layerwise", marks=pytest.mark.long)]
)
def test_accumulation(oracle: Oracle, topology: Tuple[int, int], config: Any, name: str, optimizer: str) -> None:
    oracle.check(
        topology,
        splits.accumulated,
        tolerance=ACCUMULATED,
        name=name,
        steps=2,
        optimizer=optimizer,
        groups=GROUPS,
        **config,
    )


def test_a_part_that_overflows_in_one_group_skips_the_step_in_all(oracle: Oracle) -> None:
    answers = oracle.plan((2, 2), split_amp.train, name="head_alone", overflow_at=3, groups=GROUPS)
    for answer in answers:
        variables = answer.results["variables"][0]
        assert (variables["global_step"], variables["good_steps"]) == (STEPS - 1, STEPS - 4)
        assert variables["current_loss_scale"] == 2.0**14
    assert not replica_differences(answers)


@long_placements
def test_checkpoints_are_those_of_one_device(oracle: Oracle, topology: Tuple[int, int], config: Any) -> None:
    continue_from_each_other(oracle, topology, splits.saved, dict(config, groups=GROUPS))


@long_placements
def test_evaluation_gives_what_one_device_gives(oracle: Oracle, topology: Tuple[int, int], config: Any) -> None:
    check_evaluation(oracle, topology, groups=GROUPS, **config)


@pytest.mark.parametrize(
    "topology,groups,batches,steps",
    [
        ((2, 2), GROUPS, [4, 7], 2),
        pytest.param((2, 2), 1, [7, 2], 1, marks=pytest.mark.long),
        pytest.param((1, 4), GROUPS, [11], 2, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_all_groups_stop_in_the_same_step(
    oracle: Oracle, topology: Tuple[int, int], groups: int, batches: List[int], steps: int
) -> None:
    """Data ends on one device: nobody makes the step that not all can make."""
    answers = oracle.plan(topology, splits.until_the_end, groups=groups, batches=batches)
    for answer in answers:
        assert answer.results["steps"] == [steps, steps]
        assert answer.results["variables"][0]["global_step"] == 2 * steps
    assert not replica_differences(answers)
