"""Mixed precision under every plan computes what it computes on one device that divides the rows in the same way."""

from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, compare, replica_differences
from tests.parity.pool import Answer
from tests.parity.scripts import amp

Topology = Tuple[int, int]

# Sums of float32 values that were rounded to float16: their order shows in the last bits.
TOLERANCE = 2e-6
ONE, LOCAL, WORKERS, FOUR, BOTH = (1, 1), (1, 2), (2, 1), (1, 4), (2, 2)
_OF_PLANS = ("stages", "replicas", "micro_batches")


def _check(oracle: Oracle, topology: Topology, parts: int, **arguments: Any) -> List[Answer]:
    """Compares a plan with one device that has `parts` towers."""
    plain = {key: value for key, value in arguments.items() if key not in _OF_PLANS and "__" not in key}
    plain.update((key, value) for key, value in arguments.items() if key == "amp__loss_scale")
    expected = oracle.plan(ONE, amp.train, parts=parts, **plain)[0]
    answers = oracle.plan(topology, amp.train, **arguments)
    compare(expected, answers, TOLERANCE)
    return answers


def test_float32_is_near(oracle: Oracle) -> None:
    expected = oracle.plain(amp.train, name="layers")
    seen = oracle.plan(ONE, amp.train, name="layers")[0]
    np.testing.assert_allclose(seen.results["loss"], expected.results["loss"], rtol=2e-3)
    assert not np.array_equal(seen.results["loss"], expected.results["loss"])
    for name, value in expected.results["variables"][0].items():
        np.testing.assert_allclose(seen.results["variables"][0][name], value, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    "topology,name,resource",
    [(LOCAL, "layers", False), (WORKERS, "layers", True), (LOCAL, "embedding", False), (WORKERS, "recurrent", False)],
)
def test_data_parallel(oracle: Oracle, topology: Topology, name: str, resource: bool) -> None:
    answers = _check(oracle, topology, 2, name=name, resource=resource)
    assert answers[0].results["variables"][0]["good_steps"] == amp.STEPS


@pytest.mark.parametrize("topology,clip", [(ONE, None), (LOCAL, "norm"), (WORKERS, None)])
def test_accumulation(oracle: Oracle, topology: Topology, clip: str) -> None:
    _check(
        oracle, topology, 2 * topology[0] * topology[1], name="layers", micro_batches=2, clip=clip, overflow_at=3,
        communication__clip_after_allreduce=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "topology,replicas,name,clip",
    [(LOCAL, 1, "layers", None), (FOUR, 2, "layers", "norm"), (BOTH, 1, "embedding", None)],
)
def test_pipelines(oracle: Oracle, topology: Topology, replicas: int, name: str, clip: str) -> None:
    _check(
        oracle, topology, 2 * replicas * topology[0], name=name, stages=2, replicas=replicas, micro_batches=2,
        clip=clip, overflow_at=-1 if name == "embedding" else 3, communication__clip_after_allreduce=True,
    )  # fmt: skip


@pytest.mark.parametrize("topology,clip", [(LOCAL, None), (WORKERS, "value"), (WORKERS, "norm")])
def test_a_step_that_overflows_on_one_replica_is_skipped_on_all(oracle: Oracle, topology: Topology, clip: str) -> None:
    answers = oracle.plan(topology, amp.train, name="layers", overflow_at=3, clip=clip)
    for answer in answers:
        variables = answer.results["variables"][0]
        assert variables["global_step"] == amp.STEPS - 1
        assert variables["current_loss_scale"] == 2.0**14
        assert variables["good_steps"] == 2
        assert all(np.all(np.isfinite(value)) for value in variables.values())
    assert replica_differences(answers) == []


@pytest.mark.parametrize(
    "topology,key,value",
    [
        (LOCAL, "gradient_checkpoint__type", "auto"),
        (WORKERS, "optimizer__num_apply_group", 3),
        (LOCAL, "communication__sparse_as_dense", True),
        (WORKERS, "amp__loss_scale", 64.0),
        (LOCAL, "amp__debug_log", True),
    ],
)
def test_with_other_settings(oracle: Oracle, topology: Topology, key: str, value: Any) -> None:
    _check(oracle, topology, 2, name="embedding", optimizer="adam", **{key: value})


def test_with_groups_and_recomputation_in_a_pipeline(oracle: Oracle) -> None:
    _check(
        oracle, LOCAL, 2, name="layers", stages=2, micro_batches=2, overflow_at=2, good_steps=1997.0,
        gradient_checkpoint__type="auto", optimizer__num_apply_group=2,
    )  # fmt: skip
