"""How long a search may look at what is not always looked at.

    begin    always there    pipelines    |    plans by blocks    what is left of the pipelines    |
                                         half                                                  auto.budget

With `auto.steps` no clock decides anything: all is looked at, so that the same plan is found. Where Ctrl-C
may end a search, the best so far is taken, and the script goes on.
"""

import contextlib
import time
from typing import Iterator, List, Optional

_SIMULATED = 0.97  # part of auto.budget for all of this: the choice, which follows, takes time, too


class SearchTime:
    """The time of one search.

    Attributes:
      budget: seconds; None: as long as it takes.
      may_stop: whether Ctrl-C ends the search alone, in place of the script.
      interrupted: whether Ctrl-C has ended it.
      left_out: what there was no time for, in words.
    """

    def __init__(self, budget: Optional[float], may_stop: bool = False) -> None:
        """Begins now.

        Args:
          budget: seconds from now on; None: as long as it takes.
          may_stop: whether Ctrl-C ends the search alone, in place of the script.
        """
        self.budget, self.may_stop = budget, may_stop
        self.interrupted = False
        self.left_out: List[str] = []
        self._begin = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._begin

    def left(self, part: float = 1.0) -> float:
        """The seconds that are left of a part of the budget."""
        if self.interrupted:
            return 0.0
        if self.budget is None:
            return float("inf")
        return max(0.0, part * _SIMULATED * self.budget - self.spent)

    @contextlib.contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """A part of the search that Ctrl-C ends, where it may."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.may_stop:
                raise
            self.interrupted = True

    def is_over(self, part: float = 1.0) -> bool:
        """Whether a part of the budget is used up."""
        return self.left(part) <= 0.0

    def in_words(self) -> str:
        """Why it is over; "" if it has no end."""
        if self.interrupted:
            return "Ctrl-C ended the search"
        return "" if self.budget is None else f"auto.budget, {self.budget:g} s, was used up"
