"""What the planner decides trains as one device does: a search, and rows by the speed of devices."""

from typing import Any, Dict

import pytest

from tests.parity.oracle import Oracle, compare
from tests.parity.scripts import planned

MODEL = {"name": "layers", "rows": 16}
SEARCH = {"auto__planner": "search", "auto__machine": "2*v100-32", "auto__steps": 20}


@pytest.mark.parametrize("config", [{}, {"pipeline__num_stages": 2}], ids=["free", "in stages"])
def test_a_search(oracle: Oracle, config: Dict[str, Any]) -> None:
    answers = oracle.plan((1, 2), planned.fed, **MODEL, **SEARCH, **config)
    compare(oracle.plain(planned.fed, **MODEL), answers)


def test_rows_by_speed(oracle: Oracle) -> None:
    config = {"auto__balance": "speed", "auto__machine": "1*v100-32+1*p100-16,eth-25"}
    compare(oracle.plain(planned.fed, **MODEL), oracle.plan((2, 1), planned.fed, **MODEL, **config))
