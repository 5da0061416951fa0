"""What collectives cost on a machine: the algorithms of the job's transport in the alpha-beta model, and the fastest.

    n devices, B bytes, latency a, bandwidth b, on equal links:

    NCCL
    all-reduce       ring           2 (n - 1) rounds of B / n       2 (n - 1) a + 2 (n - 1) / n B / b
                     tree           2 log2(n) rounds of B           2 log2(n) (a + B / b)
                     hierarchical   reduce-scatter inside each part, all-reduce of the shards between parts, all-gather
    reduce-scatter   ring           n - 1 rounds of B / n
    all-gather       ring           n - 1 rounds of B / n
    broadcast        ring           a chain of n - 1 hops in pieces: a (n - 2) + B / b + 2 sqrt(a (n - 2) B / b)
    all-to-all       direct         n - 1 messages of B / n from each device

    the core, between processes on CPUs
    all-reduce       direct         n - 1 messages of B from each, a + (n - 1) B / b, or of B / n, twice, where n > 2
    others           direct         n - 1 messages of B / n, a + (n - 1) / n B / b; a broadcast: n - 1 of B from one
    all but the last hierarchical   as above; all-to-all never is

`collective_algorithms.py` has the table. Sources: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication
Operations in MPICH, 2005, sections 3 and 4; the names of rings and trees are NCCL's. Arithmetic and copies in memory
count nothing.
"""

import math
from typing import Dict, Sequence, Tuple

from epl.planner.machine.collective_algorithms import ALGORITHMS, BY_MACHINES, KINDS, NCCL
from epl.planner.machine.collective_steps import NOTHING, Algorithm, CollectiveCost, Devices
from epl.planner.machine.machine import Machine
from epl.planner.machine.nccl_algorithms import NcclAlgorithms
from epl.planner.machine.process_algorithms import ProcessAlgorithms
from epl.planner.machine.routes import Routes
from epl.utils.errors import MachineError


class CollectiveCosts:
    """Costs of messages and collectives of a job on one machine.

    Attributes:
      machine: the machine.
      transport: a transport of collective_algorithms.py.
      devices: of each process; on CPUs, those of one process meet in its memory.
      routes: the ways between its devices.
    """

    def __init__(self, machine: Machine, transport: str = NCCL, devices: int = 1) -> None:
        self.machine, self.transport, self.devices = machine, transport, devices
        self.routes = Routes(machine)
        self._known: Dict[Tuple[str, Devices], Algorithm] = {}

    def point_to_point(self, source: int, target: int, nbytes: float) -> float:
        """Seconds of a message of `nbytes` from one device to another one, alone on its links.

        Raises:
          MachineError: the machine lacks a device.
        """
        if source == target:
            return 0.0
        self.routes.ordered([source, target])
        (channel,) = self.routes.channels([(source, target)])
        return channel.latency + nbytes / channel.bandwidth

    def cost(self, collective: str, devices: Sequence[int], nbytes: float) -> CollectiveCost:
        """The cost of a collective by its fastest algorithm.

        Args:
          collective: "all-reduce", "reduce-scatter", "all-gather", "broadcast" or "all-to-all".
          devices: numbers of devices of the machine, in any order. The first by their place broadcasts.
          nbytes: bytes of the full tensor: what each device has before an all-reduce, a reduce-scatter and an
            all-to-all, after an all-gather and a broadcast.

        Raises:
          MachineError: the collective is unknown, or the machine lacks a device.
        """
        if collective not in KINDS:
            raise MachineError(f"there is no cost of {collective!r}; expected one of {', '.join(KINDS)}.")
        if not nbytes >= 0 or math.isinf(nbytes):
            raise MachineError(f"a collective of {nbytes} bytes has no cost; expected a number of bytes from 0 on.")
        key = (collective, tuple(devices))
        if key not in self._known:
            ordered = self.routes.ordered(devices)
            self._known[key] = self._algorithm(collective, ordered) if len(ordered) > 1 else NOTHING
        return self._known[key].cost(nbytes)

    def _algorithm(self, collective: str, devices: Devices) -> Algorithm:
        if self.transport == NCCL:
            return NcclAlgorithms(self.routes).build(collective, devices)
        by_machines = BY_MACHINES in ALGORITHMS[self.transport][collective]
        return ProcessAlgorithms(self.routes, self.devices, by_machines).build(collective, devices)
