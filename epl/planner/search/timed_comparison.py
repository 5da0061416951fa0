"""Simulates candidates: those that are always there, then others as long as there is time, the most promising first.

    always    the script as it is; all plans with one block; of the plans with each other number of blocks the most
              promising, and of those whose rows a search has left to the speed of devices
    then      the others, in the order of their estimated steps, those last that seem to lack memory

What is found has the order of the candidates, so that a choice between equals does not depend on the clock.
"""

from typing import Callable, Dict, List, Sequence, Tuple

from epl.parallel.plan.strategy import Strategy
from epl.planner.search import comparison
from epl.planner.search.candidates import PlanCandidate
from epl.planner.search.comparison import Compared, PlanOutcome
from epl.planner.search.search_time import SearchTime
from epl.planner.search.speed_balance import is_open
from epl.utils.errors import EplError


class TimedComparison:
    """Candidates, and what became of them so far."""

    def __init__(
        self,
        candidates: Sequence[PlanCandidate],
        simulate: Callable[[Strategy], PlanOutcome],
        refuse: Callable[[Strategy], None],
        estimate: Callable[[Strategy], Tuple[bool, float]],
        with_rows: Callable[[Strategy], Strategy] = lambda strategy: strategy,
    ) -> None:
        """Takes candidates, the simplest first; refuses some.

        Args:
          candidates: the first is the script as it is.
          simulate: what the simulator says of a strategy; an EplError: it cannot be simulated.
          refuse: raises the EplError of a strategy that is not to be simulated; it takes next to no time.
          estimate: whether a strategy seems to lack memory, and about how many seconds its step takes.
          with_rows: decides the rows of replicas of a strategy that leaves them to the speed of devices.
        """
        self._candidates, self._simulate, self._with_rows = candidates, simulate, with_rows
        self._found: Dict[int, Compared] = {}
        self._longest = 0.0  # seconds of one of the others
        promise: List[Tuple[bool, float, int]] = []
        for number, one in enumerate(candidates):
            try:
                refuse(one.strategy)
                promise.append((*estimate(one.strategy), number))
            except EplError:
                self._compare(number)
        self._waiting = [number for _, _, number in sorted(promise)]

    def simulate_always(self, search_time: SearchTime) -> None:
        """Simulates what is always there, the script as it is first.

        Args:
          search_time: of the search. Its budget counts for the others alone, and Ctrl-C once a plan is known.
        """
        for number in self._always():
            if all(one.outcome is None for one in self._found.values()):
                self._compare(number)
            elif not search_time.interrupted:
                with search_time.until_interrupted():
                    self._compare(number)

    def simulate_others(self, search_time: SearchTime, part: float = 1.0) -> None:
        """Simulates others until a part of the time is over.

        Args:
          search_time: of the search.
          part: of its budget.
        """
        for number in self._waiting:
            if search_time.left(part) <= self._longest:  # another one may end too late
                return
            if number not in self._found:
                begin = search_time.spent
                with search_time.until_interrupted():
                    self._compare(number)
                self._longest = max(self._longest, search_time.spent - begin)

    @property
    def left(self) -> int:
        """How many candidates are not simulated yet."""
        return len(self._candidates) - len(self._found)

    def compared(self, reason: str) -> List[Compared]:
        """All candidates in their order, equal ones once; those not simulated have `reason` as a refusal."""
        found: Dict[Strategy, Compared] = {}
        for number, one in enumerate(self._candidates):
            compared = self._found.get(number) or Compared(one, None, f"not simulated: {reason}")
            found.setdefault(compared.candidate.strategy, compared)
        return list(found.values())

    def _always(self) -> List[int]:
        seen, found = set(), []
        for number in self._waiting:
            strategy = self._candidates[number].strategy
            is_opened = is_open(strategy) and not is_open(self._candidates[0].strategy)
            kind = len(strategy.blocks), is_opened
            if number == 0 or kind == (1, False) or kind not in seen:
                found.append(number)
            seen.add(kind)
        return sorted(found, key=lambda number: number != 0)

    def _compare(self, number: int) -> None:
        one = self._candidates[number]
        try:
            one = one._replace(strategy=self._with_rows(one.strategy))
        except EplError as error:
            self._found[number] = Compared(one, None, str(error))
        else:
            self._found[number] = comparison.compare([one], self._simulate)[0]
