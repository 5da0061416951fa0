"""From times of ops to the numbers of a device, so that the cost model gives these times back.

    seconds = launch overhead + max(FLOPs / rate of the kind, bytes / bandwidth)

    launch overhead    what tiny ops take: the median over them
    bandwidth          of elementwise layers in float32: bytes / (seconds - overhead)
    half width         of matmuls: from the times of the same layers with many rows and with few
    rate of a kind     of its layers, in a dtype: FLOPs / (seconds - overhead); none if the bandwidth explains the times

A layer is an op and its backward ops, with their times added up, as a training step has them: a matmul of a gradient
may take three times as long as the one of the layer. Of several layers the median counts.
"""

import statistics
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.costs.op_times import OpTimes
from epl.parallel.costs.ops import OpCost
from epl.planner.calibration.op_samples import OpSample
from epl.planner.machine.machine import CALIBRATED_BY, HALF_WIDTH, Device, Measurement, OpRate, Speed
from epl.planner.machine.op_kinds import CONTRACTIONS, DTYPES, RATED, Kind
from epl.planner.profile.op_timing import OpTime, summary

# Layers of a kind that take at most so many times as long as the bandwidth allows have no rate of their own.
_EXPLAINED = 1.1
_LEAST_SHARE = 0.05  # of its time that an op works at least, whatever the overhead is
_NARROW = (Kind.MATMUL, "float32")  # kind and dtype of the ops that are timed with few rows, too
# A layer with few rows takes at most this share of the time of the one with many rows: else no half width explains it.
_MOST_SHARE = 0.9


class TimedOp(NamedTuple):
    """An op and its time."""

    sample: OpSample
    time: OpTime


class MeasuredDeviceOps(NamedTuple):
    """The times of ops on a device.

    Attributes:
      tiny: of ops that do next to nothing.
      others: of all other ops.
      narrow: of the matmuls among these in float32, with fewer rows.
    """

    tiny: Sequence[TimedOp]
    others: Sequence[TimedOp]
    narrow: Sequence[TimedOp] = ()


def fit_device(
    name: str, measured: MeasuredDeviceOps, memory: int, memory_source: str, date: str
) -> Tuple[Device, List[Measurement]]:
    """The device that explains times of ops, and the times beside what it makes of them.

    Args:
      name: of the kind of device.
      measured: the times.
      memory: bytes of the device.
      memory_source: where they come from.
      date: of the measurement.

    Raises:
      ValueError: there are no times of tiny ops, or of elementwise ops.
    """
    overhead = summary([one.time.seconds for one in measured.tiny])
    moving = [
        one for one in measured.others if one.sample.cost.kind == Kind.ELEMENTWISE and one.sample.dtype == "float32"
    ]
    bandwidth = summary(_speeds(moving, overhead, bandwidth=1.0))
    half_width = _half_width(measured, overhead)
    rates, words = _fit_rates(measured.others, overhead, bandwidth.seconds, half_width)
    device = Device(
        name,
        tuple(rates),
        Speed(bandwidth.seconds),
        memory,
        overhead.seconds,
        1,
        (
            ("flops", f"{CALIBRATED_BY}: measured {date}, {words}; each op in measurements"),
            ("bandwidth", _words(date, bandwidth, "elementwise layers")),
            ("memory", memory_source),
            ("launch_overhead", _words(date, overhead, "ops")),
            ("threads", "the device computes one op at a time, with all of its cores"),
        ),
    )
    return device, [_measurement(device, one) for one in [*measured.tiny, *measured.others, *measured.narrow]]


def _half_width(measured: MeasuredDeviceOps, overhead: OpTime) -> int:
    """The half width of matmuls: that with which the same layers have one rate with many rows and with few.

    With s seconds per FLOP at w rows, s is proportional to 1 + half width / w, for both.
    """
    found = []
    wide = [one for one in measured.others if (one.sample.cost.kind, one.sample.dtype) == _NARROW]
    for layer in {one.sample.layer for one in measured.narrow}:
        both = [[one for one in timed if one.sample.layer == layer] for timed in (measured.narrow, wide)]
        if len(both[0]) != len(both[1]):  # some did not run here
            continue
        (few, slow), (many, fast) = (_width_and_slowness(timed, overhead) for timed in both)
        times = min(max(slow / fast, 1.0), _MOST_SHARE * many / few)
        found.append((times - 1) / (1 / few - times / many))
    return round(statistics.median(found)) if found else HALF_WIDTH


