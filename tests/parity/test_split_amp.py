"""Mixed precision together with epl.split computes what one device computes that divides its products alike."""

from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.context import STEPS
from tests.parity.oracle import Oracle, compare
from tests.parity.pool import Answer
from tests.parity.scripts import split_amp

TOLERANCE = 2e-6  # of tests/parity/test_amp.py
LOCAL, WORKERS = (1, 2), (2, 1)


def long(*values: Any) -> Any:
    """Parameters of a test that the default run leaves out."""
    return pytest.param(*values, marks=pytest.mark.long)


def _check(oracle: Oracle, topology: Tuple[int, int], **arguments: Any) -> List[Answer]:
    expected = oracle.plan((1, 1), split_amp.train, parts=split_amp.RANKS, **arguments)[0]
    answers = oracle.plan(topology, split_amp.train, **arguments)
    compare(expected, answers, TOLERANCE)
    return answers


@pytest.mark.parametrize(
    "topology,name",
    [(LOCAL, "two_layers"), (WORKERS, "head"), long(WORKERS, "two_layers"), long(LOCAL, "head")],
)
def test_models(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    _check(oracle, topology, name=name)


@pytest.mark.parametrize("topology,dtype,loss_scale", [(WORKERS, "bfloat16", 1.0), long(LOCAL, "float16", 64.0)])
def test_a_fixed_scale(oracle: Oracle, topology: Tuple[int, int], dtype: str, loss_scale: float) -> None:
    _check(oracle, topology, name="two_layers", amp__dtype=dtype, amp__loss_scale=loss_scale)


@pytest.mark.parametrize("topology,ratios", [(LOCAL, [0, 1]), long(WORKERS, [1, 0])])
def test_one_rank_has_all(oracle: Oracle, topology: Tuple[int, int], ratios: List[int]) -> None:
    answers = _check(oracle, topology, name="head_alone", overflow_at=3, ratios=ratios)
    for answer in answers:
        assert answer.results["variables"][0]["global_step"] == STEPS - 1


@pytest.mark.parametrize("topology", [WORKERS, long(LOCAL)])
def test_accumulation_finds_an_overflow_in_the_sum(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = _check(oracle, topology, name="head_alone", overflow_at=3, pipeline__num_micro_batch=2)
    for answer in answers:
        variables = answer.results["variables"][0]
        assert (variables["global_step"], variables["good_steps"]) == (STEPS // 2 - 1, 1)
        assert variables["current_loss_scale"] == 2.0**14


@pytest.mark.parametrize("topology,clip", [(LOCAL, 0.1), (WORKERS, None)])
def test_a_part_that_overflows_on_one_rank_skips_the_step_on_all(
    oracle: Oracle, topology: Tuple[int, int], clip: float
) -> None:
    answers = _check(oracle, topology, name="head_alone", overflow_at=3, clip=clip)
    for answer in answers:
        variables = answer.results["variables"][0]
        assert (variables["global_step"], variables["good_steps"]) == (STEPS - 1, STEPS - 4)
        assert variables["current_loss_scale"] == 2.0**14
        assert all(np.all(np.isfinite(value)) for value in variables.values())


@pytest.mark.long
@pytest.mark.parametrize(
    "key,value",
    [("gradient_checkpoint__type", "auto"), ("optimizer__num_apply_group", 2), ("amp__debug_log", True)],
)
@pytest.mark.parametrize("topology", [LOCAL, WORKERS])
def test_with_other_settings(oracle: Oracle, topology: Tuple[int, int], key: str, value: Any) -> None:
    _check(oracle, topology, name="two_layers", clip=0.1, **{key: value})


@pytest.mark.long
def test_all_at_once(oracle: Oracle) -> None:
    _check(
        oracle, LOCAL, name="head", optimizer="momentum", overflow_at=3, gradient_checkpoint__type="auto",
        optimizer__num_apply_group=2, pipeline__num_micro_batch=2,
    )  # fmt: skip
