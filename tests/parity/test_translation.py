"""A whole model whose experts are dealt out trains as on one device, with no more collectives than are needed."""

from typing import Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import translation

FLOAT64 = 1e-12
# The samples fill all places of the sentences, so that the mean over the places that count is one over all rows.
MASKED_MEAN = "translation_model.py:65 divides by a sum over rows"


@pytest.mark.parametrize("topology,gate", [pytest.param((1, 2), "switch", marks=pytest.mark.long), ((2, 1), "top2")])
def test_experts_that_are_dealt_out(oracle: Oracle, topology: Tuple[int, int], gate: str) -> None:
    """Two all-to-alls forward and two backward in each mixture."""
    for answer in oracle.check(topology, translation.train, told=MASKED_MEAN, gate=gate):
        assert answer.results["moves"] == [4 * translation.MIXTURES]
        assert answer.results["sent"] == [["float32"]]


@pytest.mark.long
@pytest.mark.parametrize("topology", [(1, 2), (1, 4), (4, 1), (2, 2)], ids=topology_name)
def test_more_devices(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, translation.train, told=MASKED_MEAN, gate="top2", optimizer="momentum")


@pytest.mark.long
@pytest.mark.parametrize("topology,gate", [((1, 2), "switch"), ((2, 2), "top2"), ((1, 4), "top2"), ((4, 1), "switch")])
def test_adam(oracle: Oracle, topology: Tuple[int, int], gate: str) -> None:
    """In float64: it makes steps as long of gradients that are nothing but what was rounded."""
    oracle.check(
        topology, translation.train, told=MASKED_MEAN, tolerance=FLOAT64, gate=gate, optimizer="adam", dtype="float64"
    )


@pytest.mark.parametrize("topology", [(1, 2), pytest.param((2, 1), marks=pytest.mark.long)], ids=topology_name)
def test_float16_between_experts(oracle: Oracle, topology: Tuple[int, int]) -> None:
    expected = oracle.plain(translation.train, gate="top2").results["loss"]
    answers = oracle.plan(topology, translation.train, gate="top2", communication__fp16=True)
    losses = np.mean([answer.results["loss"] for answer in answers], axis=0)
    np.testing.assert_allclose(losses, expected, rtol=2**-10)
    assert not np.array_equal(losses, expected)
    assert all(answer.results["sent"] == [["float16"]] for answer in answers)
