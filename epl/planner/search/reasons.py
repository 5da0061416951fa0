"""Why a strategy is as it is: where each decision came from, and what deciding it otherwise would cost.

    decision             chosen     compared candidates with another value
    zero.level           "v1"       "": 3.1 ms, lacks 2 GB    "v0": 3.4 ms, fits
                                    |                          '-- the runner-up: the best that fits
                                    '-- faster, but does not fit

Nothing is simulated: what a search has compared is all that is asked.
"""

import json
from collections import Counter
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Setting, Strategy
from epl.planner.machine import quantities
from epl.planner.search import comparison
from epl.planner.search.candidates import PLANNER
from epl.planner.search.comparison import Compared

STAGES, BOUNDARIES, KINDS, CHOICES = "blocks", "block boundaries", "kind of block", "choices of split ops"
_BLOCKS_SHOWN = 4
_KEPT = ("default", strategies.SCOPES, strategies.DEFAULT_STRATEGY)  # origins of what a search may have kept


class Alternative(NamedTuple):
    """A compared candidate that decides something otherwise.

    Attributes:
      value: what it decides, for people.
      candidate: its name.
      seconds: of its step; None if it cannot be simulated.
      slower: seconds that its step takes more than that of the chosen one; below 0 if it is faster; None as `seconds`.
      lacks: of each kind of device without enough memory: (its name, bytes that it lacks at the peak).
      refusal: why it cannot be simulated; else "".
    """

    value: str
    candidate: str
    seconds: Optional[float]
    slower: Optional[float]
    lacks: Tuple[Tuple[str, float], ...]
    refusal: str


class Reason(NamedTuple):
    """Why a decision is as it is.

    Attributes:
      decision: what is decided: a configuration key, or something about the blocks.
      value: what was decided, for people.
      origin: where that came from: "code", "environment ...", "scopes", "epl.set_default_strategy", "default",
        "planner", "auto.plan_file ...".
      runner_up: the best compared candidate that decides it otherwise: the fastest that fits; if none does, the one
        that lacks least memory; if none can be simulated, the first. None if none decides it otherwise.
      faster: the fastest that decides it otherwise, is faster than the chosen one, and does not fit; else None.
    """

    decision: str
    value: str
    origin: str
    runner_up: Optional[Alternative] = None
    faster: Optional[Alternative] = None


class _Decision(NamedTuple):
    """One thing that strategies decide.

    Attributes:
      name: of it.
      value: of a strategy, for people.
      key: of a strategy: equal for those that decide it in the same way.
      origin: of the value.
      scope: of a strategy: those with equal ones can be compared in this.
    """

    name: str
    value: Callable[[Strategy], str]
    key: Callable[[Strategy], Any]
    origin: Callable[[Strategy], str]
    scope: Callable[[Strategy], Any]


def find_reasons(
    strategy: Strategy, compared: Sequence[Compared] = (), chosen: Optional[Compared] = None, source: str = ""
) -> List[Reason]:
    """The reasons of all decisions of a strategy, those about its blocks first.

    Args:
      strategy: the strategy, as it is used.
      compared: what a search has compared; () without a search.
      chosen: the candidate among them that was taken.
      source: where the model has its blocks from, if not from where the strategy had them: "auto.plan_file 'a.json'".
    """
    if source:
        strategy = strategy._replace(blocks_origin=source)
    return [_reason(one, strategy, compared, chosen) for one in _decisions(strategy)]


def with_origins(chosen: Compared, compared: Sequence[Compared]) -> Strategy:
    """The strategy of the candidate that was taken, with the origins of its decisions.

    What it keeps of the script, and others that were compared with it decide otherwise, the planner has decided.
    """
    strategy = chosen.candidate.strategy
    origins = {one.decision: one.origin for one in find_reasons(strategy, compared, chosen)}
    is_searched = PLANNER in (origins[STAGES], origins[KINDS])
    return strategy._replace(
        blocks_origin=PLANNER if is_searched else strategy.blocks_origin,
        settings=tuple(one._replace(origin=origins[one.key]) for one in strategy.settings),
    )


def describe_reason(reason: Reason) -> str:
    """A reason in one line for a person."""
    words = f"{reason.decision} = {reason.value}   ({reason.origin})"
    for title, other in (("instead ", reason.runner_up), ("faster, and does not fit: ", reason.faster)):
        if other is not None:
            words += f"; {title}{other.value}: {alternative_in_words(other)}"
    return words


