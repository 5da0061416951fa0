"""One engine for the time and the memory of a step: when each op of a `SimulatedProgram` runs, and what devices hold.

    pool of a device    | op 0 | op 2    |            | op 5 |      a thread runs one op at a time
    pool of a link             | op 3: a transfer    |              op 5 waits for op 3

An op is ready when all that it waits for has ended. A pool runs ops in the order in which they became ready, but for
what TensorFlow's executor does: a thread goes on with the cheap ops that it made ready, and at most one other; the rest
waits in the queue of the pool for an idle thread. A rank of a collective comes when a thread would run it, or, if it
names a pool, when it is ready. A collective that holds threads waits in the queues of all its pools until it is the
next in each. Ops that run on the same cores at the same time divide them, so that the speed of each changes whenever
another one begins or ends.

A real run may differ, because times are estimates, and because a thread of TensorFlow prefers ops that it has put into
the queue itself.
"""

import heapq
import math
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.planner.simulator.memory import BufferChange, Memory, Peak
from epl.planner.simulator.program import SimulatedProgram


class SimulatedRun(NamedTuple):
    """What happens in a step.

    Attributes:
      starts, ends: of each op, in seconds from the begin of the step.
      causes: for each op, the op whose end made it start at that time and not before; -1 at the begin of the step.
      peaks: of each device.
      changes: of the memory of each device, in order.
    """

    starts: List[float]
    ends: List[float]
    causes: List[int]
    peaks: List[Peak]
    changes: List[List[BufferChange]]

    @property
    def seconds(self) -> float:
        """The time of the step."""
        return max(self.ends, default=0.0)


_NEVER = -1.0  # in place of a time
_SHOWN = 6  # ops of a circle that an error names

_Thread = Deque[int]  # the ops that a thread runs next itself


class _Pool:
    """Idle threads, and a queue of what waits for one: the number of an op, or -1 - c for a collective c."""

    __slots__ = ("idle", "queue")

    def __init__(self, threads: int) -> None:
        self.queue: Deque[int] = deque()
        self.idle: List[_Thread] = [deque() for _ in range(threads)]


class _Cores:
    """Cores that devices share. All ops that run on them have got the same share since each began.

    Attributes:
      load: of the ops that run.
      got: seconds of an op alone that each op got since the begin of the step, had it run so long.
      running: (value of `got` at which it ends, op) of each op that runs, a heap.
      version: of the event for the next end; those of older versions are void.
    """

    __slots__ = ("got", "load", "now", "running", "version")

    def __init__(self) -> None:
        self.load = self.got = self.now = 0.0
        self.running: List[Tuple[float, int]] = []
        self.version = 0

    def begin(self, number: int, seconds: float, load: float, now: float) -> Tuple[float, int, int]:
        """An op begins; the event of the next end."""
        if self.running:
            self.got += (now - self.now) / self.load
        self.load += load
        heapq.heappush(self.running, (self.got + seconds, number))
        return self._next(now)

    def end(self, load: float, now: float) -> Optional[Tuple[float, int, int]]:
        """The op whose end was next ends; the event of the next one, if there is one."""
        self.got, _ = heapq.heappop(self.running)
        self.load -= load
        return self._next(now) if self.running else None

    def _next(self, now: float) -> Tuple[float, int, int]:
        self.now = now
        self.version += 1
        got, number = self.running[0]
        return now + (got - self.got) * self.load, number, self.version


