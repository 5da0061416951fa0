"""The memory of a graph while it runs: ops allocate and free buffers in the order in which an executor starts them.

    op         x --> Tanh --> MatMul --> Tanh --> ...
    buffers    |-- a --------|                          a is free once its last consumer has run
                        |-- b ------------------ ...    the second Tanh takes the memory of MatMul: b, too

A `SimulatedProgram` is a graph without TensorFlow: devices, times, buffers and edges by number. The order follows
TensorFlow's executor: an op is ready when all its inputs are there. A thread goes on with the cheap ops that it made
ready, and at most one other; the rest waits in a queue for an idle thread. A collective holds no thread: it begins when
all its ranks have come, and the ops that it makes ready wait in the queue. A real run may differ, because times are
estimates, and because a thread of TensorFlow prefers ops that it has put into the queue itself.
"""

import heapq
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple


class SimulatedOutput(NamedTuple):
    """The memory of one output of an op.

    Attributes:
      bytes: its size.
      alias: position of the input whose memory it shares; -1 for memory of its own.
      in_place: positions of the inputs, of the same size, whose memory it may take.
      role: its role in the estimate.
      persistent: it exists before and after the step (a variable, a constant, a fed value).
    """

    bytes: int
    alias: int
    in_place: Tuple[int, ...]
    role: str
    persistent: bool


class SimulatedOp(NamedTuple):
    """One op of a program.

    Attributes:
      device: its number.
      seconds: how long it runs.
      cheap: the thread that makes it ready runs it, too.
      inputs: (op, output) of each; op -1 for one that is there from the beginning.
      after: other ops that it waits for.
      outputs: its outputs, in order.
      temporary: bytes that it allocates while it runs.
      stores: (position of an input, bytes): bytes that it adds to the memory of that input, such as a write to a stack
        or a TensorArray; (-1, 0) for most ops.
    """

    device: int
    seconds: float
    cheap: bool
    inputs: Tuple[Tuple[int, int], ...]
    after: Tuple[int, ...]
    outputs: Tuple[SimulatedOutput, ...]
    temporary: int
    stores: Tuple[int, int]


class SimulatedProgram(NamedTuple):
    """A step.

    Attributes:
      ops: a graph without cycles; roots start in this order.
      pools: per device, the number of the threads that run its ops. The CPU devices of a process share theirs.
      threads: the number of threads of each pool.
      fetched: ops whose outputs stay until the end.
      collectives: the ops of each collective, one for each rank of this process.
    """

    ops: List[SimulatedOp]
    pools: Tuple[int, ...]
    threads: Tuple[int, ...]
    fetched: Tuple[int, ...]
    collectives: Tuple[Tuple[int, ...], ...]


class Peak(NamedTuple):
    """The moment at which a device holds most.

    Attributes:
      bytes: bytes that ops have allocated, without persistent memory.
      by_role: the same by role.
      op: the op that started then; -1 if nothing is ever allocated.
    """

    bytes: int
    by_role: Dict[str, int]
    op: int


class _Buffer:
    __slots__ = ("bytes", "device", "persistent", "references", "role")

    def __init__(self, size: int, device: int, role: str, persistent: bool) -> None:
        self.bytes = size
        self.device = device
        self.role = role
        self.references = 0
        self.persistent = persistent


_EXTERNAL = _Buffer(0, 0, "", True)
_NONE = -1  # in place of a thread


class _Memory:
    """The bytes that every device holds, and the peaks so far."""

    def __init__(self, devices: int) -> None:
        self._held = [0] * devices
        self._by_role: List[Dict[str, int]] = [{} for _ in range(devices)]
        self.peaks = [Peak(0, {}, -1) for _ in range(devices)]

    def add(self, device: int, role: str, size: int) -> None:
        """Adds to what a device holds, or takes away."""
        if size:
            self._held[device] += size
            roles = self._by_role[device]
            roles[role] = roles.get(role, 0) + size

    def note(self, device: int, op: int) -> None:
        """Records an allocation of an op."""
        if self._held[device] > self.peaks[device].bytes:
            self.peaks[device] = Peak(self._held[device], dict(self._by_role[device]), op)


class _Pool:
    """The threads of some devices: a queue of ops, and for each thread the ops that it runs next itself."""

    def __init__(self, threads: int) -> None:
        self.queue: Deque[int] = deque()
        self.inline: List[Deque[int]] = [deque() for _ in range(threads)]
        self.idle = list(range(threads - 1, -1, -1))

    def next(self, thread: int) -> int:
        """The op that a thread runs next, -1 if there is none."""
        own = self.inline[thread]
        if own:
            return own.popleft()
        return self.queue.popleft() if self.queue else -1


