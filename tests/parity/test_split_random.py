"""Random ops in a split: every part has numbers of its own in each step, and gradients go where the values went."""

from itertools import combinations
from typing import List, Tuple

import numpy as np
import pytest

from tests.parity.context import GLOBAL_BATCH, STEPS
from tests.parity.oracle import Oracle, replica_differences, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import split_random
from tests.parity.scripts.split_random import COLUMNS, KEPT, NOISES, RATE

# Mean and standard deviation of what is drawn.
MOMENTS = {
    "dropout": (1.0, (1 / KEPT - 1) ** 0.5),
    "normal": (0.0, 1.0),
    "truncated": (0.0, 0.88),
    "uniform": (0.5, 12**-0.5),
    "integers": (0.5, 12**-0.5),
}


@pytest.mark.parametrize(
    "topology",
    [(1, 3), *(pytest.param(one, marks=pytest.mark.long) for one in [(1, 2), (2, 1), (3, 1), (1, 4), (2, 2)])],
    ids=topology_name,
)
def test_each_device_draws_the_columns_of_its_part(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = oracle.plan(topology, split_random.train, open_batch=True)
    _check_taken(answers, "s1")
    _check_steps(answers, topology[0] * topology[1])


@pytest.mark.parametrize("turn,part", enumerate(["b0", "s1"]))
@pytest.mark.parametrize(
    "topology",
    [(1, 2), *(pytest.param(one, marks=pytest.mark.long) for one in [(2, 1), (1, 4), (2, 2)])],
    ids=topology_name,
)
def test_each_device_draws_the_rows_of_its_own_batch(
    oracle: Oracle, topology: Tuple[int, int], turn: int, part: str
) -> None:
    answers = oracle.plan(topology, split_random.train, open_batch=False, turn=turn)
    _check_taken(answers, part)
    _check_steps(answers, topology[0] * topology[1])


def _check_taken(answers: List[Answer], part: str) -> None:
    for answer in answers:
        assert [how.split(">")[1] for _, how in answer.results["taken"]] == [part] * len(NOISES)


def _check_steps(answers: List[Answer], ranks: int) -> None:
    assert not replica_differences(answers)
    results = answers[0].results
    for name in NOISES:
        outputs, before, after = [
            np.stack([step[name] for step in results[what]]) for what in ("outputs", "before", "after")
        ]
        for answer in answers[1:]:
            np.testing.assert_array_equal(outputs, np.stack([step[name] for step in answer.results["outputs"]]))
        assert outputs.shape == (STEPS, GLOBAL_BATCH, COLUMNS)
        scales = outputs / before
        mean, deviation = MOMENTS[name]
        assert abs(scales.mean() - mean) < 0.05 * deviation, name
        assert abs(scales.std() / deviation - 1) < 0.05, name
        if name == "dropout":
            np.testing.assert_allclose(scales[scales != 0], 1 / KEPT, rtol=1e-5)
        assert _likeness(list(scales)) < 0.15, name
        for scale in scales:
            for axis in range(2):
                assert _likeness(np.array_split(scale, ranks, axis)) < 0.15, name
        # A gradient that took other numbers than the outputs would differ.
        np.testing.assert_allclose(after, before - RATE * scales.mean(1, keepdims=True), rtol=1e-6)


def _likeness(drawn: List[np.ndarray]) -> float:
    """The largest correlation of what was drawn twice, in the order in which it was drawn."""
    count = min(one.size for one in drawn)
    return max(
        abs(np.corrcoef(one.ravel()[:count], other.ravel()[:count])[0, 1]) for one, other in combinations(drawn, 2)
    )