class _Run:
    """One run of a program."""

    def __init__(self, program: SimulatedProgram, temporary_role: str) -> None:
        ops = program.ops
        self._program = program
        self.memory = Memory(program, temporary_role)
        self._pools = [_Pool(threads) for threads in program.threads]
        self._woken: List[int] = []  # pools in which an idle thread may find something to do
        self._waiting: List[int] = []
        self._followers: List[List[int]] = [[] for _ in ops]
        # Of each op: the pool in whose queue it waits, and which executor hands it out; -1 for an op that names a pool.
        self._queue_of: List[int] = []
        self._executor: List[int] = []
        for number, (device, seconds, _, inputs, after, _, _, _, pool) in enumerate(ops):
            if not 0 <= seconds < math.inf:
                raise ValueError(f"op {number} of the program takes {seconds} seconds: expected a number from 0 on")
            waiting = len(after)
            for producer, _ in inputs:
                if producer >= 0:
                    waiting += 1
                    self._followers[producer].append(number)
            for producer in after:
                self._followers[producer].append(number)
            self._waiting.append(waiting)
            self._queue_of.append(program.pools[device] if pool < 0 else pool)
            self._executor.append(device if pool < 0 else -1)
        self._collective = [-1] * len(ops)  # of each rank
        self._missing: List[int] = []  # ranks of each collective
        self._holders: List[Dict[int, int]] = []  # of each collective: pool -> the rank that holds a thread of it
        for collective, ranks in enumerate(program.collectives):
            self._missing.append(len(ranks))
            self._holders.append({ops[rank].pool: rank for rank in ranks if ops[rank].pool >= 0})
            for rank in ranks:
                self._collective[rank] = collective
        self._threads: List[Optional[_Thread]] = [None] * len(ops)  # that run it
        # (end, op, version), a heap; version: of the cores that the op shares, 0 without.
        self._events: List[Tuple[float, int, int]] = []
        self._cores: Dict[int, _Cores] = {one.number: _Cores() for one in program.cores if one is not None}
        self._cause = -1
        self.starts = [0.0] * len(ops)
        self.ends = [_NEVER] * len(ops)
        self.causes = [-1] * len(ops)

    def run(self) -> None:
        """Runs the program from the first op to the last."""
        self._start_roots()
        events, finish = self._events, self.memory.finish
        while events:
            now, number, version = heapq.heappop(events)
            if version and not self._ends_on_cores(number, version, now):
                continue
            self.ends[number] = now
            self._cause = number
            finish(number, now)
            self._hand_out(number, now)
            self._wake(now)

    def _ends_on_cores(self, number: int, version: int, now: float) -> bool:
        """Whether an op on shared cores ends; else its speed has changed since the event was made."""
        shared = self._program.cores[self._program.ops[number].device]
        assert shared is not None
        cores = self._cores[shared.number]
        if version != cores.version:
            return False
        event = cores.end(shared.load, now)
        if event is not None:
            heapq.heappush(self._events, event)
        return True

    def _start_roots(self) -> None:
        threads = [pool.idle[:] for pool in self._pools]
        for pool in self._pools:
            pool.idle.clear()
        for number, op in enumerate(self._program.ops):
            if not self._waiting[number]:
                own = threads[self._queue_of[number]]
                if op.cheap and op.pool < 0:
                    own[op.device % len(own)].append(number)  # each executor starts in some thread
                else:
                    self._enqueue(number, 0.0)
        for number, pool in enumerate(self._pools):
            for thread in threads[number]:
                pool.idle.append(thread)
                self._serve(number, 0.0)
        self._wake(0.0)

    def _enqueue(self, number: int, now: float) -> None:
        """Puts an op into the queue of its pool. A rank of a collective that names a pool waits for no thread."""
        if self._executor[number] < 0 and self._collective[number] >= 0:
            self._come(number, now)
        else:
            pool = self._queue_of[number]
            self._pools[pool].queue.append(number)
            self._woken.append(pool)

    def _hand_out(self, number: int, now: float) -> None:
        """Puts the ops that an op makes ready where TensorFlow's executor would put them; its thread is then idle."""
        thread, executors, waiting = self._threads[number], self._executor, self._waiting
        executor = executors[number]
        current = -1
        for follower in self._followers[number]:
            waiting[follower] -= 1
            if waiting[follower]:
                continue
            if thread is None or executor < 0 or executors[follower] != executor:  # reached by a transfer
                self._enqueue(follower, now)
            elif self._program.ops[follower].cheap:
                thread.append(follower)
            else:
                if current >= 0:
                    self._enqueue(current, now)
                current = follower
        if thread is not None:
            if current >= 0 and thread:
                self._enqueue(current, now)
            elif current >= 0:
                thread.append(current)
            pool = self._queue_of[number]
            self._pools[pool].idle.append(thread)
            self._woken.append(pool)

    def _wake(self, now: float) -> None:
        """Gives idle threads something to do, in the order of the pools."""
        while self._woken:
            woken, self._woken = self._woken, []
            woken.sort()
            for pool in woken:
                self._serve(pool, now)

    def _serve(self, pool: int, now: float) -> None:
        """Gives the idle threads of a pool something to do; only the last of them may have ops of its own."""
        queue, idle = self._pools[pool].queue, self._pools[pool].idle
        while idle:
            thread = idle[-1]
            if thread:
                number = thread.popleft()
            elif not queue:
                return
            elif queue[0] >= 0:
                number = queue.popleft()
            elif self._begin_if_free(-1 - queue[0], now):
                continue
            else:
                return
            if self._collective[number] >= 0:
                self._come(number, now)
            else:
                self._threads[number] = idle.pop()
                self._start_alone(number, now)

    def _come(self, rank: int, now: float) -> None:
        """A rank comes to a collective. With the last one it begins, or waits for the pools of its ranks."""
        collective = self._collective[rank]
        self._missing[collective] -= 1
        if not self._missing[collective]:
            for pool in self._holders[collective]:
                self._pools[pool].queue.append(-1 - collective)
                self._woken.append(pool)
            if not self._holders[collective]:
                self._begin(collective, now)

    def _begin_if_free(self, collective: int, now: float) -> bool:
        """Begins a collective if it is the next in each of its pools, and each has an idle thread."""
        holders = self._holders[collective]
        for pool in map(self._pools.__getitem__, holders):
            if not pool.idle or pool.idle[-1] or pool.queue[0] != -1 - collective:
                return False
        for number, rank in holders.items():
            pool = self._pools[number]
            pool.queue.popleft()
            self._threads[rank] = pool.idle.pop()
            self._woken.append(number)
        self._begin(collective, now)
        return True

    def _begin(self, collective: int, now: float) -> None:
        ranks = self._program.collectives[collective]
        end = now + max(self._program.ops[rank].seconds for rank in ranks)
        for rank in ranks:
            self._start(rank, now, end)

    def _start_alone(self, number: int, now: float) -> None:
        """Starts an op that is of no collective: on the cores of its device, or in a pool of another kind."""
        program, op = self._program, self._program.ops[number]
        shared = program.cores[op.device] if program.cores else None
        if shared is None or self._queue_of[number] != program.pools[op.device]:
            self._start(number, now, now + op.seconds)
            return
        self._begun(number, now)
        event = self._cores[shared.number].begin(number, op.seconds, shared.load, now)
        heapq.heappush(self._events, event)

    def _start(self, number: int, now: float, end: float) -> None:
        self._begun(number, now)
        heapq.heappush(self._events, (end, number, 0))

    def _begun(self, number: int, now: float) -> None:
        self.starts[number] = now
        self.causes[number] = self._cause
        self.memory.start(number, now)


