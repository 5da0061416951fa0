"""Pictures of a simulated step, as SVG inside a page: what devices and links do over time, and what memory holds.

    class of devices   compute        [forward ][ backward  ][ update ]
                       communicate              [ all-reduce ]
    memory             bytes over time, with the limit of the device

Intervals too narrow to be seen join the one before them: a picture has some hundred parts, whatever the step has.
"""

import html
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.plan.schedule import FORWARD
from epl.planner.machine import quantities
from epl.planner.prediction.prediction import PredictedDevices, Prediction
from epl.planner.prediction.program_builder import COMPUTES, LoweredKind
from epl.planner.prediction.schedule_grid import ScheduleGrid

WIDTH = 1000  # units of a picture; the page scales it
_LANE = 22
_MEMORY_HEIGHT = 90
_NARROWEST = 1.0  # units
_SLOT = 24  # pixels of a slot of a schedule
_NARROWEST_GRID = 300  # pixels
_LETTER = 7  # pixels


class Interval(NamedTuple):
    """A part of a lane.

    Attributes:
      start, end: in seconds.
      kind: a constant of LoweredKind.
      name: of what begins there.
      ops: how many it stands for.
    """

    start: float
    end: float
    kind: str
    name: str
    ops: int


def lanes(prediction: Prediction) -> List[Tuple[List[Interval], List[Interval]]]:
    """By row of `prediction.devices`: what is computed, and what is communicated, in the order of time."""
    found: List[Tuple[List[Interval], List[Interval]]] = [([], []) for _ in prediction.devices]
    run = prediction.run
    for number, (op, told) in enumerate(zip(prediction.lowered.program.ops, prediction.lowered.ops)):
        lane = found[op.device][0 if told.kind in COMPUTES else 1]
        lane.append(Interval(run.starts[number], run.ends[number], told.kind, told.name, 1))
    narrowest = prediction.seconds / WIDTH * _NARROWEST
    return [(joined(computes, narrowest), joined(communicates, narrowest)) for computes, communicates in found]


def joined(intervals: Sequence[Interval], narrowest: float) -> List[Interval]:
    """Intervals in the order of time, each at least so wide or ended by a gap of that width, or by another kind."""
    found: List[Interval] = []
    for one in sorted(intervals):
        last = found[-1] if found else None
        is_small = last is not None and min(one.end - one.start, last.end - last.start) < narrowest
        if last is not None and is_small and one.kind == last.kind and one.start - last.end < narrowest:
            found[-1] = last._replace(end=max(last.end, one.end), ops=last.ops + one.ops)
        else:
            found.append(one)
    return found


def timelines(prediction: Prediction) -> List[str]:
    """By row of `prediction.devices`, the picture of its two lanes."""
    scale = WIDTH / (prediction.seconds or 1.0)
    found = []
    for device, both in zip(prediction.devices, lanes(prediction)):
        shapes = []
        for number, lane in enumerate(both):
            top = number * _LANE
            shapes.append(f'<rect class="lane" x="0" y="{top}" width="{WIDTH}" height="{_LANE - 4}"/>')
            shapes += [_rectangle(one, top, scale) for one in lane]
        words = f"a step of {device.name}, {_seconds(prediction.seconds)}"
        found.append(_picture("".join(shapes), 2 * _LANE, words))
    return found


def time_axis(seconds: float) -> str:
    """The axis below pictures of a step."""
    marks = "".join(f"<span>{_seconds(seconds * quarter / 4)}</span>" for quarter in range(5))
    return f'<div class="axis">{marks}</div>'


def _rectangle(one: Interval, top: int, scale: float) -> str:
    width = max((one.end - one.start) * scale, 0.3)
    more = f" and {one.ops - 1} more" if one.ops > 1 else ""
    words = html.escape(f"{one.name}{more}: {_seconds(one.start)} to {_seconds(one.end)}")
    return (
        f'<rect class="{one.kind}" x="{one.start * scale:.2f}" y="{top}" width="{width:.2f}" height="{_LANE - 4}">'
        f"<title>{words}</title></rect>"
    )


