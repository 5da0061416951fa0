"""Slots are parts however an update rule writes them, and checkpoints of them are those of one device."""

import functools
from typing import Tuple

import numpy as np
import pytest

from tests.parity.checks import continue_from_each_other
from tests.parity.oracle import Oracle
from tests.parity.scripts import zero_slots
from tests.tensorflows import ONLY_1

EVEN, UNEVEN, FEW = 12, 11, 3

_long_on_1 = functools.partial(pytest.param, marks=[pytest.mark.long, ONLY_1])


def _long(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "topology,level,optimizer,rows,resource",
    [
        pytest.param((1, 2), "v1", "lazy_adam", UNEVEN, False, marks=ONLY_1),
        _long((1, 2), "v0", "dense", UNEVEN, False),
        _long_on_1((1, 2), "v0", "lazy_adam", EVEN, False),
        _long_on_1((2, 1), "v1", "lazy_adam", EVEN, False),
        _long_on_1((1, 2), "v2", "lazy_adam", UNEVEN, False),
        _long_on_1((1, 4), "v1", "lazy_adam", UNEVEN, True),
        _long((1, 2), "v1", "dense", EVEN, False),
        _long((2, 1), "v1", "dense", UNEVEN, False),
        _long((1, 2), "v2", "dense", EVEN, False),
        _long((1, 2), "v1", "dense", EVEN, True),
        _long((1, 2), "v1", "factored", UNEVEN, False),
        _long((2, 1), "v0", "factored", EVEN, False),
        _long((1, 2), "v2", "factored", UNEVEN, False),
        _long_on_1((1, 4), "v1", "lazy_adam", FEW, False),
        _long((1, 4), "v0", "dense", FEW, False),
        _long((2, 2), "v1", "dense", FEW, False),
        _long_on_1((4, 1), "v1", "lazy_adam", FEW, False),
        _long((1, 4), "v2", "factored", FEW, False),
        ((2, 1), "v0", "constant", UNEVEN, False),
        _long((4, 1), "v0", "constant", FEW, False),
    ],
    ids=str,
)
def test_slots(
    oracle: Oracle, topology: Tuple[int, int], level: str, optimizer: str, rows: int, resource: bool
) -> None:
    arguments = {"optimizer": optimizer, "rows": rows, "resource": resource}
    continue_from_each_other(oracle, topology, zero_slots.train, {"zero__level": level}, **arguments)
    reference = oracle.plain(zero_slots.train, **arguments)
    for answer in oracle.plan(topology, zero_slots.train, zero__level=level, **arguments):
        assert answer.results["names"] == reference.results["names"]
        for name, value in reference.results["fetched"][0].items():
            np.testing.assert_allclose(answer.results["fetched"][0][name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "optimizer,words", [("stray", "which is no part"), _long("constant", "differ in size between the devices")], ids=str
)
def test_what_has_no_meaning_for_parts_is_refused(oracle: Oracle, optimizer: str, words: str) -> None:
    answer = oracle.plan((1, 2), zero_slots.refused, optimizer=optimizer, rows=UNEVEN, zero__level="v1")[0]
    assert "PlanError" in answer.results["error"][0] and words in answer.results["error"][0]