def simulate(program: SimulatedProgram, temporary_role: str) -> SimulatedRun:
    """The course of a step.

    Args:
      program: the step.
      temporary_role: the role of temporary memory.

    Raises:
      ValueError: ops wait for each other in a circle, a pool has no thread, or an op has no time from 0 on.
    """
    if min(program.threads, default=1) < 1:
        raise ValueError(f"the pools of the program have {list(program.threads)} threads: expected 1 or more in each")
    run = _Run(program, temporary_role)
    run.run()
    never = run.ends.count(_NEVER)
    if never:
        circle = _circle(program, run.ends)
        chain = ", which waits for ".join(f"op {number}" for number in circle[:_SHOWN])
        more = f", and so on, over {len(circle) - _SHOWN} more," if len(circle) > _SHOWN else ", which waits"
        raise ValueError(
            f"{never} of {len(program.ops)} ops of the program never run, as some wait for each other in a circle: "
            f"{chain}{more} for op {circle[0]}"
        )
    return SimulatedRun(run.starts, run.ends, run.causes, run.memory.peaks(), run.memory.changes)


def _circle(program: SimulatedProgram, ends: Sequence[float]) -> List[int]:
    """Ops that never ran, each of which waits for the next one, and the last for the first."""
    ranks_of = {rank: ranks for ranks in program.collectives for rank in ranks}

    def awaited(number: int) -> List[int]:
        op = program.ops[number]
        return [other for other in [p for p, _ in op.inputs] + list(op.after) if other >= 0 and ends[other] == _NEVER]

    number = ends.index(_NEVER)
    trail: Dict[int, int] = {}
    while number not in trail:
        trail[number] = len(trail)
        # A rank that has come waits for one that has not.
        number = (awaited(number) or [rank for rank in ranks_of[number] if awaited(rank)])[0]
    return [other for other, place in trail.items() if place >= trail[number]]
