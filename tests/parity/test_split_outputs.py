"""Merged values of a split are those of one device, also where its ranks lie in several processes."""

from typing import Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import split_outputs

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "topology,groups,scope",
    [((2, 1), 1, "GLOBAL"), ((2, 2), 2, "GLOBAL"), ((2, 2), 1, "GLOBAL"), ((2, 1), 1, "LOCAL")],
    ids=lambda value: topology_name(value) if isinstance(value, tuple) else str(value),
)
def test_merged_values(oracle: Oracle, topology: Tuple[int, int], groups: int, scope: str) -> None:
    plain = oracle.plain(split_outputs.trained)
    answers = oracle.check(topology, split_outputs.trained, plain, groups=groups, scope=scope)
    together = topology[0] // groups  # processes of a group: a sum is over the rows that all of them are fed
    for answer in answers:
        np.testing.assert_allclose(answer.results["alone"], together * np.array(plain.results["alone"]), rtol=1e-5)
        for found, expected in zip(answer.results["merged"], plain.results["merged"]):
            for value, one in list(zip(found, expected))[:3]:
                np.testing.assert_allclose(value, one, rtol=1e-5, atol=1e-5)
    best = [[step[3] for step in answer.results["merged"]] for answer in answers]
    merged = best[0] if scope == "GLOBAL" else np.concatenate(best, axis=1)  # a group is in both processes
    expected = [step[3] for step in plain.results["merged"]]
    np.testing.assert_allclose(np.sort(merged, axis=1), np.sort(expected, axis=1), rtol=1e-5, atol=1e-5)
