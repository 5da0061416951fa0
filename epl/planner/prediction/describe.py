"""A prediction as text for a person."""

import re
from typing import Dict, List, Sequence, Tuple

from epl.planner.machine import quantities
from epl.planner.prediction.prediction import PredictedDevices, Prediction
from epl.planner.prediction.program_builder import COMPUTES, LoweredKind
from epl.planner.simulator.model_costs import RowWay
from epl.profiler import tables

_PATH = 8  # lines of the critical path
_ROLES = ("weights", "slots", "gradients", "activations", "communication")


_PASS = re.compile(r"([0-9]+)([FB])([0-9]+)( again)?(?: part ([0-9]+))?")
_OF_PASS = {"F": "forward", "B": "backward"}
_OF_WAY = {RowWay.FORWARD: "forward", RowWay.BACKWARD: "backward", RowWay.WRITES: "of writes"}


def name_in_words(name: str) -> str:
    """What an op of a step is, for a person: "1F2" -> "forward of stage 1, micro batch 2"; others are words already."""
    match = _PASS.fullmatch(name)
    if match is None:
        return name
    stage, kind, micro_batch, again, part = match.groups()
    words = "forward again" if again else _OF_PASS[kind]
    return f"{words} of stage {stage}, micro batch {micro_batch}" + (f", part {part}" if part else "")


def describe(prediction: Prediction) -> List[str]:
    """The step, its devices, its memory, its communication, what set its time, and what was assumed, in lines."""
    lines = [f"step {_seconds(prediction.seconds)} (predicted): {_speed(prediction)}"]
    lines += ["  " + flops_in_words(prediction)]
    lines += ["  " + line for line in _devices(prediction)]
    lines += ["memory of a device in MB, at its worst moment"]
    lines += ["  " + line for line in _memory(prediction)]
    lines += ["  " + line for line in _lacks(prediction)]
    if prediction.traffic:
        lines += ["communication of a step"] + ["  " + line for line in _traffic(prediction)]
        lines += ["  " + line for line in costs_of_rows(prediction)]
    lines.append("what the step waits for: the longest parts of its critical path")
    lines += ["  " + line for line in _path(prediction)]
    bound = prediction.bound
    lines.append(
        f"no schedule can beat {_seconds(bound.seconds)}: work over all speeds {_seconds(bound.compute)}, bubble of "
        f"equal stages {_seconds(bound.bubble)}, bytes over the busiest link {_seconds(bound.traffic)}"
    )
    return lines + ["assumed: " + line for line in prediction.assumptions]


def _speed(prediction: Prediction) -> str:
    seconds = prediction.seconds or 1.0
    samples = sum(one.rows * len(one.ranks) for one in prediction.devices if one.stage == 0)
    share = 100 * prediction.bound.compute / seconds
    return (
        f"{samples / seconds:,.4g} samples per second; the work by itself, at the speeds of all devices, is "
        f"{share:.0f}% of the step"
    )


def flops_in_words(prediction: Prediction) -> str:
    """The FLOPs of the model in a step, in a second, and as a share of what its devices could do."""
    bound, reached = prediction.bound, prediction.bound.flops / (prediction.seconds or 1.0)
    words = f"{bound.flops:.4g} FLOPs of the model, {quantities.show(reached, quantities.FLOPS)}"
    if not bound.peak:
        return words
    peak = quantities.show(bound.peak, quantities.FLOPS)
    return f"{words}: {100 * reached / bound.peak:.1f}% of the peak of the devices, {peak} of matmuls"


def _devices(prediction: Prediction) -> List[str]:
    rows: List[Sequence[str]] = [("devices", "number", "rows", "busy", "exposed communication", "waiting")]
    for one in prediction.devices:
        shares = [_share(seconds, prediction.seconds) for seconds in (one.busy, one.exposed, one.bubble)]
        rows.append((one.name, str(len(one.devices)), str(one.rows), *shares))
    return tables.aligned(rows)


def _memory(prediction: Prediction) -> List[str]:
    rows: List[Sequence[str]] = [("devices", *_ROLES, "peak", "limit", "at")]
    for one in prediction.devices:
        memory = one.memory
        limit = "none" if memory.limit is None else _megabytes(memory.limit)
        roles = [_megabytes(memory.by_role.get(role, 0)) for role in _ROLES]
        moment = f"{name_in_words(memory.at)}, {_seconds(memory.seconds)}"
        rows.append((one.name, *roles, _megabytes(memory.peak), limit, moment))
    return tables.aligned(rows, left=(0, len(rows[0]) - 1))


def _lacks(prediction: Prediction) -> List[str]:
    short: List[PredictedDevices] = [one for one in prediction.devices if one.memory.lacks]
    return [f"does not fit: each device of {one.name} lacks {_megabytes(one.memory.lacks)} MB" for one in short]


def _traffic(prediction: Prediction) -> List[str]:
    rows: List[Sequence[str]] = [("decision", "collective", "number", "devices", "MB", "time")]
    for one in prediction.traffic:
        rows.append(
            (
                one.in_words,
                one.collective,
                str(one.times),
                str(one.devices),
                _megabytes(one.bytes),
                _seconds(one.seconds),
            )
        )
    return tables.aligned(rows, left=(0, 1))


def costs_of_rows(prediction: Prediction) -> List[str]:
    """What it costs that replicas compute with the rows of all, by decision."""
    found = []
    for decision in dict.fromkeys(one.decision for one in prediction.traffic if one.way):
        own = [one for one in prediction.traffic if one.decision == decision]
        times = ", ".join(
            f"{one.times} {one.collective}{'s' if one.times > 1 else ''} {_OF_WAY[one.way]}" for one in own
        )
        waits = "next to the passes" if all(one.way == RowWay.WRITES for one in own) else "for which the passes wait"
        size = quantities.show(sum(one.bytes for one in own), quantities.BYTES)
        found.append(f"{decision}: {times}, {size}, {_seconds(sum(one.seconds for one in own))}, {waits}")
    return found


def _path(prediction: Prediction) -> List[str]:
    """The longest parts of the critical path, in the order in which they begin; pieces of one pass count together."""
    seconds: Dict[Tuple[str, str, str], float] = {}
    for one in prediction.critical_path:
        does = "computes" if one.kind in COMPUTES else "communicates"
        does = "updates on the host" if one.kind == LoweredKind.HOST_UPDATE else does
        part = name_in_words(one.name.partition(" part ")[0]), prediction.devices[one.devices].name, does
        seconds[part] = seconds.get(part, 0.0) + one.end - one.start
    longest = sorted(seconds, key=lambda part: -seconds[part])[:_PATH]
    rows: List[Sequence[str]] = [("what", "devices", "", "time")]
    rows += [(*part, _seconds(seconds[part])) for part in seconds if part in longest]
    left = len(seconds) - len(longest)
    others = [f"and {left} shorter part{'s' if left > 1 else ''}"] if left else []
    return tables.aligned(rows, left=(0, 1, 2)) + others


def _share(seconds: float, step: float) -> str:
    return f"{_seconds(seconds)} ({100 * seconds / step:.0f}%)" if step else _seconds(seconds)


def _seconds(seconds: float) -> str:
    return quantities.show(seconds, quantities.SECONDS)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}" if not 0 < size < 1e6 else f"{size / 1e6:.2g}"