def _width_and_slowness(timed: Sequence[TimedOp], overhead: OpTime) -> Tuple[int, float]:
    """The narrowest dimension of a layer, and its seconds per FLOP."""
    flops = sum(one.sample.cost.flops for one in timed)
    return min(one.sample.cost.narrowest for one in timed), sum(_working(one.time, overhead) for one in timed) / flops


def _fit_rates(
    timed: Sequence[TimedOp], overhead: OpTime, bandwidth: float, half_width: int
) -> Tuple[List[OpRate], str]:
    by_kind: Dict[str, Dict[str, List[TimedOp]]] = {}
    for one in timed:
        by_kind.setdefault(one.sample.cost.kind, {}).setdefault(one.sample.dtype, []).append(one)
    rates: List[OpRate] = []
    fits: List[OpTime] = []
    for kind in RATED:
        units = {
            dtype: OpRate(kind, dtype, Speed(1.0), half_width if (kind, dtype) == _NARROW else HALF_WIDTH)
            for dtype in DTYPES
        }
        speeds = {dtype: _speeds(some, overhead, rate=units[dtype]) for dtype, some in by_kind.get(kind, {}).items()}
        slow = [one for one in speeds if not _is_explained(by_kind[kind][one], overhead, bandwidth)]
        own = [dtype for dtype in DTYPES if dtype in (speeds if kind in CONTRACTIONS else slow)]
        if "float32" not in speeds or not own:
            continue
        if "float32" not in own:  # it must be there for the others; this high, the bandwidth decides
            rates.append(units["float32"]._replace(flops=Speed(max(speeds["float32"]))))
        for dtype in own:
            fits.append(summary(speeds[dtype]))
            rates.append(units[dtype]._replace(flops=Speed(fits[-1].seconds)))
    counts, spreads = [fit.runs for fit in fits] or [0], [fit.spread for fit in fits] or [0.0]
    return rates, (
        f"medians of {min(counts)} to {max(counts)} layers, "
        f"spread {100 * min(spreads):.0f}% to {100 * max(spreads):.0f}%"
    )


def _speeds(timed: Sequence[TimedOp], overhead: OpTime, **unit: Any) -> List[float]:
    """Of each layer: how many times faster it ran than at a rate, or a bandwidth, of 1."""
    work: Dict[int, float] = {}
    seconds: Dict[int, float] = {}
    for one in timed:
        layer = one.sample.layer
        work[layer] = work.get(layer, 0.0) + _work(one.sample.cost, **unit)
        seconds[layer] = seconds.get(layer, 0.0) + _working(one.time, overhead)
    return [work[layer] / seconds[layer] for layer in work]


def _is_explained(timed: Sequence[TimedOp], overhead: OpTime, bandwidth: float) -> bool:
    """Whether ops take hardly longer than the bandwidth allows."""
    return statistics.median(_speeds(timed, overhead, bandwidth=bandwidth)) >= 1 / _EXPLAINED


def _working(time: OpTime, overhead: OpTime) -> float:
    """Seconds of an op without its start."""
    return max(time.seconds - overhead.seconds, _LEAST_SHARE * time.seconds, 1e-9)


def _work(cost: OpCost, rate: Optional[OpRate] = None, bandwidth: float = 1e30) -> float:
    """Seconds that the cost model gives for an op, without its start, at a rate of its kind or a bandwidth."""
    rates = () if rate is None else (rate._replace(dtype="float32"),)
    return OpTimes(Device("unit", rates, Speed(bandwidth), None, 0.0, 1, ())).work_seconds(cost)


def device_seconds(sample: OpSample, device: Device) -> float:
    """Seconds that the cost model gives for an op on a device."""
    return OpTimes(device).seconds(sample.cost._replace(dtype=sample.dtype))


def _measurement(device: Device, timed: TimedOp) -> Measurement:
    sample, time = timed
    return Measurement(
        device.name,
        sample.describe(),
        1,
        sample.cost.bytes,
        time.seconds,
        round(time.spread, 4),
        time.runs,
        device_seconds(sample, device),
    )


def _words(date: str, fit: OpTime, what: str) -> str:
    return f"{CALIBRATED_BY}: measured {date}, median of {fit.runs} {what}, spread {100 * fit.spread:.0f}%"
