"""The memory estimate as a table for people."""

from typing import List, Sequence

from epl.profiler import tables
from epl.profiler.estimate.estimate import DeviceMemory, MemoryEstimate

_COLUMNS = ("weights", "slots", "gradients", "activations", "communication", "updates", "peak")


def describe(estimate: MemoryEstimate) -> str:
    """A line per device, in MB of 10^6 bytes; changes that would lower the largest peak; and the assumptions."""
    rows: List[Sequence[str]] = [("device",) + _COLUMNS + ("at",)]
    rows += [_row(device) for device in estimate.devices]
    lines = ["Memory of a step in MB, at the worst moment of each device (estimate):"]
    lines += ["  " + line for line in tables.aligned(rows, left=(0, len(rows[0]) - 1))]
    peak = max(device.peak for device in estimate.devices)
    for change in estimate.changes:
        lines.append(
            "  {:.1f} MB ({:+.0f}%) with {}: {}, {:+.0f}% time".format(
                change.peak / 1e6, 100.0 * (change.peak - peak) / peak, change.config, change.why, 100 * change.time
            )
        )
    return "\n".join(lines + ["  note: " + note for note in estimate.notes])


def _row(device: DeviceMemory) -> Sequence[str]:
    numbers = [f"{getattr(device, column) / 1e6:.1f}" for column in _COLUMNS]
    return [device.device] + numbers + [device.peak_op]
