"""One trace out of those that the workers of a job wrote of one step; the command `epl-trace merge`.

    trace_step_2_worker_0.json   worker 0 CPU:0   pid 1       =>   worker 0 CPU:0   pid 1
    trace_step_2_worker_1.json   worker 1 CPU:0   pid 1001         worker 1 CPU:0   pid 2   times + 1.2 ms

The times of an event are those of the clock of its machine; workers of one machine share a clock. No rank ends an
all-reduce before every rank has begun it, so each collective bounds what a clock is ahead of another:

    first clock    begin0 ----------- end0         begin0 <= end1 + shift
    other clock        begin1 ------------ end1    begin1 + shift <= end0

If the bounds of all collectives allow no shift, a clock stays as it is; otherwise it gets the middle of what they
allow. TensorFlow is not imported here.
"""

import argparse
import json
import os
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.utils.errors import TraceError
from epl.utils.trace_events import TraceEvent, process_events, write_trace

_Pid = Tuple[int, Any]  # number of the file, process in it
_Key = Tuple[str, str, int]  # communicator, key, execution

# Kinds of collectives in which each rank needs data of all others: none ends before all have begun.
_ENDS_AFTER_ALL_BEGAN = frozenset(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])


class TracedProcess(NamedTuple):
    """A process of a trace: a device of a worker.

    Attributes:
      title: its name, which begins with the worker.
      worker: index of the worker.
      clock: the machine, whose clock the times are of.
    """

    title: str
    worker: int
    clock: str


class ClockShift(NamedTuple):
    """What was added to the times of a machine.

    Attributes:
      clock: the machine.
      shift_us: microseconds; None if nothing joins the machine with the first one, so that its times stay.
      error_us: how far from it the true shift is at most, in microseconds.
      collectives: number of those that bound the shift.
    """

    clock: str
    shift_us: Optional[float]
    error_us: float
    collectives: int


class MergedTrace(NamedTuple):
    """What a merge made.

    Attributes:
      events: of all workers.
      processes: the processes, in the order in which they are shown.
      shifts: one for each machine but that of the first worker.
    """

    events: List[TraceEvent]
    processes: Tuple[TracedProcess, ...]
    shifts: Tuple[ClockShift, ...]


class _Run(NamedTuple):
    """A collective by one clock, microseconds: the begin of its last rank there, and the end of its first one."""

    begin: float
    end: float


class WorkerTrace(NamedTuple):
    """The trace of one session.

    Attributes:
      path: the file.
      events: its events.
      run: number of the traced run, if the trace has it.
    """

    path: str
    events: List[TraceEvent]
    run: Optional[int]


def merge(paths: Sequence[str], path: str) -> MergedTrace:
    """Writes the traces that several workers made of one step as one file.

    Args:
      paths: the traces, one of each worker.
      path: the file to be written.

    Raises:
      TraceError: a file is no trace, or the traces are not those of different workers in one step.
      OSError: a file cannot be read or written.
    """
    merged = merge_traces([_read(one) for one in paths])
    write_trace(merged.events, path)
    return merged


def merge_traces(traces: Sequence[WorkerTrace]) -> MergedTrace:
    """The events of all traces, with processes of their own and times of one clock.

    Raises:
      TraceError: the traces are not those of different workers in one step.
    """
    _refuse_different_runs(traces)
    processes = _processes(traces)
    _refuse_same_worker(traces, processes)
    order = sorted(processes, key=lambda pid: (processes[pid].worker, pid[0], _number(pid[1])))
    shifts = _shifts(_collectives(traces, processes), [processes[pid].clock for pid in order])
    by_clock = {shift.clock: shift.shift_us or 0.0 for shift in shifts}
    events: List[TraceEvent] = []
    for number, pid in enumerate(order, 1):
        events += process_events(number, processes[pid].title)
    numbers = {pid: number for number, pid in enumerate(order, 1)}
    for file, trace in enumerate(traces):
        for event in trace.events:
            if event.get("name") in ("process_name", "process_sort_index") and event.get("ph") == "M":
                continue
            pid = (file, event["pid"])
            moved = dict(event, pid=numbers[pid])
            if "ts" in event:
                moved["ts"] = event["ts"] + by_clock.get(processes[pid].clock, 0.0)
            events.append(moved)
    return MergedTrace(events, tuple(processes[pid] for pid in order), shifts)


