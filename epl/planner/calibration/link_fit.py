"""From times of collectives to latency, bandwidth and sharing of a link, by least squares of relative errors.

    seconds of a collective = rounds x latency + bytes on the way x 1 / bandwidth         for a given algorithm

The algorithm is the one that `CollectiveCosts` finds fastest with the numbers found so far; a few turns settle it. Both
cases are tried: each device has a link of its own, or all devices share one.
"""

import math
import statistics
from typing import List, NamedTuple, Sequence, Tuple

from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.machine import (
    CALIBRATED_BY,
    Device,
    Interconnect,
    LinkLevel,
    Machine,
    MachineNode,
    Measurement,
    Speed,
)
from epl.planner.profile.op_timing import OpTime

_TURNS = 8
_START = (20e-6, 2e9)  # latency and bandwidth of the first turn
_FASTEST = 1e15  # bytes per second of a link over which no time depends on bytes
_OWN, _ALL = 1, 0  # values of `Interconnect.shared_by`


class TimedCollective(NamedTuple):
    """A collective and its time.

    Attributes:
      collective: name, as `CollectiveCosts.cost` has it.
      devices: how many took part.
      bytes: of the full tensor.
      time: from the start on all devices to the end on all of them.
    """

    collective: str
    devices: int
    bytes: int
    time: OpTime


class _Fit(NamedTuple):
    latency: float
    bandwidth: float
    shared_by: int
    errors: Tuple[float, ...]  # fitted / measured, of each time


def fit_link(
    name: str, timed: Sequence[TimedCollective], date: str, transport: str
) -> Tuple[Interconnect, List[Measurement]]:
    """The link that explains times of collectives, and the times beside what it makes of them.

    Args:
      name: of the link.
      timed: the times; they have two or more devices, which have this link alone.
      date: of the measurement.
      transport: of the collectives, as in collective_algorithms.py.
    """
    fits = [_fit(name, timed, shared_by, transport) for shared_by in (_OWN, _ALL)]
    best = min(fits, key=lambda fit: sum(math.log(error) ** 2 for error in fit.errors))
    off = statistics.median(max(error, 1 / error) - 1 for error in best.errors)
    spread = statistics.median(one.time.spread for one in timed)
    counts = [one.time.runs for one in timed]
    count = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    words = (
        f"{CALIBRATED_BY}: measured {date}, least squares over {len(timed)} collectives, each the median of {count}, "
        f"spread {100 * spread:.0f}%; the median is {100 * off:.0f}% off"
    )
    sources = (("latency", words), ("bandwidth", words), ("shared_by", "what explains the times better: 1 or all"))
    link = Interconnect(name, best.latency, Speed(best.bandwidth), best.shared_by, sources)
    return link, [
        Measurement(
            name,
            one.collective,
            one.devices,
            float(one.bytes),
            one.time.seconds,
            round(one.time.spread, 4),
            one.time.runs,
            error * one.time.seconds,
        )
        for one, error in zip(timed, best.errors)
    ]


def _fit(name: str, timed: Sequence[TimedCollective], shared_by: int, transport: str) -> _Fit:
    latency, bandwidth = _START
    for _ in range(_TURNS):
        rows = []
        for one in timed:
            rounds, nbytes = _parts(one, Interconnect(name, latency, Speed(bandwidth), shared_by, ()), transport)
            rows.append((rounds / one.time.seconds, nbytes / one.time.seconds))
        latency, inverse = _least_squares(rows)
        bandwidth = 1 / inverse if inverse > 1 / _FASTEST else _FASTEST
    link = Interconnect(name, latency, Speed(bandwidth), shared_by, ())
    return _Fit(
        latency, bandwidth, shared_by, tuple(_seconds(one, link, transport) / one.time.seconds for one in timed)
    )


def _parts(one: TimedCollective, link: Interconnect, transport: str) -> Tuple[float, float]:
    """Latencies and bytes that follow each other in a collective by its fastest algorithm."""
    cost = _costs(one.devices, link, transport).cost(one.collective, range(one.devices), one.bytes)
    rounds = float(sum(part.rounds for part in cost.parts))
    return rounds, max(0.0, cost.seconds - rounds * link.latency) * link.bandwidth.reached


def _seconds(one: TimedCollective, link: Interconnect, transport: str) -> float:
    return _costs(one.devices, link, transport).cost(one.collective, range(one.devices), one.bytes).seconds


def _costs(devices: int, link: Interconnect, transport: str) -> CollectiveCosts:
    device = Device("device", (), Speed(1.0), None, 0.0, 1, ())
    everyone = LinkLevel(link.name, (tuple(range(devices)),))
    node = MachineNode((device.name,) * devices, (everyone,), "")
    return CollectiveCosts(Machine("fit", (device,), (link,), (node,)), transport)


def _least_squares(rows: Sequence[Tuple[float, float]]) -> Tuple[float, float]:
    """The a, b >= 0 for which the sum of (x a + y b - 1)^2 over all (x, y) is least."""
    xx, xy, yy = (sum(one[i] * one[j] for one in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(one[i] for one in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant > 1e-9 * xx * yy:
        a, b = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
        if a >= 0 and b >= 0:
            return a, b
    only_a, only_b = (x / xx if xx else 0.0, 0.0), (0.0, y / yy if yy else 0.0)
    return min(only_a, only_b, key=lambda found: sum((p * found[0] + q * found[1] - 1) ** 2 for p, q in rows))
