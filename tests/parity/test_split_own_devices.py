"""A split on devices of its own, beside the replicated code on others: it trains as one device does.

Where the two lie in different processes: tests/runtime/test_spanning_own_devices.py.
"""

from typing import Any, Tuple

import numpy as np
import pytest

from tests.parity.checks import check_evaluation, continue_from_each_other
from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import splits

ACROSS = {"cluster__device_place_prefer_intra_node": False}  # each process has devices of both
# Devices of each process; of the replicated code and of the split in a model replica.
SHARED = ((1, 3), (1, 2), {})
IN_PROCESSES = ((2, 2), (2, 2), ACROSS)
AS_MANY = ((1, 4), (2, 2), {})
TWO_REPLICAS = ((2, 3), (1, 2), {})


def _name(value: Any) -> str:
    return topology_name(value) if isinstance(value, tuple) else "across" if value else ""


def _placements(in_short: int) -> Any:
    """The first so many places; the others in long runs."""
    places = [SHARED, IN_PROCESSES, AS_MANY, TWO_REPLICAS]
    later = [pytest.param(*place, marks=pytest.mark.long) for place in places[in_short:]]
    return pytest.mark.parametrize("topology,apart,config", places[:in_short] + later, ids=_name)


@_placements(2)
def test_features_and_a_head(oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any) -> None:
    oracle.check(topology, splits.train, name="head", optimizer="adam", apart=apart, **config)


@_placements(1)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long)
        for name in ("blocks", "decayed", "loss_outside", "resource_head", "small_table")
    ],
)
def test_models(oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any, name: str) -> None:
    oracle.check(topology, splits.train, name=name, optimizer="momentum", apart=apart, **config)


@pytest.mark.parametrize(
    "topology,apart,config,name",
    [
        ((1, 4), (1, 2), {}, "experts"),
        *[
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ((2, 3), (2, 2), ACROSS, "experts"),
                ((1, 6), (2, 2), {}, "experts"),
                ((1, 4), (1, 2), {}, "seven_experts"),
                ((2, 3), (2, 2), ACROSS, "seven_experts"),
                ((1, 6), (2, 2), {}, "seven_experts"),
                ((1, 3), (1, 2), {}, "scaled_by_a_loss"),
                ((2, 2), (2, 2), ACROSS, "scaled_by_a_loss"),
                ((1, 4), (2, 2), {}, "scaled_by_a_loss"),
            ]
        ],
    ],
    ids=str,
)
def test_what_a_replica_computes_of_all_its_rows(
    oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any, name: str
) -> None:
    """The capacity of experts, after which is replicated code on devices of its own again, and a product of means.

    Two replicas would compute something else, each of its own rows.
    """
    oracle.check(topology, splits.train, name=name, optimizer="momentum", apart=apart, **config)


@_placements(1)
def test_the_norm_is_that_of_all_variables(
    oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any
) -> None:
    answers = oracle.check(topology, splits.train, name="head", clip=0.1, apart=apart, **config)
    norms = oracle.plain(splits.train, name="head", clip=0.1).results["norm"]
    for answer in answers:
        np.testing.assert_allclose(answer.results["norm"], norms, rtol=1e-6)


@_placements(1)
def test_checkpoints_are_those_of_one_device(
    oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any
) -> None:
    continue_from_each_other(oracle, topology, splits.saved, dict(config, apart=apart))


@_placements(1)
def test_evaluation_gives_what_one_device_gives(
    oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any
) -> None:
    check_evaluation(oracle, topology, apart=apart, **config)


def test_ratios_and_micro_batches(oracle: Oracle) -> None:
    """Replicated code and split are stages: with micro batches they are a pipeline."""
    oracle.check(
        (1, 3),
        splits.train,
        name="head",
        optimizer="momentum",
        apart=(1, 2),
        ratios=[3, 1],
        pipeline__num_micro_batch=2,
    )
