"""What the planner decides trains as one device does: a search, and rows by the speed of devices."""

from typing import Any, Dict, Tuple

import pytest

from tests.parity.oracle import Oracle, compare
from tests.parity.scripts import planned, splits
from tests.parity.test_split_ratios import sizes_of_parts

MODEL = {"name": "layers", "rows": 16}
EXACT = 1e-12  # in float64
SEARCH = {"auto__planner": "search", "auto__machine": "2*v100-32", "auto__steps": 20}


@pytest.mark.parametrize("config", [{}, {"pipeline__num_stages": 2}], ids=["free", "in stages"])
def test_a_search(oracle: Oracle, config: Dict[str, Any]) -> None:
    answers = oracle.plan((1, 2), planned.fed, **MODEL, **SEARCH, **config)
    compare(oracle.plain(planned.fed, **MODEL), answers)


def test_rows_by_speed(oracle: Oracle) -> None:
    config = {"auto__balance": "speed", "auto__machine": "1*v100-32+1*p100-16,eth-25"}
    # So many that the speed of the devices decides the step; of few rows each device takes as many.
    answers = oracle.plan((2, 1), planned.fed, planned_rows=1 << 20, dtype="float64", **MODEL, **config)
    compare(oracle.plain(planned.fed, dtype="float64", **MODEL), answers, EXACT)


@pytest.mark.grid
@pytest.mark.parametrize(
    "topology, machine", [((1, 2), "2*v100-32"), ((2, 1), "2x1*v100-32,eth-25")], ids=["1x2", "2x1"]
)
@pytest.mark.parametrize("config", [{"auto__planner": "search", "auto__steps": 0}, {"auto__balance": "speed"}], ids=str)
def test_a_split_of_the_script_stays(
    oracle: Oracle, topology: Tuple[int, int], machine: str, config: Dict[str, Any]
) -> None:
    arguments = {"name": "head", "optimizer": "adam", "ratios": [3, 1], "auto__machine": machine, "auto__rows": 16}
    answers = oracle.check(topology, splits.train, **arguments, **config)
    for name in ("head/kernel", "head/kernel/Adam"):
        assert sizes_of_parts(answers, name, 1) == [752, 251]