def alternative_in_words(other: Alternative) -> str:
    """What an alternative would cost, in words: time, and memory that lacks."""
    if other.seconds is None or other.slower is None:
        return f"not simulated, {other.refusal}"
    seconds, before = other.seconds, other.seconds - other.slower
    words = quantities.show(seconds, quantities.SECONDS)
    if before > 0:
        words += f", {100 * abs(other.slower) / before:.1f}% {'more' if other.slower >= 0 else 'less'}"
    lacks = [f"{name} lacks {quantities.show(size, quantities.BYTES)}" for name, size in other.lacks]
    return ", ".join([words, *lacks]) + f" ({other.candidate})"


def _reason(
    decision: _Decision, strategy: Strategy, compared: Sequence[Compared], chosen: Optional[Compared]
) -> Reason:
    value, origin = decision.value(strategy), decision.origin(strategy)
    key, scope = decision.key(strategy), decision.scope(strategy)
    others = [
        one
        for one in compared
        if one is not chosen
        and not one.has_other_batches
        and decision.scope(one.candidate.strategy) == scope
        and decision.key(one.candidate.strategy) != key
    ]
    if others and origin in _KEPT:
        origin = PLANNER  # it has compared what was there with others, and kept it
    if chosen is None or chosen.outcome is None or not others:
        return Reason(decision.name, value, origin)
    seconds = chosen.outcome.seconds
    runner_up = _best(others)
    faster = [
        one for one in others if one is not runner_up and one.outcome and not one.fits and one.outcome.seconds < seconds
    ]
    return Reason(
        decision.name,
        value,
        origin,
        _alternative(decision, runner_up, seconds),
        _alternative(decision, min(faster, key=_seconds), seconds) if faster else None,
    )


def _best(others: Sequence[Compared]) -> Compared:
    fitting = [one for one in others if one.fits]
    simulated = [one for one in others if one.outcome is not None]
    if fitting:
        return min(fitting, key=_seconds)
    return min(simulated, key=comparison.lacking_bytes) if simulated else others[0]


def _seconds(one: Compared) -> float:
    assert one.outcome is not None
    return one.outcome.seconds


def _alternative(decision: _Decision, one: Compared, seconds: float) -> Alternative:
    value = decision.value(one.candidate.strategy) or "none"
    if one.outcome is None:
        return Alternative(value, one.candidate.name, None, None, (), one.refusal)
    outcome = one.outcome
    return Alternative(value, one.candidate.name, outcome.seconds, outcome.seconds - seconds, outcome.lacks, "")


# ---- What strategies decide.


def _decisions(strategy: Strategy) -> List[_Decision]:
    found = [
        _Decision(STAGES, _count, _count, _origin_of_blocks, _nothing),
        _Decision(KINDS, _kinds, _kinds, _origin_of_blocks, _nothing),
    ]
    if len(strategy.blocks) > 1:
        found.append(_Decision(BOUNDARIES, _boundaries, _blocks_of_ops, _origin_of_blocks, _count))
    if any(block.kind == "split" for block in strategy.blocks):
        found.append(_Decision(CHOICES, _choices, _choices_of_ops, _origin_of_blocks, _kinds))
    return found + [_of_key(setting.key) for setting in strategy.settings]


def _of_key(name: str) -> _Decision:
    def setting(strategy: Strategy) -> Optional[Setting]:
        return next((one for one in strategy.settings if one.key == name), None)

    def value(strategy: Strategy) -> str:
        found = setting(strategy)
        return "" if found is None else "off" if json.loads(found.value) == "" else found.value

    def origin(strategy: Strategy) -> str:
        found = setting(strategy)
        return "" if found is None else found.origin

    return _Decision(name, value, value, origin, _nothing)


def _nothing(strategy: Strategy) -> str:
    return ""


def _count(strategy: Strategy) -> str:
    return str(len(strategy.blocks))


def _kinds(strategy: Strategy) -> str:
    return ", ".join(dict.fromkeys(strategies.block_in_words(block._replace(scopes=())) for block in strategy.blocks))


def _boundaries(strategy: Strategy) -> str:
    """The first name scope of each block, with the number of its ops."""
    ops = Counter(op.block for op in strategy.ops)
    begins = [
        f"{block.scopes[0] if block.scopes else f'block {number}'} ({ops[number]} ops)"
        for number, block in enumerate(strategy.blocks)
    ]
    more = f" and {len(begins) - _BLOCKS_SHOWN} more" if len(begins) > _BLOCKS_SHOWN else ""
    return "from " + ", ".join(begins[:_BLOCKS_SHOWN]) + more


def _blocks_of_ops(strategy: Strategy) -> Tuple[int, ...]:
    return tuple(op.block for op in strategy.ops)


def _choices(strategy: Strategy) -> str:
    return f"{len(strategy.choices)} ops on shards"


def _choices_of_ops(strategy: Strategy) -> Tuple[strategies.PlannedChoice, ...]:
    return strategy.choices


def _origin_of_blocks(strategy: Strategy) -> str:
    return strategy.blocks_origin
