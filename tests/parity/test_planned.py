"""What the planner decides trains as one device does: a search, and rows by the speed of devices."""

from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from epl.parallel.plan import strategy as strategies
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


R, S, F, D1, D3, TWO = "rows", "split", "first", "device 1", "device 3", "split over 2"


@pytest.mark.parametrize(
    "topology, machine, ways, zero",
    [
        ((2, 1), "2x1*v100-32,eth-25", (R, D1, F, F, R), ""),
        pytest.param((2, 1), "2x1*v100-32,eth-25", (F, F, D1, D1, D1), "v1", marks=pytest.mark.long),
        ((2, 2), "2x2*v100-32,eth-25", (R, TWO, D3, TWO, S), ""),
        pytest.param((2, 2), "2x2*v100-32,eth-25", (D3, D3, F, D1, TWO), "v1", marks=pytest.mark.long),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_blocks_on_some_devices(
    oracle: Oracle, tmp_path: Path, topology: Tuple[int, int], machine: str, ways: Tuple[str, ...], zero: str
) -> None:
    """In two processes; then once more by the plan that was saved."""
    config = {"auto__planner": "search", "auto__machine": machine, "auto__steps": 0}
    answers = oracle.check(topology, planned.by_ways, ways=ways, zero=zero, **config)
    saved = answers[0].results["strategy"][0]
    ratios = [block.ratios for block in strategies.from_json(saved).blocks]
    assert any(0 in one for one in ratios)
    (tmp_path / "plan.json").write_text(saved)
    again = oracle.check(topology, planned.by_ways, plan_file=str(tmp_path / "plan.json"))
    assert [block.ratios for block in strategies.from_json(again[0].results["strategy"][0]).blocks] == ratios
    assert again[0].results["loss"] == answers[0].results["loss"]


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
