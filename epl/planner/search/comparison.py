"""Simulates candidates and takes the fastest that fits: never a slower one than the best of them.

candidates --simulate--> seconds, memory, or why it cannot be    the fastest that fits; of those within 1%, the simplest
"""

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.plan.strategy import Strategy
from epl.planner.machine import quantities
from epl.planner.search.candidates import PlanCandidate
from epl.utils.errors import EplError, PlanError

_SHOWN = 12
WORTH = 0.01  # a plan is taken in place of a simpler one if it is faster by more than this part


class PlanOutcome(NamedTuple):
    """What the simulator says of a strategy, as far as a choice needs it.

    Attributes:
      seconds: of a step.
      lacks: of each kind of device without enough memory: (its name, bytes that it lacks at the peak).
    """

    seconds: float
    lacks: Tuple[Tuple[str, float], ...]


class Compared(NamedTuple):
    """A candidate and what became of it.

    Attributes:
      candidate: the candidate.
      outcome: None if it cannot be simulated.
      refusal: why not; else "".
    """

    candidate: PlanCandidate
    outcome: Optional[PlanOutcome]
    refusal: str

    @property
    def fits(self) -> bool:
        """Whether it has been simulated and all devices have memory for it."""
        return self.outcome is not None and not self.outcome.lacks


def compare(candidates: Sequence[PlanCandidate], simulate: Callable[[Strategy], PlanOutcome]) -> List[Compared]:
    """All candidates with their outcomes, in their order; a refusal of one does not end the comparison."""
    compared = []
    for candidate in candidates:
        try:
            compared.append(Compared(candidate, simulate(candidate.strategy), ""))
        except EplError as error:
            compared.append(Compared(candidate, None, str(error)))
    return compared


def best(compared: Sequence[Compared]) -> Compared:
    """The fastest candidate that fits; the first of those that are slower by 1% at most.

    Raises:
      PlanError: none fits; the message says what the one that lacks least lacks.
    """
    fitting = [(one, one.outcome.seconds) for one in compared if one.outcome is not None and one.fits]
    if not fitting:
        raise PlanError(_nothing_fits(compared))
    limit = min(seconds for _, seconds in fitting) * (1 + WORTH)
    return next(one for one, seconds in fitting if seconds <= limit)


def in_order(compared: Sequence[Compared]) -> List[Compared]:
    """Those that fit by time, then those that do not, then refusals."""
    return sorted(
        compared, key=lambda one: (one.outcome is None, not one.fits, one.outcome.seconds if one.outcome else 0.0)
    )


def lacking_bytes(one: Compared) -> float:
    """The most bytes that a device lacks for a candidate; 0 if it fits or cannot be simulated."""
    return max((size for _, size in one.outcome.lacks), default=0.0) if one.outcome else 0.0


def describe(compared: Sequence[Compared], chosen: Optional[Compared]) -> List[str]:
    """The first candidates in lines for a person, the chosen one with a star."""
    lines = []
    ordered = in_order(compared)
    for one in ordered[:_SHOWN]:
        mark = "*" if one is chosen else " "
        if one.outcome is None:
            lines.append(f"{mark} {one.candidate.name}: {one.refusal}")
        else:
            seconds = quantities.show(one.outcome.seconds, quantities.SECONDS)
            lines.append(f"{mark} {one.candidate.name}: {seconds}{_lacking(one.outcome)}")
    if len(ordered) > _SHOWN:
        rest = ordered[_SHOWN:]
        fitting = sum(one.fits for one in rest)
        refused = sum(one.outcome is None for one in rest)
        lines.append(
            f"  and {len(rest)} more: {fitting} that are slower, {len(rest) - fitting - refused} that do not fit, "
            f"{refused} that cannot be simulated"
        )
    return lines


def _lacking(outcome: PlanOutcome) -> str:
    words = [f"{name} lacks {quantities.show(size, quantities.BYTES)}" for name, size in outcome.lacks]
    return f"; {', '.join(words)}" if words else ""


def _nothing_fits(compared: Sequence[Compared]) -> str:
    simulated = [one for one in compared if one.outcome is not None]
    if not simulated:
        first = f" The first of them, {compared[0].candidate.name}: {compared[0].refusal}" if compared else ""
        return f"None of the {len(compared)} candidates can be simulated.{first}"
    least = min(simulated, key=lacking_bytes)
    assert least.outcome is not None
    return (
        "None of the {} candidates fits the memory of the devices. The one that lacks least is {}{}. Give a smaller "
        "batch, more devices, or devices with more memory.".format(
            len(compared), least.candidate.name, _lacking(least.outcome)
        )
    )
