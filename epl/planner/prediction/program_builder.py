"""A simulated program as it is built, and what each of its ops stands for."""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.planner.simulator.program import SharedCores, SimulatedOp, SimulatedOutput, SimulatedProgram

ACTIVATIONS, GRADIENTS, COMMUNICATION = "activations", "gradients", "communication"  # as in the memory estimate

Buffer = Tuple[int, int]  # op of the program, and which of its outputs
Key = Tuple[object, ...]


class LoweredKind:
    """What an op of the program does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    UPDATE = "update"
    HOST_UPDATE = "host update"
    COLLECTIVE = "collective"
    TRANSFER = "transfer"


COMPUTES = (LoweredKind.FORWARD, LoweredKind.BACKWARD, LoweredKind.RECOMPUTE, LoweredKind.UPDATE)
COMMUNICATES = (LoweredKind.COLLECTIVE, LoweredKind.TRANSFER)


class LoweredOp(NamedTuple):
    """What an op of the program stands for.

    Attributes:
      name: for people.
      kind: a constant of LoweredKind.
      decision: of a collective or a transfer, what asks for it; "" for others.
      collective: its name; "" for others.
      bytes: that a collective or a transfer is for.
      devices: devices of the machine that take part.
      ops: number of the first op of the model that it runs, and of the one after the last; (0, 0) for others.
      micro_batch: of a pass; -1 for others.
      way: of a collective of rows, a constant of RowWay; "" for others.
    """

    name: str
    kind: str
    decision: str = ""
    collective: str = ""
    bytes: float = 0.0
    devices: int = 1
    ops: Tuple[int, int] = (0, 0)
    micro_batch: int = -1
    way: str = ""


class LoweredStep(NamedTuple):
    """A step as a program.

    Attributes:
      program: the program.
      ops: what each of its ops stands for.
    """

    program: SimulatedProgram
    ops: Tuple[LoweredOp, ...]


class ProgramBuilder:
    """Adds ops to a program.

    Attributes:
      ops: so far.
    """

    def __init__(self, cores: Sequence[Optional[SharedCores]]) -> None:
        """Args: cores: of each device, which runs one op at a time."""
        self.ops: List[SimulatedOp] = []
        self._told: List[LoweredOp] = []
        self._devices, self._cores = len(cores), tuple(cores)
        self._pools: Dict[Key, int] = {}
        self._collectives: Dict[Key, List[int]] = {}

    def add(
        self,
        told: LoweredOp,
        device: int,
        seconds: float,
        inputs: Sequence[Buffer] = (),
        after: Sequence[int] = (),
        outputs: Sequence[SimulatedOutput] = (),
        temporary: int = 0,
        pool: Key = (),
    ) -> int:
        """Adds an op; its number.

        Args:
          told: what it stands for.
          device: where it runs, and where its outputs are.
          seconds: how long it runs.
          inputs: buffers that it takes.
          after: other ops that it waits for.
          outputs: its buffers.
          temporary: bytes that it allocates while it runs.
          pool: names the link that carries it; () if the device runs it.
        """
        # A device runs its ops in the order in which they become ready, as a GPU does: so it names its own pool.
        number = device if not pool else self._devices + self._pools.setdefault(pool, len(self._pools))
        self.ops.append(
            SimulatedOp(
                device, seconds, False, tuple(inputs), tuple(after), tuple(outputs), temporary, (-1, 0), number
            )
        )  # fmt: skip
        self._told.append(told)
        return len(self.ops) - 1

    def join(self, collective: Key, number: int) -> None:
        """Makes an op a rank of a collective."""
        self._collectives.setdefault(collective, []).append(number)

    def done(self) -> LoweredStep:
        """The program."""
        program = SimulatedProgram(
            self.ops,
            tuple(range(self._devices)),
            (1,) * (self._devices + len(self._pools)),
            (),
            tuple(tuple(ranks) for ranks in self._collectives.values()),
            self._cores if any(self._cores) else (),
        )
        return LoweredStep(program, tuple(self._told))


def output(size: float, role: str, in_place: Tuple[int, ...] = ()) -> SimulatedOutput:
    """An output of some bytes, that takes the memory of an input if it can."""
    return SimulatedOutput(int(round(size)), -1, in_place, role, False)
