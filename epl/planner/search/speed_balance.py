"""Rows of replicas in proportion to the speed of their devices: `auto.balance` "speed".

even rows, few and many --simulated--> seconds of each replica by its rows, as a line
rows_by_speed                          rows of each replica
they fit? --simulated-- no ----------> bisection of the rows for which each replica has memory; rows_by_speed again
between them and even rows ----------> bisection of the seconds of a step, simulated
even rows as fast? ------------------> proportions, which the strategy keeps, or "even"

Bytes are not linear in the rows: the peak of many rows is at another op than that of few. So they are simulated.
"""

import json
import math
from typing import Dict, List, Optional, Sequence, Tuple

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.row_shares import reduced, share_out
from epl.parallel.plan.strategy import Strategy
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import decided, lay_out
from epl.planner.prediction.prediction import KnownParts, PredictedDevices, Prediction, predict
from epl.planner.search.candidates import WORTH
from epl.planner.search.rows_by_speed import RowLoad, share_rows
from epl.planner.simulator.model_costs import ModelCosts
from epl.utils.errors import EplError, PlanError

KEY = "auto.balance"
SPEED = "speed"
_ROUNDS = 5  # of bisection, of two steps each
_FINE = 1 << 20  # to which a row is divided, in proportions
_PARTS = 256  # of the rows of a batch: how finely the rows that fit are found


def is_open(strategy: Strategy) -> bool:
    """Whether a strategy leaves the rows of replicas to the speed of their devices."""
    return any(setting.key == KEY and json.loads(setting.value) == SPEED for setting in strategy.settings)


def with_balance(strategy: Strategy, balance: str) -> Strategy:
    """The strategy with another value of `auto.balance`."""
    return strategies.with_values(strategy, {KEY: balance}, strategies.PLANNER)


def balanced(
    strategy: Strategy, costs: ModelCosts, machine: Machine, rows: int, known: Optional[KnownParts] = None
) -> Strategy:
    """The strategy with rows by speed, if it leaves them open; else itself. They are even where that is as fast.

    Args:
      strategy: the strategy.
      costs: of its model.
      machine: of the job; the memory of its devices is kept.
      rows: of the global batch.
      known: what earlier predictions of this model on this machine have found.

    Raises:
      PlanError: there are too few rows, or too little memory.
      NotAvailableError: the strategy cannot be simulated.
    """
    if not is_open(strategy):
        return strategy
    shared = _SharedRows(strategy, costs, machine, rows, known)
    given = shared.by_speed()
    if not shared.fits(given):
        try:
            given = shared.by_speed(shared.most_rows())
        except PlanError:
            if not shared.fits(()):
                raise
            given = ()
    given = shared.best_between(given) if given else ()
    return shared.strategy(() if shared.is_even_as_good(given) else reduced(given))