def _read(path: str) -> WorkerTrace:
    """A trace: the object with `traceEvents` that Chrome reads, or the bare list of events."""
    with open(path, encoding="utf-8") as source:
        try:
            content = json.load(source)
        except ValueError as error:
            raise TraceError(
                f"{path} is not JSON ({error}), so it is no Chrome trace: give the files that TraceHook wrote. A file "
                "that ends early is of a worker that was killed while it wrote."
            ) from None
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not all(isinstance(one, dict) and "pid" in one for one in events):
        raise TraceError(
            f"{path} is JSON but no Chrome trace: expected traceEvents, a list of events that each have a pid. Give "
            "the files that TraceHook wrote."
        )
    if not events:
        raise TraceError(f"{path} is a Chrome trace without events: leave it out.")
    other = content.get("otherData") if isinstance(content, dict) else None
    return WorkerTrace(path, events, other.get("run") if isinstance(other, dict) else None)


def _number(pid: Any) -> Tuple[int, str]:
    return (pid, "") if isinstance(pid, int) else (0, str(pid))


def _refuse_different_runs(traces: Sequence[WorkerTrace]) -> None:
    known = [trace for trace in traces if trace.run is not None]
    for trace in known[1:]:
        if trace.run != known[0].run:
            raise TraceError(
                f"{known[0].path} is of run {known[0].run} and {trace.path} of run {trace.run}: give the traces that "
                "the workers wrote of one run."
            )


def _processes(traces: Sequence[WorkerTrace]) -> Dict[_Pid, TracedProcess]:
    """The processes of all files. A trace that names no worker is of the worker at its place in the command."""
    found: Dict[_Pid, TracedProcess] = {}
    for file, trace in enumerate(traces):
        named = {
            event["pid"]: event.get("args", {})
            for event in trace.events
            if event.get("ph") == "M" and event.get("name") == "process_name"
        }
        for event in trace.events:
            pid = event["pid"]
            if (file, pid) in found:
                continue
            args = named.get(pid, {})
            worker = args.get("worker", file)
            title = str(args.get("name", f"process {pid}"))
            prefix = f"worker {worker}"
            title = title if title == prefix or title.startswith(prefix + " ") else f"{prefix} {title}"
            found[file, pid] = TracedProcess(title, worker, args.get("machine") or f"that of {trace.path}")
    return found


def _refuse_same_worker(traces: Sequence[WorkerTrace], processes: Mapping[_Pid, TracedProcess]) -> None:
    file_of: Dict[int, int] = {}
    for (file, _), process in sorted(processes.items(), key=lambda item: item[0][0]):
        first = file_of.setdefault(process.worker, file)
        if first != file:
            raise TraceError(
                f"{traces[first].path} and {traces[file].path} are both of worker {process.worker}: give one trace of "
                "each worker of the job."
            )


def _collectives(traces: Sequence[WorkerTrace], processes: Mapping[_Pid, TracedProcess]) -> Dict[str, Dict[_Key, _Run]]:
    """By clock, the collectives that end after each rank has begun."""
    of_devices: Dict[Tuple[_Pid, str, str], List[_Run]] = {}
    for file, trace in enumerate(traces):
        for event in trace.events:
            args = event.get("args", {})
            row = COLLECTIVE_OP_TYPES.get(args.get("type", "")) if event.get("ph") == "X" else None
            if row is not None and row.kind in _ENDS_AFTER_ALL_BEGAN and "communicator" in args and "key" in args:
                place = ((file, event["pid"]), args["communicator"], args["key"])
                of_devices.setdefault(place, []).append(_Run(event["ts"], event["ts"] + event.get("dur", 0.0)))
    found: Dict[str, Dict[_Key, _Run]] = {}
    for (pid, communicator, key), runs in of_devices.items():
        for execution, run in enumerate(sorted(runs)):
            _add(found.setdefault(processes[pid].clock, {}), (communicator, key, execution), run)
    return found


