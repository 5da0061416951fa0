"""The algorithms of the core between processes, for tensors in host memory, as steps.

    devices        0 1 | 2 3    of processes 0 and 1: the ranks of a process meet in its memory first
    direct         each process sends each other process its part, all at the same time: their latencies overlap
    hierarchical   the same inside each machine, then between the processes of equal place

An all-reduce is an exchange of the whole tensor, or, between three processes or more, of a part to each process that
reduces it, and back (csrc/comm/program.cc). A reduce-scatter reduces in the memory of the process first.
"""

from typing import Dict, FrozenSet, List, Sequence

from epl.planner.machine.collective_algorithms import FLAT_BROADCAST_BYTES
from epl.planner.machine.collective_steps import (
    Algorithm,
    BySize,
    Devices,
    Fastest,
    Rounds,
    RoundSequence,
    each,
    equally_many,
    teams_of,
    words,
)
from epl.planner.machine.routes import Channel, Routes

_REDUCES = ("all-reduce", "reduce-scatter")
_SENDS_OUT = ("all-reduce", "all-gather", "broadcast")


class ProcessAlgorithms:
    """Algorithms of the processes of a job.

    Attributes:
      devices: of each process.
      by_machines: whether collectives are hierarchical where the machines fit.
    """

    def __init__(self, routes: Routes, devices: int, by_machines: bool) -> None:
        self._routes, self.devices, self.by_machines = routes, devices, by_machines

    def build(self, kind: str, devices: Devices) -> Algorithm:
        """The algorithm of a kind of collective between ordered devices, at least two."""
        processes = self._processes(devices)
        if kind == "all-to-all" or len(processes) == 1:
            return Fastest((("direct", self._direct(kind, [devices], 1.0, "")),))
        firsts = tuple(process[0] for process in processes)
        machines = self._machines(firsts) if self.by_machines else []
        several = [process for process in processes if len(process) > 1]
        before = [each(lambda one: self._meet("reduce", one), several)] if several and kind in _REDUCES else []
        after = [each(lambda one: self._meet("broadcast", one), several)] if several and kind in _SENDS_OUT else []

        def whole(name: str, between: Sequence[Algorithm]) -> Algorithm:
            return Fastest(((name, RoundSequence((*before, *between, *after))),))

        flat = whole("direct", [self._direct(kind, [firsts], 1.0, "")])
        if not machines:
            return flat
        by_machines = whole("hierarchical", self._hierarchical(kind, machines))
        return BySize(FLAT_BROADCAST_BYTES, flat, by_machines) if kind == "broadcast" else by_machines

    def _processes(self, devices: Devices) -> List[Devices]:
        found: Dict[int, List[int]] = {}
        for device in devices:
            found.setdefault(device // self.devices, []).append(device)
        return [tuple(own) for own in found.values()]

    def _machines(self, firsts: Devices) -> List[Devices]:
        """The processes of each machine; none if they do not fit (`HasMachines` of csrc/comm/machine_layout.h)."""
        parts = self._routes.parts(firsts) if self._routes.in_several_nodes(firsts) else []
        return parts if parts and equally_many(parts) and len(parts[0]) > 1 else []

    def _hierarchical(self, kind: str, machines: Sequence[Devices]) -> List[Algorithm]:
        where = self._routes.between(machines)
        teams, share = teams_of(machines), 1.0 / len(machines[0])

        def inside(name: str) -> Algorithm:
            return each(lambda part: self._direct(name, [part], 1.0, ""), machines)

        across = self._direct(kind, teams, share, where)
        first = [inside("reduce-scatter")] if kind in _REDUCES else []
        if kind == "broadcast":
            first = [self._direct("scatter", [machines[0]], 1.0, "")]
        return [*first, across, *([inside("all-gather")] if kind in _SENDS_OUT else [])]

    def _direct(self, kind: str, teams: Sequence[Devices], share: float, where: str) -> Algorithm:
        """An exchange in teams that do the same at the same time."""
        what, size = words(kind, "direct", where), len(teams[0])
        if kind == "broadcast":
            messages = [(team[0], other) for team in teams for other in team[1:]]
            return Rounds(what, 1, share, self._routes.channels(messages))
        channels, others = self._exchange(teams), size - 1
        if kind != "all-reduce":
            return Rounds(what, 1, share * others / size, channels)
        options = [Rounds(what, 1, share * others, channels)]
        if size > 2:
            options.append(Rounds(what, 2, share * others / size, channels))
        return Fastest(tuple(("direct", one) for one in options))

    def _exchange(self, teams: Sequence[Devices]) -> FrozenSet[Channel]:
        """The channel of what a device sends to the others, all at once: the longest latency counts once."""
        firsts = [(team[0], other) for team in teams for other in team[1:]]
        latency = max(channel.latency for channel in self._routes.channels(firsts))
        return frozenset(channel._replace(latency=latency) for channel in self._routes.exchange(teams))

    def _meet(self, what: str, process: Devices) -> Algorithm:
        """A reduce to the first device of a process, or a broadcast from it, one device after the other."""
        messages = [(process[0], other) for other in process[1:]]
        if what == "reduce":
            messages = [(other, first) for first, other in messages]
        return Rounds(words(what, "in memory", ""), 1, 1.0, self._routes.channels(messages))