def schedule(grid: ScheduleGrid) -> str:
    """The picture of the passes of a pipeline; as wide as its passes need, so it scrolls in a narrow page."""
    slots = grid.seconds / grid.slot if grid.slot else 1.0
    width = max(_NARROWEST_GRID, round(slots * _SLOT))
    scale = width / (grid.seconds or 1.0)
    shapes = [f'<rect class="lane" x="0" y="{n * _LANE}" width="{width}" height="{_LANE - 4}"/>' for n in
              range(grid.stages)]  # fmt: skip
    for one in grid.passes:
        x, span, top = one.start * scale, (one.end - one.start) * scale, one.stage * _LANE
        kind = LoweredKind.FORWARD if one.kind == FORWARD else LoweredKind.BACKWARD
        words = f"stage {one.stage} {one.text()}: {_seconds(one.start)} to {_seconds(one.end)}"
        shapes.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{top}" width="{max(span - 1, 0.5):.1f}" height="{_LANE - 4}">'
            f"<title>{words}</title></rect>"
        )
        if span > _LETTER * len(one.text()):
            shapes.append(f'<text x="{x + 2:.1f}" y="{top + 13}">{one.text()}</text>')
    height = grid.stages * _LANE
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" style="width:{width}px;height:{height}px">'
        f"<title>schedule of {grid.stages} stages</title>{''.join(shapes)}</svg>"
    )


def memory(prediction: Prediction, row: int) -> str:
    """The picture of the bytes that a device of a class holds over time, with its limit."""
    device = prediction.devices[row]
    points = levels(prediction, row)
    limit = device.memory.limit
    top = max([size for _, size in points] + ([limit] if limit and limit < 3 * device.memory.peak else [])) or 1
    scale_x, scale_y = WIDTH / (prediction.seconds or 1.0), (_MEMORY_HEIGHT - 4) / top
    path = [f"M0 {_MEMORY_HEIGHT}"]
    for seconds, size in points:
        path.append(f"H{seconds * scale_x:.2f}V{_MEMORY_HEIGHT - size * scale_y:.2f}")
    path.append(f"H{WIDTH}V{_MEMORY_HEIGHT}Z")
    shapes = f'<path class="memory" d="{"".join(path)}"/>'
    if limit and limit <= top:
        height = _MEMORY_HEIGHT - limit * scale_y
        shapes += f'<line class="limit" x1="0" x2="{WIDTH}" y1="{height:.2f}" y2="{height:.2f}"/>'
    axis = f'<div class="axis"><span>height: 0 to {top / 1e6:,.1f} MB</span></div>'
    words = f"memory of {device.name}, {device.memory.peak / 1e6:.1f} MB at most"
    return axis + _picture(shapes, _MEMORY_HEIGHT, words)


def levels(prediction: Prediction, row: int) -> List[Tuple[float, int]]:
    """(seconds, bytes that a device of a class holds from then on); of moments very near to each other the most."""
    device = prediction.devices[row]
    changes = prediction.run.changes[row]
    now = device.memory.peak - _highest(changes)
    nearest = prediction.seconds / WIDTH
    found: List[Tuple[float, int]] = [(0.0, now)]
    for seconds, _, size in changes:
        now += size
        if seconds - found[-1][0] < nearest:
            found[-1] = (found[-1][0], max(found[-1][1], now))
        else:
            found.append((seconds, now))
    return found


def _highest(changes: Sequence[Tuple[float, str, int]]) -> int:
    now = highest = 0
    for _, _, size in changes:
        now += size
        highest = max(highest, now)
    return highest


def shares(device: PredictedDevices, seconds: float) -> Dict[str, float]:
    """The parts of a step that a class of devices computes, communicates and waits."""
    whole = seconds or 1.0
    return {
        "busy": device.busy / whole,
        "exposed communication": device.exposed / whole,
        "waiting": device.bubble / whole,
    }


def bar(parts: Dict[str, float], words: Optional[Dict[str, str]] = None) -> str:
    """A bar of parts that add up to 1 at most; each has a class of its own, and a title."""
    shapes, left = [], 0.0
    for number, (name, part) in enumerate(parts.items()):
        title = html.escape(f"{name}: {words[name] if words else f'{100 * part:.1f}%'}")
        shapes.append(
            f'<rect class="part{number}" x="{left * WIDTH:.2f}" y="0" width="{part * WIDTH:.2f}" height="14">'
            f"<title>{title}</title></rect>"
        )
        left += part
    return _picture(f'<rect class="lane" x="0" y="0" width="{WIDTH}" height="14"/>' + "".join(shapes), 14, "parts")


def _picture(shapes: str, height: int, words: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" style="height:{height}px">'
        f"<title>{html.escape(words)}</title>{shapes}</svg>"
    )


def _seconds(seconds: float) -> str:
    return quantities.show(seconds, quantities.SECONDS)
