"""Simulates candidates and takes the fastest that fits: never a slower one than the best of them.

candidates --simulate--> seconds, memory, or why it cannot be    the fastest that fits; of those within 1%, the simplest
"""

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.plan.strategy import Strategy
from epl.planner.machine import quantities
from epl.planner.search.candidates import WORTH, PlanCandidate
from epl.planner.search.training_batches import OtherBatchesError
from epl.utils.errors import EplError, PlanError

_SHOWN = 12


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
      outcome: None if it is not simulated.
      refusal: why not; else "".
      has_other_batches: whether that is because it would train on other batches than the script as it is.
    """

    candidate: PlanCandidate
    outcome: Optional[PlanOutcome]
    refusal: str
    has_other_batches: bool = False

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
        except OtherBatchesError as error:
            compared.append(Compared(candidate, None, str(error), has_other_batches=True))
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
    """Those that fit by time, then those that do not, then what cannot be simulated, then those with other batches."""

    def place(one: Compared) -> Tuple[bool, bool, bool, float]:
        return one.has_other_batches, one.outcome is None, not one.fits, one.outcome.seconds if one.outcome else 0.0

    return sorted(compared, key=place)


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
        lines.append(f"  and {len(ordered) - _SHOWN} more: {_counted(ordered[_SHOWN:])}")
    return lines


def _counted(compared: Sequence[Compared]) -> str:
    """How many candidates there are of which kind."""
    fitting = sum(one.fits for one in compared)
    others = sum(one.has_other_batches for one in compared)
    unknown = sum(one.outcome is None for one in compared) - others
    counts = (
        (fitting, "slower"),
        (len(compared) - fitting - unknown - others, "without enough memory"),
        (unknown, "not simulated"),
        (others, "with other batches than the script"),
    )
    return ", ".join(f"{count} {kind}" for count, kind in counts if count)


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
        "None of the {} candidates fits the memory of the devices: {}. The one that lacks least is {}{}. Give a "
        "smaller batch, more devices, or devices with more memory.".format(
            len(compared), _counted(compared), least.candidate.name, _lacking(least.outcome)
        )
    )
