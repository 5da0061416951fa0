"""The pipeline strategies: each generates the order in which the devices run the stages' passes.

`generate` is the entry; `GENERATORS` is the table of strategies. A generator only emits a schedule;
`epl/parallel/plan/schedule.py` defines and validates schedules.

With one stage per device, three stages and five micro batches (a digit: forward, a digit in brackets: backward):

    PreferForward            PreferBackward           PreferBackwardOptimizer
    0 1 2 3 4 (0) .. (4)     0 1 2 (0) 3 (1) 4 ..     0 1 2 3 (0) 4 (1) (2) ..
    0 1 2 3 4 (0) .. (4)     0 1 (0) 2 (1) 3 ..       0 1 2 (0) 3 (1) 4 (2) ..
    0 1 2 3 4 (0) .. (4)     0 (0) 1 (1) 2 ..         0 (0) 1 (1) 2 ..
"""

from typing import Callable, Dict, Iterator, List, Sequence, Tuple

from epl.parallel.plan import schedule as schedules
from epl.parallel.plan.schedule import BACKWARD, FORWARD, Action, Schedule

Orders = Tuple[Tuple[Action, ...], ...]


def generate(strategy: str, device_of_stage: Sequence[int], num_micro_batch: int) -> Schedule:
    """The schedule of a pipeline strategy.

    It is valid for any data flow from earlier to later stages: it is made for the chain of stages, whose dependencies
    imply those of skip connections and branches.

    Args:
      strategy: a key of `GENERATORS`, in upper or lower case.
      device_of_stage: per stage the device that runs it, from 0 on, each device with a stage.
      num_micro_batch: the micro batches of a training step, 1 or more.

    Returns:
      The schedule, validated.

    Raises:
      ValueError: one of the arguments is not as described.
    """
    name = next((known for known in GENERATORS if known.lower() == strategy.lower()), None)
    if name is None:
        raise ValueError(f"the pipeline strategy is {strategy!r}: expected one of {', '.join(GENERATORS)}")
    schedules.check_devices(device_of_stage)
    if num_micro_batch < 1:
        raise ValueError(f"the number of micro batches is {num_micro_batch}: expected 1 or more")
    orders = GENERATORS[name](tuple(device_of_stage), num_micro_batch)
    schedule = Schedule(name, num_micro_batch, tuple(device_of_stage), orders)
    schedules.validate(schedule)
    return schedule


def prefer_forward(device_of_stage: Tuple[int, ...], num_micro_batch: int) -> Orders:
    """All forward passes, then all backward passes, micro batches ascending in both (GPipe; Huang et al. 2019).

    Stages that share a device take turns stage by stage, breadth first, in the order of the data flow.
    """
    orders = []
    for device in range(max(device_of_stage) + 1):
        stages = [stage for stage, home in enumerate(device_of_stage) if home == device]
        forward = [Action(stage, FORWARD, m) for stage in stages for m in range(num_micro_batch)]
        backward = [Action(stage, BACKWARD, m) for stage in reversed(stages) for m in range(num_micro_batch)]
        orders.append(tuple(forward + backward))
    return tuple(orders)


def prefer_backward(device_of_stage: Tuple[int, ...], num_micro_batch: int) -> Orders:
    """One forward, one backward in turn, after as many forward passes as keep the later stages busy (1F1B).

    Stage s of S keeps S - s micro batches in flight (Narayanan et al., PipeDream-Flush, 2021).
    """
    return _one_forward_one_backward(device_of_stage, num_micro_batch, 0)


def prefer_backward_optimizer(device_of_stage: Tuple[int, ...], num_micro_batch: int) -> Orders:
    """`prefer_backward` with one more micro batch in flight on every stage but the last."""
    return _one_forward_one_backward(device_of_stage, num_micro_batch, 1)


GENERATORS: Dict[str, Callable[[Tuple[int, ...], int], Orders]] = {
    "PreferForward": prefer_forward,
    "PreferBackward": prefer_backward,
    "PreferBackwardOptimizer": prefer_backward_optimizer,
}


def in_flight_bound(num_stages: int, extra: int) -> Tuple[int, ...]:
    """Per stage, the micro batches that 1F1B keeps in flight; `extra` more on all stages but the last."""
    return tuple(num_stages - stage + (extra if stage < num_stages - 1 else 0) for stage in range(num_stages))


def _one_forward_one_backward(device_of_stage: Tuple[int, ...], num_micro_batch: int, extra: int) -> Orders:
    num_stages, num_devices = len(device_of_stage), max(device_of_stage) + 1
    bounds = in_flight_bound(num_stages, extra)
    if num_stages == num_devices:
        orders = [_alternate(stage, bounds[stage] - 1, num_micro_batch) for stage in range(num_stages)]
        return tuple(orders[device_of_stage.index(device)] for device in range(num_devices))
    num_turns = num_stages // num_devices
    if device_of_stage == tuple(range(num_devices)) * num_turns:
        return _interleaved(num_devices, num_turns, num_micro_batch, extra)
    return _list_schedule(device_of_stage, num_micro_batch, bounds)


