"""The memory of a step: ops allocate and free buffers when they start and end.

    op         x --> Tanh --> MatMul --> Tanh --> ...
    buffers    |-- a --------|                          a is free once its last consumer has run
                        |-- b ------------------ ...    the second Tanh takes the memory of MatMul: b, too

The engine says when ops start and end; nothing here knows of threads.
"""

from typing import Dict, List, NamedTuple, Sequence

from epl.planner.simulator.program import SimulatedProgram


class Peak(NamedTuple):
    """The moment at which a device holds most.

    Attributes:
      bytes: bytes that ops have allocated, without persistent memory.
      by_role: the same by role.
      op: the op that started then; -1 if nothing is ever allocated.
      seconds: the time from the begin of the step.
    """

    bytes: int
    by_role: Dict[str, int]
    op: int
    seconds: float


class BufferChange(NamedTuple):
    """Ops allocate bytes, or free them if `bytes` is below 0.

    Attributes:
      seconds: the time from the begin of the step.
      role: of the memory.
      bytes: how many.
    """

    seconds: float
    role: str
    bytes: int


class Memory:
    """The buffers of a run, and what every device holds.

    Lists of buffers are by slot: each output of each op has one. The last slot, number -1, stands for all persistent
    memory and is never freed. `owner` says which slot has the memory of an output: another one for an alias.
    """

    def __init__(self, program: SimulatedProgram, temporary_role: str) -> None:
        ops = program.ops
        self._ops = ops
        self._temporary_role = temporary_role
        self._first: List[int] = []  # slot of each op
        slots = 0
        for op in ops:
            self._first.append(slots)
            slots += len(op.outputs)
        first = self._first
        self._inputs = [[first[p] + output if p >= 0 else -1 for p, output in op.inputs] for op in ops]
        self._references = [0] * (slots + 1)  # ops that still need the memory
        references = self._references
        for inputs in self._inputs:
            for slot in inputs:
                references[slot] += 1
        for number in program.fetched:
            for slot in range(first[number], first[number] + len(ops[number].outputs)):
                references[slot] += 1
        references[-1] += slots + 1
        self._unused: Dict[int, List[int]] = {}  # op -> its outputs that no op takes
        for number, op in enumerate(ops):
            for slot in range(first[number], first[number] + len(op.outputs)):
                if not references[slot]:
                    self._unused.setdefault(number, []).append(slot)
        self._owner = [-1] * (slots + 1)
        self._device = [0] * (slots + 1)
        self._bytes = [0] * (slots + 1)
        self._roles = [""] * (slots + 1)
        devices = len(program.pools)
        self._held = [0] * devices
        self._most = [0] * devices
        self._most_at = [(-1, 0.0, 0)] * devices  # op, seconds, changes up to then
        self.changes: List[List[BufferChange]] = [[] for _ in range(devices)]

    def start(self, number: int, now: float) -> None:
        """An op allocates its outputs and its temporary memory."""
        device, _, _, _, _, outputs, temporary, (at, added), _ = self._ops[number]
        inputs, owners = self._inputs[number], self._owner
        if added:
            owner = owners[inputs[at]]
            self._add(self._device[owner], self._roles[owner], added, now)
            self._bytes[owner] += added
        slot = self._first[number]
        for size, alias, in_place, role, persistent in outputs:
            if not persistent:
                if alias >= 0:
                    owner = owners[inputs[alias]]
                    self._references[owner] += self._references[slot]
                else:
                    owner = self._free_to_take(inputs, in_place, device, size) if in_place else -1
                    if owner >= 0:
                        self._add(device, self._roles[owner], -size, now)
                        self._references[owner] += self._references[slot]
                    else:
                        owner = slot
                        self._device[slot] = device
                        self._bytes[slot] = size
                    self._roles[owner] = role
                    self._add(device, role, size, now)
                owners[slot] = owner
            slot += 1
        if temporary:
            self._add(device, self._temporary_role, temporary, now)
        if self._held[device] > self._most[device]:
            self._most[device] = self._held[device]
            self._most_at[device] = (number, now, len(self.changes[device]))

    def _free_to_take(self, inputs: Sequence[int], in_place: Sequence[int], device: int, size: int) -> int:
        """A slot whose memory an output may take, -1 if there is none: nothing else needs it, and it has that size."""
        for at in in_place:
            owner = self._owner[inputs[at]]
            if self._references[owner] == 1 and self._bytes[owner] == size and self._device[owner] == device:
                return owner
        return -1

    def finish(self, number: int, now: float) -> None:
        """Frees the inputs that no other op needs, and outputs that no op takes."""
        owners, references = self._owner, self._references
        op = self._ops[number]
        if op.temporary:
            self._add(op.device, self._temporary_role, -op.temporary, now)
        for slot in self._inputs[number]:
            owner = owners[slot]
            references[owner] -= 1
            if not references[owner]:
                self._free(owner, now)
        for slot in self._unused.get(number, ()):
            if not references[owners[slot]]:
                self._free(owners[slot], now)

    def _free(self, slot: int, now: float) -> None:
        self._add(self._device[slot], self._roles[slot], -self._bytes[slot], now)
        self._bytes[slot] = 0

    def _add(self, device: int, role: str, size: int, now: float) -> None:
        """Adds to what a device holds, or takes away."""
        if size:
            self._held[device] += size
            self.changes[device].append(BufferChange(now, role, size))

    def peaks(self) -> List[Peak]:
        """The peak of each device."""
        peaks = []
        for most, (op, seconds, count), changes in zip(self._most, self._most_at, self.changes):
            by_role: Dict[str, int] = {}
            for _, role, size in changes[:count]:
                by_role[role] = by_role.get(role, 0) + size
            peaks.append(Peak(most, by_role, op, seconds))
        return peaks
