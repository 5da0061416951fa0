"""Mixed precision together with epl.split computes what one device computes that divides its products alike."""

from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.context import STEPS
from tests.parity.oracle import Oracle, compare, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import split_amp

TOLERANCE = 2e-6  # of tests/parity/test_amp.py
some_topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)


def _check(oracle: Oracle, topology: Tuple[int, int], **arguments: Any) -> List[Answer]:
    expected = oracle.plan((1, 1), split_amp.train, parts=split_amp.RANKS, **arguments)[0]
    answers = oracle.plan(topology, split_amp.train, **arguments)
    compare(expected, answers, TOLERANCE)
    return answers


@some_topologies
@pytest.mark.parametrize("name", ["head", "two_layers"])
def test_models(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    _check(oracle, topology, name=name)


@pytest.mark.parametrize("topology,dtype,loss_scale", [((1, 2), "float16", 64.0), ((2, 1), "bfloat16", 1.0)])
def test_a_fixed_scale(oracle: Oracle, topology: Tuple[int, int], dtype: str, loss_scale: float) -> None:
    _check(oracle, topology, name="two_layers", amp__dtype=dtype, amp__loss_scale=loss_scale)


@some_topologies
def test_accumulation_finds_an_overflow_in_the_sum(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = _check(oracle, topology, name="head_alone", overflow_at=3, pipeline__num_micro_batch=2)
    for answer in answers:
        variables = answer.results["variables"][0]
        assert (variables["global_step"], variables["good_steps"]) == (STEPS // 2 - 1, 1)
        assert variables["current_loss_scale"] == 2.0**14


@pytest.mark.parametrize("topology,clip", [((1, 2), 0.1), ((2, 1), None)])
def test_a_part_that_overflows_on_one_rank_skips_the_step_on_all(
    oracle: Oracle, topology: Tuple[int, int], clip: float
) -> None:
    answers = _check(oracle, topology, name="head_alone", overflow_at=3, clip=clip)
    for answer in answers:
        variables = answer.results["variables"][0]
        assert (variables["global_step"], variables["good_steps"]) == (STEPS - 1, STEPS - 4)
        assert variables["current_loss_scale"] == 2.0**14
        assert all(np.all(np.isfinite(value)) for value in variables.values())