def _alternate(stage: int, num_warm_up: int, num_micro_batch: int) -> Tuple[Action, ...]:
    forward = [Action(stage, FORWARD, m) for m in range(num_micro_batch)]
    backward = [Action(stage, BACKWARD, m) for m in range(num_micro_batch)]
    return _merge(forward, backward, num_warm_up)


def _merge(forward: List[Action], backward: List[Action], num_warm_up: int) -> Tuple[Action, ...]:
    """`num_warm_up` forward passes, then forward and backward in turn, then the backward passes that are left."""
    warm_up = min(num_warm_up, len(forward))
    order = forward[:warm_up]
    for pair in zip(forward[warm_up:], backward):
        order.extend(pair)
    return tuple(order + backward[len(forward) - warm_up :])


def _interleaved(num_devices: int, num_turns: int, num_micro_batch: int, extra: int) -> Orders:
    """Interleaved 1F1B (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", section 2.2): a device runs its stages in turn, each over a block of micro batches.

    The paper's blocks have D micro batches each, so M must be a multiple of D. Here the remainder is shared out among
    the blocks, which keeps the bubble as short for every M >= D: a block of D or more is back at the first device when
    that has finished it. Larger blocks come first, as the warm-up covers one block.

    Args:
      num_devices: D; stage s is on device s % D.
      num_turns: stages per device.
      num_micro_batch: M.
      extra: forward passes that run ahead on all devices but the last.
    """
    blocks = _blocks(num_micro_batch, max(1, num_micro_batch // num_devices))
    orders = []
    for device in range(num_devices):
        stages = range(device, num_devices * num_turns, num_devices)
        forward = [Action(stage, FORWARD, m) for block in blocks for stage in stages for m in block]
        backward = [Action(stage, BACKWARD, m) for block in blocks for stage in reversed(stages) for m in block]
        ahead = extra if device < num_devices - 1 else 0
        orders.append(
            _merge(forward, backward, (num_devices - 1 - device) * 2 + (num_turns - 1) * len(blocks[0]) + ahead)
        )
    return tuple(orders)


def _blocks(num_micro_batch: int, count: int) -> List[range]:
    """The micro batches in `count` blocks, the first ones larger by one where they differ."""
    size, rest = divmod(num_micro_batch, count)
    starts = [index * size + min(index, rest) for index in range(count + 1)]
    return [range(start, end) for start, end in zip(starts, starts[1:])]


def _list_schedule(device_of_stage: Tuple[int, ...], num_micro_batch: int, bounds: Sequence[int]) -> Orders:
    """1F1B for any assignment: simulates the devices, each taking the best action that is ready (list scheduling).

    The best action starts first; among equals a backward pass, then the earlier micro batch, then the later stage. A
    stage starts no micro batch beyond its bound of those in flight. There is no deadlock: each stage takes its micro
    batches in order, so later ones never use up the bound before the first unfinished one.
    """
    passes = _Passes(device_of_stage, num_micro_batch, bounds)
    orders: List[List[Action]] = [[] for _ in range(max(device_of_stage) + 1)]
    for _ in range(2 * len(device_of_stage) * num_micro_batch):
        action = passes.take_next()
        orders[device_of_stage[action.stage]].append(action)
    return tuple(tuple(order) for order in orders)


class _Passes:
    """The state of a simulated chain of stages whose devices choose what to run next."""

    # A backward pass costs about twice a forward pass: gradients of the activations and of the weights.
    _SECONDS = {FORWARD: 1, BACKWARD: 2}

    def __init__(self, device_of_stage: Tuple[int, ...], num_micro_batch: int, bounds: Sequence[int]) -> None:
        num_stages = len(device_of_stage)
        self._device_of_stage = device_of_stage
        self._num_micro_batch = num_micro_batch
        self._bounds = bounds
        self._sources = schedules.sources_of_stages(num_stages)
        self._next = {kind: [0] * num_stages for kind in (FORWARD, BACKWARD)}
        self._free = [0] * (max(device_of_stage) + 1)
        self._end: Dict[Action, int] = {}
        self._ready: Dict[Action, int] = {Action(0, FORWARD, 0): 0}  # when its inputs are ready

    def take_next(self) -> Action:
        """Runs the action that starts first among all devices, and returns it."""
        start, _, _, _, action = min(self._choices())
        stage, kind, _ = action
        del self._ready[action]
        self._next[kind][stage] += 1
        self._end[action] = self._free[self._device_of_stage[stage]] = start + self._SECONDS[kind]
        for near in range(max(0, stage - 1), min(len(self._device_of_stage), stage + 2)):
            self._find_ready(Action(near, FORWARD, self._next[FORWARD][near]))
            self._find_ready(Action(near, BACKWARD, self._next[BACKWARD][near]))
        return action

    def _choices(self) -> Iterator[Tuple[int, bool, int, int, Action]]:
        for action, ready in self._ready.items():
            stage, kind, micro_batch = action
            if kind == BACKWARD or micro_batch - self._next[BACKWARD][stage] < self._bounds[stage]:
                start = max(ready, self._free[self._device_of_stage[stage]])
                yield start, kind == FORWARD, micro_batch, -stage, action

    def _find_ready(self, action: Action) -> None:
        sources = list(self._sources.of(action))
        if action.micro_batch < self._num_micro_batch and all(source in self._end for source in sources):
            self._ready[action] = max([self._end[source] for source in sources], default=0)
