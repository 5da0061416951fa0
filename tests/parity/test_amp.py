"""Mixed precision under every plan computes what it computes on one device that divides the rows in the same way."""

from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, compare, replica_differences, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import amp

# Sums of float32 values that were rounded to float16: their order shows in the last bits.
TOLERANCE = 2e-6
some = pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)


def _check(
    oracle: Oracle, topology: Tuple[int, int], parts: int, reference: Any = None, **arguments: Any
) -> List[Answer]:
    """Compares a plan with one device that has `parts` towers."""
    plain = {
        name: value
        for name, value in arguments.items()
        if name not in ("stages", "replicas", "micro_batches") and "__" not in name
    }
    expected = oracle.plan((1, 1), amp.train, parts=parts, **dict(plain, **(reference or {})))[0]
    answers = oracle.plan(topology, amp.train, **arguments)
    compare(expected, answers, TOLERANCE)
    return answers


@some
@pytest.mark.parametrize(
    "name,resource", [("layers", False), ("layers", True), ("embedding", False), ("recurrent", False)]
)
def test_data_parallel(oracle: Oracle, topology: Tuple[int, int], name: str, resource: bool) -> None:
    answers = _check(oracle, topology, 2, name=name, resource=resource)
    assert answers[0].results["variables"][0]["good_steps"] == amp.STEPS


@pytest.mark.parametrize("topology,runs", [((1, 1), 2), ((1, 2), 2), ((2, 1), 2)], ids=str)
@pytest.mark.parametrize("clip", [None, "norm"])
def test_accumulation(oracle: Oracle, topology: Tuple[int, int], runs: int, clip: str) -> None:
    parts = topology[0] * topology[1] * runs
    _check(
        oracle,
        topology,
        parts,
        name="layers",
        micro_batches=runs,
        clip=clip,
        overflow_at=3,
        communication__clip_after_allreduce=True,
    )


@pytest.mark.parametrize("topology,replicas", [((1, 2), 1), ((1, 4), 2), ((2, 2), 1)], ids=str)
@pytest.mark.parametrize("name,clip", [("layers", None), ("layers", "norm"), ("embedding", None)])
def test_pipelines(oracle: Oracle, topology: Tuple[int, int], replicas: int, name: str, clip: str) -> None:
    _check(
        oracle,
        topology,
        2 * replicas * topology[0],
        name=name,
        stages=2,
        replicas=replicas,
        micro_batches=2,
        clip=clip,
        overflow_at=-1 if name == "embedding" else 3,
        communication__clip_after_allreduce=True,
    )


@some
@pytest.mark.parametrize("clip", [None, "value", "norm"])
def test_a_step_that_overflows_on_one_replica_is_skipped_on_all(
    oracle: Oracle, topology: Tuple[int, int], clip: str
) -> None:
    answers = oracle.plan(topology, amp.train, name="layers", overflow_at=3, clip=clip)
    for answer in answers:
        variables = answer.results["variables"][0]
        assert variables["global_step"] == amp.STEPS - 1
        assert variables["current_loss_scale"] == 2.0**14
        assert variables["good_steps"] == 2
        assert all(np.all(np.isfinite(value)) for value in variables.values())
    assert replica_differences(answers) == []


@some
@pytest.mark.parametrize(
    "key,value",
    [
        ("gradient_checkpoint__type", "auto"),
        ("optimizer__num_apply_group", 3),
        ("communication__sparse_as_dense", True),
        ("amp__loss_scale", 64.0),
        ("communication__clip_after_allreduce", True),
        ("amp__debug_log", True),
    ],
)
def test_keys(oracle: Oracle, topology: Tuple[int, int], key: str, value: Any) -> None:
    fixed = {key: value} if "loss_scale" in key else {}
    _check(oracle, topology, 2, name="embedding", optimizer="adam", reference=fixed, **{key: value})