def _add(runs: Dict[_Key, _Run], key: _Key, run: _Run) -> None:
    """Adds ranks of a collective."""
    known = runs.get(key, run)
    runs[key] = _Run(max(known.begin, run.begin), min(known.end, run.end))


def _shifts(runs: Mapping[str, Dict[_Key, _Run]], clocks: Sequence[str]) -> Tuple[ClockShift, ...]:
    """The shifts of all clocks to the first of `clocks`; next comes that which has most in common with those before."""
    first, *left = dict.fromkeys(clocks)
    placed = dict(runs.get(first, {}))  # the collectives, by the first clock
    shifts: Dict[str, ClockShift] = {}
    for _ in left:
        clock = max((one for one in left if one not in shifts), key=lambda one: len(_common(runs, one, placed)))
        own = runs.get(clock, {})
        shifts[clock] = _shift(clock, [(placed[key], own[key]) for key in _common(runs, clock, placed)])
        shift = shifts[clock].shift_us
        if shift is not None:
            for key, run in own.items():
                _add(placed, key, _Run(run.begin + shift, run.end + shift))
    return tuple(shifts[clock] for clock in left)


def _shift(clock: str, pairs: Sequence[Tuple[_Run, _Run]]) -> ClockShift:
    """The shift of a clock, given its collectives by the first clock and by its own."""
    if not pairs:
        return ClockShift(clock, None, 0.0, 0)
    low = max(there.begin - here.end for there, here in pairs)
    high = min(there.end - here.begin for there, here in pairs)
    shift = 0.0 if low <= 0 <= high else (low + high) / 2
    return ClockShift(clock, shift, max(abs(low - shift), abs(high - shift)), len(pairs))


def _common(runs: Mapping[str, Dict[_Key, _Run]], clock: str, placed: Mapping[_Key, _Run]) -> List[_Key]:
    return [key for key in runs.get(clock, {}) if key in placed]


def describe(merged: MergedTrace) -> str:
    """The processes of a merged trace, and what was done to its times, in lines for a person."""
    lines = ["  " + process.title for process in merged.processes]
    for clock, shift, error, count in merged.shifts:
        if shift is None:
            text = "not aligned: no collective joins it with that of the first worker"
        elif not shift:
            text = f"agrees with that of the first worker within {error / 1e3:.3f} ms, by {count} collective(s)"
        else:
            text = f"{shift / 1e3:+.3f} ms, within {error / 1e3:.3f} ms, by {count} collective(s)"
        lines.append(f"clock of {clock}: {text}")
    return "\n".join(lines)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command `epl-trace`.

    Args:
      argv: the command line without the program's name; None: that of this process.

    Returns:
      The exit code: 0, or 1 if the traces cannot be merged; wrong options end the process with 2.
    """
    parser = argparse.ArgumentParser(
        "epl-trace", description="Works on the traces that epl.profiler's TraceHook wrote."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    command = commands.add_parser(
        "merge", help="join the traces that the workers wrote of one step", description=(__doc__ or "").split("\n")[0]
    )
    command.add_argument("out", metavar="OUT", help="the file to be written")
    command.add_argument("traces", metavar="IN", nargs="+", help="trace_step_<run>_worker_<w>.json, one of each worker")
    command.add_argument("--overwrite", action="store_true", help="replace OUT if it is there")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if options.command is None:
        parser.error("which command? epl-trace merge OUT IN [IN ...]")
    if os.path.exists(options.out) and not options.overwrite:
        parser.error(
            f"{options.out} is there already: the file to be written comes first, then the traces. Name another one, "
            "or give --overwrite."
        )
    if any(os.path.realpath(one) == os.path.realpath(options.out) for one in options.traces):
        parser.error(f"{options.out} would be written and read: the file to be written comes first, then the traces.")
    try:
        merged = merge(options.traces, options.out)
    except (TraceError, OSError) as error:
        sys.stderr.write(f"epl-trace: error: {error}\n")
        return 1
    sys.stdout.write(f"{options.out}: {len(merged.processes)} process(es)\n{describe(merged)}\n")
    return 0
