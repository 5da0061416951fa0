"""The memory of a step: ops allocate and free buffers when they start and end.

    op         x --> Tanh --> MatMul --> Tanh --> ...
    buffers    |-- a --------|                          a is free once its last consumer has run
                        |-- b ------------------ ...    the second Tanh takes the memory of MatMul: b, too

The engine says when ops start and end; nothing here knows of threads.
"""

import bisect
from typing import Dict, List, NamedTuple, Sequence, Tuple

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


# (seconds from the begin of the step, role, bytes): bytes that are allocated then, or freed if they are below 0.
BufferChange = Tuple[float, str, int]


class Memory:
    """The buffers of a run, and what every device holds.

    Lists of buffers are by slot: each output of each op has one. The last slot, number -1, stands for all persistent
    memory and is never freed. `owner` says which slot has the memory of an output: another one for an alias.
    """

    def __init__(self, program: SimulatedProgram, temporary_role: str) -> None:
        self._ops = program.ops
        self._temporary_role = temporary_role
        self._first: List[int] = []  # slot of each op
        slots = 0
        for op in program.ops:
            self._first.append(slots)
            slots += len(op.outputs)
        self._references = [0] * (slots + 1)  # ops that still need the memory
        self._unused: Dict[int, List[int]] = {}  # op -> its outputs that no op takes
        self._count_references(program)
        self._owner = [-1] * (slots + 1)
        self._device = [0] * (slots + 1)
        self._bytes = [0] * (slots + 1)
        self._roles = [""] * (slots + 1)
        devices = len(program.pools)
        self._held = [0] * devices
        self._most = [0] * devices
        self._most_at = [(-1, 0.0, 0)] * devices  # op, seconds, number of changes up to then
        self.changes: List[List[BufferChange]] = [[] for _ in range(devices)]

    def _count_references(self, program: SimulatedProgram) -> None:
        first, references = self._first, self._references
        for op in program.ops:
            for producer, output in op.inputs:
                if producer >= 0:
                    references[first[producer] + output] += 1
        references[-1] = sum(references) + 1
        for number in program.fetched:
            for slot in range(first[number], first[number] + len(program.ops[number].outputs)):
                references[slot] += 1
        for slot, count in enumerate(references):
            if not count:
                self._unused.setdefault(bisect.bisect_right(first, slot) - 1, []).append(slot)

    def start(self, number: int, now: float) -> None:
        """An op allocates its outputs and its temporary memory."""
        device, _, _, inputs, _, outputs, temporary, (at, grown), _ = self._ops[number]
        if grown:
            owner = self._owner_of(inputs[at])
            self._bytes[owner] += grown
            self._add(self._device[owner], self._roles[owner], grown, now)
        changes, allocated = self.changes[device], temporary
        for slot, (size, alias, in_place, role, persistent) in enumerate(outputs, self._first[number]):
            if persistent:
                continue
            if alias >= 0:
                self._owner[slot] = owner = self._owner_of(inputs[alias])
                self._references[owner] += self._references[slot]
                continue
            owner = self._free_to_take(number, in_place, size) if in_place else -1
            if owner >= 0:
                self._references[owner] += self._references[slot]
                if size:
                    changes.append((now, self._roles[owner], -size))
                    allocated -= size
            else:
                owner = slot
                self._device[slot] = device
                self._bytes[slot] = size
            self._owner[slot] = owner
            self._roles[owner] = role
            if size:
                changes.append((now, role, size))
                allocated += size
        if temporary:
            changes.append((now, self._temporary_role, temporary))
        held = self._held[device] + allocated
        self._held[device] = held
        if held > self._most[device]:
            self._most[device] = held
            self._most_at[device] = (number, now, len(changes))

    def _owner_of(self, source: Tuple[int, int]) -> int:
        """The slot that has the memory of an input."""
        producer, output = source
        return self._owner[self._first[producer] + output] if producer >= 0 else -1

    def _free_to_take(self, number: int, in_place: Sequence[int], size: int) -> int:
        """A slot whose memory an output may take, -1 if there is none: nothing else needs it, and it has that size."""
        op = self._ops[number]
        for owner in (self._owner_of(op.inputs[at]) for at in in_place):
            if self._references[owner] == 1 and self._bytes[owner] == size and self._device[owner] == op.device:
                return owner
        return -1

    def finish(self, number: int, now: float) -> None:
        """Frees the inputs that no other op needs, and outputs that no op takes."""
        owners, references, first = self._owner, self._references, self._first
        device, _, _, inputs, _, _, temporary, _, _ = self._ops[number]
        if temporary:
            self._add(device, self._temporary_role, -temporary, now)
        for producer, output in inputs:
            if producer >= 0:
                owner = owners[first[producer] + output]
                references[owner] -= 1
                if not references[owner]:
                    self._free(owner, now)
        if number in self._unused:
            for slot in self._unused[number]:
                if not references[owners[slot]]:
                    self._free(owners[slot], now)

    def _free(self, slot: int, now: float) -> None:
        size = self._bytes[slot]
        if size:
            device = self._device[slot]
            self._bytes[slot] = 0
            self._held[device] -= size
            self.changes[device].append((now, self._roles[slot], -size))

    def _add(self, device: int, role: str, size: int, now: float) -> None:
        """Adds to what a device holds, or takes away."""
        self._held[device] += size
        self.changes[device].append((now, role, size))

    def peaks(self) -> List[Peak]:
        """The peak of each device."""
        peaks = []
        for most, (op, seconds, count), changes in zip(self._most, self._most_at, self.changes):
            by_role: Dict[str, int] = {}
            for _, role, size in changes[:count]:
                by_role[role] = by_role.get(role, 0) + size
            peaks.append(Peak(most, by_role, op, seconds))
        return peaks


def held_over_time(changes: Sequence[BufferChange]) -> List[Tuple[float, int]]:
    """What a device holds: (seconds from the begin of the step, bytes from then on), one entry for each moment.

    Args:
      changes: of the memory of the device, see `SimulatedRun.changes`.
    """
    steps: Dict[float, int] = {}
    held = 0
    for seconds, _, size in changes:
        held += size
        steps[seconds] = held
    return list(steps.items())