class _Run:
    """One run of a program."""

    def __init__(self, program: SimulatedProgram, temporary_role: str) -> None:
        ops = program.ops
        self._program = program
        self._temporary_role = temporary_role
        self.memory = _Memory(len(program.pools))
        self._pools = [_Pool(threads) for threads in program.threads]
        self._buffers: List[List[_Buffer]] = [[] for _ in ops]
        self._uses = [[0] * len(op.outputs) for op in ops]  # of each output
        self._waiting = [0] * len(ops)
        self._followers: List[List[int]] = [[] for _ in ops]
        for number, op in enumerate(ops):
            for producer, output in op.inputs:
                if producer >= 0:
                    self._uses[producer][output] += 1
            before = dict.fromkeys([producer for producer, _ in op.inputs if producer >= 0] + list(op.after))
            self._waiting[number] = len(before)
            for producer in before:
                self._followers[producer].append(number)
        for number in program.fetched:
            self._uses[number] = [uses + 1 for uses in self._uses[number]]
        self._ranks = {number: ranks for ranks in program.collectives for number in ranks}
        self._missing = {ranks: len(ranks) for ranks in program.collectives}
        self._events: List[Tuple[float, int, int, int]] = []  # (end, op, pool, thread or _NONE), a heap
        self.done = 0

    def run(self) -> None:
        """Runs the program from the first op to the last."""
        program = self._program
        for number, op in enumerate(program.ops):
            if not self._waiting[number]:
                pool = self._pools[program.pools[op.device]]
                if op.cheap:
                    pool.inline[op.device % len(pool.inline)].append(number)  # each executor starts in some thread
                else:
                    pool.queue.append(number)
        self._wake(0.0)
        while self._events:
            now, number, pool_number, thread = heapq.heappop(self._events)
            self._finish(number)
            ready = self._followers_ready_after(number)
            if thread == _NONE:
                self._queue(ready)
            else:
                self._hand_out(ready, program.ops[number].device, thread)
                self._pools[pool_number].idle.append(thread)
            self._wake(now)

    def _wake(self, now: float) -> None:
        """Gives idle threads something to do."""
        for pool_number, pool in enumerate(self._pools):
            for thread in reversed(pool.idle[:]):
                number = pool.next(thread)
                while number in self._ranks:
                    self._come(number, now)
                    number = pool.next(thread)
                if number >= 0:
                    pool.idle.remove(thread)
                    self._start(number)
                    end = now + self._program.ops[number].seconds
                    heapq.heappush(self._events, (end, number, pool_number, thread))

    def _come(self, number: int, now: float) -> None:
        """A rank comes to a collective. With the last rank it begins, and its outputs are allocated."""
        ranks = self._ranks[number]
        self._missing[ranks] -= 1
        if not self._missing[ranks]:
            end = now + max(self._program.ops[rank].seconds for rank in ranks)
            for rank in ranks:
                self._start(rank)
                heapq.heappush(self._events, (end, rank, self._program.pools[self._program.ops[rank].device], _NONE))

    def _start(self, number: int) -> None:
        op = self._program.ops[number]
        inputs = [_EXTERNAL if p < 0 else self._buffers[p][output] for p, output in op.inputs]
        memory = self.memory
        at, size = op.stores
        if size:
            memory.add(inputs[at].device, inputs[at].role, size)
            inputs[at].bytes += size
        for output, uses in zip(op.outputs, self._uses[number]):
            buffer = self._buffer_of(op, output, inputs)
            buffer.references += uses
            self._buffers[number].append(buffer)
        if op.temporary:
            memory.add(op.device, self._temporary_role, op.temporary)
        memory.note(op.device, number)

    def _buffer_of(self, op: SimulatedOp, output: SimulatedOutput, inputs: Sequence[_Buffer]) -> _Buffer:
        if output.persistent:
            return _EXTERNAL
        if output.alias >= 0:
            return inputs[output.alias]
        for at in output.in_place:
            buffer = inputs[at]
            if buffer.references == 1 and not buffer.persistent and buffer.bytes == output.bytes:
                if buffer.device == op.device:
                    self.memory.add(op.device, buffer.role, -buffer.bytes)
                    self.memory.add(op.device, output.role, buffer.bytes)
                    buffer.role = output.role
                    return buffer
        buffer = _Buffer(output.bytes, op.device, output.role, False)
        self.memory.add(op.device, output.role, output.bytes)
        return buffer

    def _finish(self, number: int) -> None:
        """Frees the inputs, and outputs that no op takes."""
        op = self._program.ops[number]
        self.done += 1
        if op.temporary:
            self.memory.add(op.device, self._temporary_role, -op.temporary)
        for producer, output in op.inputs:
            if producer >= 0:
                buffer = self._buffers[producer][output]
                buffer.references -= 1
                self._free_unused(buffer)
        for buffer in self._buffers[number]:
            self._free_unused(buffer)

    def _free_unused(self, buffer: _Buffer) -> None:
        if not buffer.references and not buffer.persistent:
            self.memory.add(buffer.device, buffer.role, -buffer.bytes)
            buffer.bytes = 0

    def _followers_ready_after(self, number: int) -> List[int]:
        ready = []
        for follower in self._followers[number]:
            self._waiting[follower] -= 1
            if not self._waiting[follower]:
                ready.append(follower)
        return ready

    def _queue(self, ready: Sequence[int]) -> None:
        for number in ready:
            self._pools[self._program.pools[self._program.ops[number].device]].queue.append(number)

    def _hand_out(self, ready: Sequence[int], device: int, thread: int) -> None:
        """Puts the ops that an op has made ready where TensorFlow's executor would put them."""
        ops, pool = self._program.ops, self._pools[self._program.pools[device]]
        current: Optional[int] = None
        for number in ready:
            op = ops[number]
            if op.device != device:  # another executor, reached by a transfer
                self._queue([number])
            elif op.cheap:
                pool.inline[thread].append(number)
            else:
                if current is not None:
                    pool.queue.append(current)
                current = number
        if current is not None:
            if pool.inline[thread]:
                pool.queue.append(current)
            else:
                pool.inline[thread].append(current)


def simulate(program: SimulatedProgram, temporary_role: str) -> List[Peak]:
    """Per device, the peak of the bytes that ops allocate.

    Args:
      program: the step.
      temporary_role: the role of temporary memory.

    Raises:
      ValueError: ops wait for each other in a cycle.
    """
    run = _Run(program, temporary_role)
    run.run()
    if run.done < len(program.ops):
        raise ValueError(
            "{} of {} ops of the program wait for each other in a circle".format(
                len(program.ops) - run.done, len(program.ops)
            )
        )
    return run.memory.peaks
