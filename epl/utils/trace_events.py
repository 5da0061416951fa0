"""The Trace Event Format (JSON) of chrome://tracing and https://ui.perfetto.dev: what all traces of EPL are made of.

    process   a title
    lane      slices of one kind; split into as many threads as there are slices at the same time, as events of a thread
              must not overlap unless one contains the other
    counter   a number that changes

Times come in nanoseconds; the format has microseconds.
"""

import json
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

TraceEvent = Dict[str, Any]


class TraceSlice(NamedTuple):
    """Something that takes time.

    Attributes:
      name: what is shown in it.
      category: sets its colour.
      start_ns, end_ns: its time.
      args: what is shown when it is selected.
    """

    name: str
    category: str
    start_ns: float
    end_ns: float
    args: TraceEvent


def process_events(pid: int, title: str, args: Optional[TraceEvent] = None) -> List[TraceEvent]:
    """A process; processes are shown in the order of their numbers.

    Args:
      pid: its number.
      title: its name.
      args: more about it.
    """
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title, **(args or {})}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
    ]


def lane_events(pid: int, lanes: Iterable[Tuple[str, Sequence[TraceSlice]]]) -> List[TraceEvent]:
    """The threads of a process, and their slices.

    Args:
      pid: its number.
      lanes: (title, slices) of each lane, top to bottom.
    """
    events: List[TraceEvent] = []
    tid = 0
    for lane, slices in lanes:
        for number, row in enumerate(_rows(slices)):
            tid += 1
            title = lane if not number else f"{lane} ({number + 1})"
            for key, args in (("thread_name", {"name": title}), ("thread_sort_index", {"sort_index": tid})):
                events.append({"ph": "M", "name": key, "pid": pid, "tid": tid, "args": args})
            events += [_complete(pid, tid, one) for one in row]
    return events


def counter_events(pid: int, name: str, unit: str, values: Iterable[Tuple[float, int]]) -> List[TraceEvent]:
    """A number that changes; of several values at the same time the last one counts.

    Args:
      pid: number of the process.
      name: of the number.
      unit: of the number.
      values: (microsecond, value), in order.
    """
    return [
        {"ph": "C", "name": name, "pid": pid, "ts": time_us, "args": {unit: value}}
        for time_us, value in dict(values).items()
    ]


def write_trace(events: List[TraceEvent], path: str, about: Optional[TraceEvent] = None) -> str:
    """Writes a trace to a file; returns its path.

    Args:
      events: all events.
      path: of the file.
      about: what else is known of the trace.
    """
    trace: TraceEvent = {"traceEvents": events, "displayTimeUnit": "ms"}
    if about:
        trace["otherData"] = about
    text = json.dumps(trace)  # one call: json.dump takes five times as long
    with open(path, "w") as target:
        target.write(text)
    return path


def _rows(slices: Iterable[TraceSlice]) -> List[List[TraceSlice]]:
    """Distributes slices over rows so that no two overlap in a row."""
    rows: List[List[TraceSlice]] = []
    for one in sorted(slices, key=lambda one: (one.start_ns, one.end_ns)):
        free: Optional[List[TraceSlice]] = next((row for row in rows if row[-1].end_ns <= one.start_ns), None)
        if free is None:
            rows.append([one])
        else:
            free.append(one)
    return rows


def _complete(pid: int, tid: int, one: TraceSlice) -> TraceEvent:
    return {
        "ph": "X",
        "name": one.name,
        "cat": one.category,
        "ts": one.start_ns / 1e3,
        "dur": (one.end_ns - one.start_ns) / 1e3,
        "pid": pid,
        "tid": tid,
        "args": one.args,
    }
