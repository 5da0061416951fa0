"""Rows of replicas in proportion to the speed of their devices: `auto.balance` "speed".

even rows, few and many --simulated--> seconds and bytes of each replica by its rows
rows_by_speed                          rows of each replica, which the strategy keeps as proportions
"""

from typing import Dict, List, Sequence, Tuple

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.row_shares import reduced
from epl.parallel.plan.strategy import Strategy
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import decided, lay_out
from epl.planner.prediction.prediction import PredictedDevices, predict
from epl.planner.search.rows_by_speed import RowLoad, most_rows, share_rows
from epl.planner.simulator.model_costs import ModelCosts

KEY = "auto.balance"
SPEED = "speed"


def is_open(strategy: Strategy) -> bool:
    """Whether a strategy leaves the rows of replicas to the speed of their devices."""
    return bool(decided(strategy)[KEY] == SPEED)


def with_balance(strategy: Strategy, balance: str) -> Strategy:
    """The strategy with another value of `auto.balance`."""
    return strategies.with_values(strategy, {KEY: balance}, strategies.PLANNER)


def balanced(strategy: Strategy, costs: ModelCosts, machine: Machine, rows: int) -> Strategy:
    """The strategy with rows by speed, if it leaves them open; else itself.

    Args:
      strategy: the strategy.
      costs: of its model.
      machine: of the job; the memory of its devices is kept.
      rows: of the global batch.

    Raises:
      PlanError: there are too few rows, or too little memory.
      NotAvailableError: the strategy cannot be simulated.
    """
    if not is_open(strategy):
        return strategy
    even = with_balance(strategy, "even")
    granule = int(decided(strategy)["pipeline.num_micro_batch"])
    ranks = lay_out(even, machine, granule * strategy.workers * strategy.devices).ranks
    few, many = granule, granule * max(2, -(-2 * rows // (ranks * granule)))
    simulated = [predict(even, costs, machine, count * ranks).devices for count in (few, many)]
    loads = [_load(rank, simulated, (few, many), rows) for rank in range(ranks)]

    shares = reduced(share_rows(rows, loads, granule))
    return with_balance(strategy, ":".join(map(str, shares)) if shares else "even")


def _load(rank: int, simulated: Sequence[Sequence[PredictedDevices]], counts: Tuple[int, int], rows: int) -> RowLoad:
    """What rows cost on the devices of a rank: the slowest stage sets the seconds, the fullest one the memory.

    Args:
      rank: the rank.
      simulated: the classes of devices, with each of `counts` rows.
      counts: of each rank: few, many.
      rows: of the global batch.
    """
    few, many = counts
    by_stage: Dict[int, List[PredictedDevices]] = {}
    for devices in simulated:
        for one in devices:
            if rank in one.ranks:
                by_stage.setdefault(one.stage, []).append(one)
    loads = []
    for first, second in by_stage.values():
        loads.append(
            RowLoad(
                _line(few, first.busy, many, second.busy),
                _line(few, float(first.memory.peak), many, float(second.memory.peak)),
                first.memory.limit,
                first.name,
            )
        )
    slowest = max(loads, key=lambda load: load.seconds[0] + load.seconds[1] * many)
    fullest = min(loads, key=lambda load: most_rows(load, rows))
    return RowLoad(slowest.seconds, fullest.memory, fullest.limit, fullest.name)


def _line(few: int, at_few: float, many: int, at_many: float) -> Tuple[float, float]:
    """(value without rows, value of each row) of the line through two points."""
    slope = max(0.0, (at_many - at_few) / (many - few))
    return max(0.0, at_few - slope * few), slope
