"""Files that `epl-plan` has written: strategies of `--save`, plans of `--json`; and in what two of them differ.

--save    {"format": "epl-strategy", ...}
--json    {"format": "epl-plan", "strategy": {...}, "simulation": {"seconds": ..., "devices": [...]}, ...}
"""

import json
from typing import List, NamedTuple, Optional

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Strategy
from epl.planner.machine import quantities

FORMAT = "epl-plan"
VERSION = 1


class PlanFile(NamedTuple):
    """What a file says.

    Attributes:
      strategy: the decisions.
      seconds: of a simulated step; None if the file has none.
      peak: bytes of the device that holds most at its worst moment; None as `seconds`.
    """

    strategy: Strategy
    seconds: Optional[float]
    peak: Optional[float]


def read(text: str) -> PlanFile:
    """What a file says, given its text.

    Raises:
      ValueError: it is none; the message says what was seen.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return PlanFile(strategies.from_json(text), None, None)
    if found.get("version") != VERSION:
        raise ValueError(f"it is a plan of version {found.get('version')!r}, and this EPL reads version {VERSION}")
    strategy = strategies.from_json(json.dumps(found.get("strategy")))
    simulation = found.get("simulation")
    if simulation is None:
        return PlanFile(strategy, None, None)
    try:
        peak = max(float(one["memory"]["peak"]) for one in simulation["devices"])
        return PlanFile(strategy, float(simulation["seconds"]), peak)
    except (KeyError, TypeError, ValueError):
        raise ValueError('its "simulation" has no seconds, or no devices with the peak of their memory') from None


def differences(mine: PlanFile, other: PlanFile) -> List[str]:
    """What differs, in lines for a person: decisions first, then time and memory of a simulated step."""
    lines = strategies.differences(mine.strategy, other.strategy)
    if mine.seconds is None and other.seconds is None:
        return lines
    for what, here, there, unit in (
        ("step", mine.seconds, other.seconds, quantities.SECONDS),
        ("peak memory of a device", mine.peak, other.peak, quantities.BYTES),
    ):
        words = ["not simulated in the file" if one is None else quantities.show(one, unit) for one in (here, there)]
        if words[0] != words[1]:
            change = f" ({there / here - 1:+.1%})" if here and there is not None else ""
            lines.append(f"{what}: {words[0]} -> {words[1]}{change}")
    return lines