class _SharedRows:
    """Rows of the replicas of one strategy, simulated."""

    def __init__(
        self, strategy: Strategy, costs: ModelCosts, machine: Machine, rows: int, known: Optional[KnownParts]
    ) -> None:
        self._open, self._costs, self._machine, self._rows = strategy, costs, machine, rows
        self._known = known or KnownParts(costs, machine, strategy)
        self.granule = int(decided(strategy)["pipeline.num_micro_batch"])
        even = self.strategy(())
        self._ranks = lay_out(even, machine, self.granule * strategy.workers * strategy.devices).ranks
        self._found: Dict[Tuple[int, ...], Optional[Prediction]] = {}

    def strategy(self, shares: Sequence[int]) -> Strategy:
        """The strategy with rows in a proportion; (): as many for each replica."""
        return with_balance(self._open, ":".join(map(str, shares)) if shares else "even")

    def by_speed(self, most: Sequence[int] = ()) -> Tuple[int, ...]:
        """Rows of each rank by its speed, as if seconds were linear in the rows.

        Args:
          most: rows of each rank for which it has memory; () if memory does not count.

        Raises:
          PlanError: a device has no memory for the fewest rows, or all together have none for the rows of a batch.
        """
        few, many = self.granule, self.granule * max(2, -(-2 * self._rows // (self._ranks * self.granule)))
        simulated = [self._predicted((), count * self._ranks).devices for count in (few, many)]
        loads = [_load(rank, simulated, (few, many)) for rank in range(self._ranks)]
        share_rows(few * self._ranks, loads, few)  # refuses devices without memory
        limits: Sequence[Optional[float]] = [float(own) for own in most] or [None] * self._ranks
        loads = [one._replace(memory=(0.0, 1.0), limit=limit) for one, limit in zip(loads, limits)]
        return share_rows(self._rows, loads, self.granule)

    def best_between(self, given: Sequence[int]) -> Tuple[int, ...]:
        """The best rows between some and even ones, by bisection around the best of those that are simulated.

        Seconds are not linear in the rows, and communication that is not hidden counts, too.
        """
        units = self._rows // self.granule
        even = share_out(units, [1] * self._ranks)
        parts: List[float] = [0.0, 1.0]  # from even to given ones

        def rows_at(part: float) -> Tuple[int, ...]:
            wanted = [one + part * (own / self.granule - one) for one, own in zip(even, given)]
            return tuple(self.granule * own for own in share_out(units, [round(_FINE * one) for one in wanted]))

        def badness(part: float) -> Tuple[bool, float]:
            found = self._simulated(rows_at(part))
            return (True, math.inf) if found is None else (not found.fits, found.seconds)

        for _ in range(_ROUNDS):
            best = min(parts, key=badness)
            at = parts.index(best)
            near = parts[max(0, at - 1) : at + 2]
            parts = sorted({*parts, *((one + other) / 2 for one, other in zip(near, near[1:]))})
        return rows_at(min(parts, key=badness))

    def fits(self, given: Sequence[int]) -> bool:
        """Whether all devices have memory for the rows of each rank; (): for as many."""
        found = self._simulated(given)
        return found is not None and found.fits

    def is_even_as_good(self, given: Sequence[int]) -> bool:
        """Whether as many rows for each replica fit, and are not slower by more than a choice is worth."""
        even, found = self._simulated(()), self._simulated(given)
        if even is None or not even.fits:
            return False
        return found is None or not found.fits or even.seconds <= (1 + WORTH) * found.seconds

    def most_rows(self) -> List[int]:
        """The rows for which each rank has memory, found by bisection of all ranks at the same time."""
        unit = max(1, self._rows // _PARTS // self.granule) * self.granule
        fitting = [self.granule] * self._ranks
        lacking = [self._rows // unit * unit + unit] * self._ranks
        while any(high - low > unit for low, high in zip(fitting, lacking)):
            tried = [
                (low + high) // 2 // self.granule * self.granule if high - low > unit else low
                for low, high in zip(fitting, lacking)
            ]
            found = self._predicted(tried, sum(tried))
            lacks = {rank for one in found.devices if one.memory.lacks for rank in one.ranks}
            for rank, count in enumerate(tried):
                (lacking if rank in lacks else fitting)[rank] = count
        return fitting

    def _simulated(self, given: Sequence[int]) -> Optional[Prediction]:
        """The step with these rows of each rank, (): as many; None if that is refused."""
        key = tuple(given)
        if key not in self._found:
            try:
                self._found[key] = self._predicted(given, self._rows)
            except EplError:
                self._found[key] = None
        return self._found[key]

    def _predicted(self, given: Sequence[int], rows: int) -> Prediction:
        return predict(self.strategy(reduced(given)), self._costs, self._machine, rows, known=self._known)


def _load(rank: int, simulated: Sequence[Sequence[PredictedDevices]], counts: Tuple[int, int]) -> RowLoad:
    """What rows cost on the devices of a rank: the slowest stage sets the seconds, the fullest one the memory.

    Args:
      rank: the rank.
      simulated: the classes of devices, with each of `counts` rows.
      counts: of each rank: few, many.
    """
    few, many = counts
    by_stage: Dict[int, List[PredictedDevices]] = {}
    for devices in simulated:
        for one in devices:
            if rank in one.ranks:
                by_stage.setdefault(one.stage, []).append(one)
    loads = []
    for first, second in by_stage.values():
        seconds = _line(few, first.busy, many, second.busy)
        memory = _line(few, float(first.memory.peak), many, float(second.memory.peak))
        loads.append(RowLoad(seconds, memory, first.memory.limit, first.name))
    slowest = max(loads, key=lambda load: load.seconds[0] + load.seconds[1] * many)
    fullest = max(loads, key=lambda load: load.memory[0] + few * load.memory[1] - (load.limit or math.inf))
    return RowLoad(slowest.seconds, fullest.memory, fullest.limit, fullest.name)


def _line(few: int, at_few: float, many: int, at_many: float) -> Tuple[float, float]:
    """(value without rows, value of each row) of the line through two points."""
    slope = max(0.0, (at_many - at_few) / (many - few))
    return max(0.0, at_few - slope * few), slope
