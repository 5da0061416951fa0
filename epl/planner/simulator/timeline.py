"""A simulated run as the events of a Chrome trace, in the format of a traced step (`epl/profiler/chrome_trace.py`).

    process   the critical path; each device; the links
    lane      of a device: the ops that it runs, and the collectives that hold no link; of the links: one for each pool
    counter   the bytes that a device holds

The numbers of the processes are above those of a traced step, so that the events of both may be put into one file.
"""

from typing import Dict, List, NamedTuple, Sequence, Set, Tuple

from epl.planner.simulator.critical_path import critical_path
from epl.planner.simulator.engine import SimulatedRun
from epl.planner.simulator.memory import held_over_time
from epl.planner.simulator.program import SimulatedProgram
from epl.utils.trace_events import TraceEvent, TraceSlice, counter_events, lane_events, process_events

FIRST_PID = 1000001
_SECOND = 1e9  # in nanoseconds


class ProgramNames(NamedTuple):
    """What numbers of a program mean, for people.

    Attributes:
      ops: name of each op.
      kinds: kind of each op, such as "forward"; slices of one kind have one colour.
      devices: name of each device.
      pools: name of each pool.
    """

    ops: Sequence[str]
    kinds: Sequence[str]
    devices: Sequence[str]
    pools: Sequence[str]


def timeline_events(
    program: SimulatedProgram,
    run: SimulatedRun,
    names: ProgramNames,
    persistent: Sequence[int] = (),
    begin_us: float = 0.0,
) -> List[TraceEvent]:
    """The events of a run.

    Args:
      program: the program.
      run: what `simulate` returned for it.
      names: of the program.
      persistent: bytes that each device holds all the time, such as those of variables; () for none.
      begin_us: the time of the begin of the step, such as that of the first event of a traced step.

    Raises:
      ValueError: there are not as many names as there are ops, devices or pools.
    """
    _check(program, names)
    slices = [_slice(names, run, number, begin_us) for number in range(len(program.ops))]
    path = []
    for step in critical_path(program, run):
        one = slices[step.op]
        path.append(one._replace(args={**one.args, "starts by": step.reason}))
    events = process_events(FIRST_PID, "simulated: critical path")
    events += lane_events(FIRST_PID, [("critical path", path)])
    of_devices, of_pools = _lanes(program, slices)
    pid = FIRST_PID
    for device, name in enumerate(names.devices):
        pid += 1
        events += process_events(pid, f"simulated: {name}")
        ops, collectives = of_devices[device]
        events += lane_events(pid, [(names.pools[program.pools[device]], ops), ("collectives", collectives)])
        always = persistent[device] if persistent else 0
        steps = [(begin_us, always)] if persistent else []
        steps += [(begin_us + 1e6 * seconds, always + held) for seconds, held in held_over_time(run.changes[device])]
        events += counter_events(pid, "live bytes", "bytes", steps)
    if of_pools:
        events += process_events(pid + 1, "simulated: links")
        events += lane_events(pid + 1, [(names.pools[pool], of_pools[pool]) for pool in sorted(of_pools)])
    return events


def _check(program: SimulatedProgram, names: ProgramNames) -> None:
    counts = (len(program.ops), len(program.ops), len(program.pools), len(program.threads))
    for what, expected, given in zip(names._fields, counts, names):
        if len(given) != expected:
            raise ValueError(f"a timeline got {len(given)} names of {what}: expected {expected}, one for each")


def _slice(names: ProgramNames, run: SimulatedRun, number: int, begin_us: float) -> TraceSlice:
    cause = run.causes[number]
    args = {"op": number, "started by the end of": names.ops[cause] if cause >= 0 else ""}
    start, end = (1e3 * begin_us + _SECOND * seconds for seconds in (run.starts[number], run.ends[number]))
    return TraceSlice(names.ops[number], names.kinds[number], start, end, args)


def _lanes(
    program: SimulatedProgram, slices: Sequence[TraceSlice]
) -> Tuple[List[Tuple[List[TraceSlice], List[TraceSlice]]], Dict[int, List[TraceSlice]]]:
    """Per device, the ops that its pool runs, and ranks that hold no thread; by pool, what names it.

    Ranks of one collective that name the same pool share a thread of it, so one of them is shown.
    """
    collective_of = {rank: number for number, ranks in enumerate(program.collectives) for rank in ranks}
    of_devices: List[Tuple[List[TraceSlice], List[TraceSlice]]] = [([], []) for _ in program.pools]
    of_pools: Dict[int, List[TraceSlice]] = {}
    shown: Set[Tuple[int, int]] = set()
    for number, op in enumerate(program.ops):
        if op.pool in (-1, program.pools[op.device]):
            of_devices[op.device][number in collective_of].append(slices[number])
        elif number not in collective_of or (collective_of[number], op.pool) not in shown:
            of_pools.setdefault(op.pool, []).append(slices[number])
            if number in collective_of:
                shown.add((collective_of[number], op.pool))
    return of_devices, of_pools
