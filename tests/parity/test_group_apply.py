"""Updates that run in groups give the same bits as updates that run when they are ready."""

from typing import Any, List, Optional, Tuple

import numpy as np
import pytest

from tests.parity.context import Context
from tests.parity.oracle import TOLERANCE, Oracle, compare, replica_differences, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import accumulation, optimizers, pipelines

GROUPS = 3
topologies = pytest.mark.parametrize("topology", [(1, 1), (1, 2), (2, 1)], ids=topology_name)


def _check(oracle: Oracle, topology: Tuple[int, int], script: Any, **keywords: Any) -> List[Answer]:
    """Runs a script with groups and without, and compares all that it recorded to the last bit."""
    expected = oracle.plan(topology, script, **keywords)
    answers = oracle.plan(topology, script, optimizer__num_apply_group=GROUPS, **keywords)
    for mine, other in zip(answers, expected):
        np.testing.assert_array_equal(mine.results["loss"], other.results["loss"])
        for name, value in other.results["variables"][0].items():
            np.testing.assert_array_equal(mine.results["variables"][0][name], value, name)
    assert replica_differences(answers) == []
    return answers


@pytest.mark.grid
@topologies
@pytest.mark.parametrize(
    "name,optimizer",
    [
        ("resource_embedding", "adam"),
        ("resource_embedding", "momentum"),
        ("resource_embedding", "adagrad"),
        ("layers", "decayed_adam"),
    ],
)
def test_dense_and_sparse_updates(oracle: Oracle, topology: Tuple[int, int], name: str, optimizer: str) -> None:
    answers = _check(oracle, topology, accumulation.train, name=name, steps=1, optimizer=optimizer)
    if "adam" not in optimizer:  # which makes much of rounding
        reference = oracle.plain(accumulation.train, name=name, steps=1, optimizer=optimizer)
        compare(reference, answers, tolerance=5 * TOLERANCE)


@pytest.mark.grid
@pytest.mark.parametrize("topology", [(1, 1), (1, 2)], ids=topology_name)
@pytest.mark.parametrize("change", [None, "clipped"])
def test_with_accumulation(oracle: Oracle, topology: Tuple[int, int], change: str) -> None:
    _check(oracle, topology, accumulation.train, name="layers", steps=3, optimizer="decayed_adam", change=change)


@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)
def test_clipped_after_the_all_reduce(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check(
        oracle,
        topology,
        accumulation.train,
        name="layers",
        steps=1,
        optimizer="decayed_adam",
        change="clipped",
        communication__clip_after_allreduce=True,
    )


@pytest.mark.parametrize("workers,replicas,clip", [(1, 1, None), (1, 2, 0.1), (2, 1, None)])
def test_in_a_pipeline(oracle: Oracle, workers: int, replicas: int, clip: Optional[float]) -> None:
    topology = {1: (1, 4), 2: (2, 2)}[workers]
    _check(
        oracle,
        topology,
        pipelines.train,
        name="mlp",
        stages=2,
        micro_batches=4,
        replicas=replicas,
        clip=clip,
        resource=True,
    )


def grouped(ctx: Context, name: str) -> None:
    """A script of `optimizers` that has no place for configuration keys."""
    init = ctx.init
    ctx.init = lambda **config: init(optimizer__num_apply_group=GROUPS, **config)  # type: ignore[assignment]
    getattr(optimizers, name)(ctx)


@pytest.mark.parametrize("name", ["two_optimizers", "alternating", "user_written_clipped", "averaged_and_decayed"])
def test_what_users_do(oracle: Oracle, name: str) -> None:
    reference = oracle.plain(getattr(optimizers, name))
    oracle.check((1, 2), grouped, reference, tolerance=5 * TOLERANCE, name=name)
