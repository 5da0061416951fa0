"""Pipeline schedules as data: the values, their text form, and the validator.

A schedule says in which order each device of a pipeline runs the forward and backward passes of its stages. It owns no
graph and no time: `epl/parallel/plan/schedule_generators.py` makes schedules, `epl/parallel/plan/schedule_simulator.py`
gives them times and pictures. Errors are `ValueError`: a user chooses a schedule by name and never writes one.
"""

import collections
import re
from typing import Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

FORWARD = "F"
BACKWARD = "B"
Dependencies = Sequence[Tuple[int, int]]

_HEADER = re.compile(r"schedule (\S+) stages=(\d+) micro_batches=(\d+) device_of_stage=(\d+(?:,\d+)*)$")
_HEADER_EXAMPLE = "schedule PreferBackward stages=2 micro_batches=4 device_of_stage=0,1"
_TOKEN = re.compile(r"(\d+)([FB])(\d+)$")


class Action(NamedTuple):
    """The forward or backward pass of one stage over one micro batch.

    Attributes:
      stage: index of the TaskGraph.
      kind: `FORWARD` or `BACKWARD`.
      micro_batch: index of the micro batch.
    """

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        """The text form: `2F0` is the forward pass of stage 2 over micro batch 0."""
        return f"{self.stage}{self.kind}{self.micro_batch}"


class Schedule(NamedTuple):
    """What every device of a pipeline does, in order.

    Attributes:
      name: name of the pipeline strategy, without white space.
      num_micro_batch: M; every stage runs M forward and M backward passes.
      device_of_stage: per stage the device that runs it: an index into the devices of one model replica. Stages that
        share a device are interleaved on it.
      actions: per device the ordered actions.
    """

    name: str
    num_micro_batch: int
    device_of_stage: Tuple[int, ...]
    actions: Tuple[Tuple[Action, ...], ...]

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.device_of_stage)

    @property
    def num_devices(self) -> int:
        """The number of devices of one model replica."""
        return len(self.actions)


def chain(num_stages: int) -> Tuple[Tuple[int, int], ...]:
    """The data flow of a pipeline in which each stage feeds the next."""
    return tuple((stage, stage + 1) for stage in range(num_stages - 1))


def to_text(schedule: Schedule) -> str:
    """The schedule as text, one line per device; `from_text` reads it.

    Two stages and two micro batches:

        schedule PreferBackward stages=2 micro_batches=2 device_of_stage=0,1
        device 0: 0F0 0F1 0B0 0B1
        device 1: 1F0 1B0 1F1 1B1
    """
    lines = [
        f"schedule {schedule.name} stages={schedule.num_stages} micro_batches={schedule.num_micro_batch} "
        f"device_of_stage={','.join(str(device) for device in schedule.device_of_stage)}"
    ]
    for device, actions in enumerate(schedule.actions):
        lines.append(" ".join([f"device {device}:"] + [str(action) for action in actions]))
    return "\n".join(lines) + "\n"


def from_text(text: str) -> Schedule:
    """The schedule that `to_text` wrote. Checks only the form; `validate` checks the content.

    Raises:
      ValueError: a line or a word does not have that form; the message says which, and what is expected.
    """
    lines = text.strip().split("\n")
    header = _HEADER.match(lines[0].strip())
    if not header:
        raise ValueError(f"line 1 of the schedule is {lines[0]!r}: expected a line like {_HEADER_EXAMPLE!r}")
    name, stages, num_micro_batch, devices = header.groups()
    device_of_stage = tuple(int(device) for device in devices.split(","))
    if len(device_of_stage) != int(stages):
        raise ValueError(
            f"line 1 of the schedule has stages={stages} and device_of_stage={devices}: expected one device per stage"
        )
    actions = tuple(_parse_line(line, number) for number, line in enumerate(lines[1:]))
    return Schedule(name, int(num_micro_batch), device_of_stage, actions)


def _parse_line(line: str, device: int) -> Tuple[Action, ...]:
    """The actions of a device; the line of device i is line i + 2 of the text."""
    head, _, rest = line.partition(":")
    if head.split() != ["device", str(device)]:
        raise ValueError(
            f"line {device + 2} of the schedule is {line!r}: expected it to start with 'device {device}:', as devices "
            "stand in order, one line each"
        )
    actions = []
    for position, word in enumerate(rest.split(), 1):
        token = _TOKEN.match(word)
        if not token:
            raise ValueError(
                f"line {device + 2} of the schedule: action {position} is {word!r}: expected stage, F or B, and micro "
                "batch, like '2F0'"
            )
        actions.append(Action(int(token.group(1)), token.group(2), int(token.group(3))))
    return tuple(actions)


def validate(
    schedule: Schedule, dependencies: Optional[Dependencies] = None, max_in_flight: Optional[Sequence[int]] = None
) -> None:
    """Checks that a schedule can run and has all actions.

    Args:
      schedule: the schedule.
      dependencies: the data flow between stages, pairs of an earlier and a later stage, skip connections included;
        the chain of stages when None. Gradients flow in the opposite direction.
      max_in_flight: per stage, how many micro batches may be between their forward and the end of their backward pass.

    Raises:
      ValueError: an action is missing, occurs twice, does not belong to the schedule or is on a device that is not its
        stage's; a pass runs a micro batch before an earlier one; a backward pass comes before its forward pass; the
        devices wait for each other in a cycle; or more micro batches are in flight than allowed.
    """
    check_devices(schedule.device_of_stage)
    if schedule.num_micro_batch < 1:
        raise ValueError(f"schedule {schedule.name} has {schedule.num_micro_batch} micro batches: expected 1 or more")
    if schedule.num_devices != max(schedule.device_of_stage) + 1:
        raise ValueError(
            f"schedule {schedule.name} has actions for {schedule.num_devices} devices and stages on "
            f"{max(schedule.device_of_stage) + 1}: expected a list of actions for each device"
        )
    _check_actions(schedule)
    execution_order(schedule, dependencies)
    if max_in_flight is not None:
        _check_in_flight(schedule, max_in_flight)


def check_devices(device_of_stage: Sequence[int]) -> None:
    """Refuses devices that are not numbered from 0, each with a stage.

    Raises:
      ValueError: there is no stage, or a device between 0 and the largest index has none.
    """
    if not device_of_stage:
        raise ValueError("the schedule has no stage: expected one or more")
    idle = sorted(set(range(max(device_of_stage) + 1)) - set(device_of_stage))
    if idle or min(device_of_stage) < 0:
        raise ValueError(
            f"the devices of the stages are {list(device_of_stage)}: expected indices from 0 on, each device with a "
            "stage" + (f"; there is none on device {idle[0]}" if idle else "")
        )


def execution_order(schedule: Schedule, dependencies: Optional[Dependencies] = None) -> List[Action]:
    """All actions in an order that respects the devices' orders and the data flow, for any times of the actions.

    Raises:
      ValueError: there is none: devices wait for each other, or for an action that no device runs.
    """
    sources = sources_of_stages(schedule.num_stages, dependencies)
    done: Set[Action] = set()
    order: List[Action] = []
    position = [0] * schedule.num_devices
    waiting: Dict[Action, List[int]] = collections.defaultdict(list)
    ready: Deque[int] = collections.deque(range(schedule.num_devices))
    while ready:
        device = ready.popleft()
        while position[device] < len(schedule.actions[device]):
            action = schedule.actions[device][position[device]]
            missing = next((needed for needed in sources.of(action) if needed not in done), None)
            if missing is not None:
                waiting[missing].append(device)
                break
            done.add(action)
            order.append(action)
            position[device] += 1
            ready.extend(waiting.pop(action, ()))
    if len(order) < sum(len(actions) for actions in schedule.actions):
        raise ValueError(_deadlock(schedule, position, waiting))
    return order


class Sources(NamedTuple):
    """The data flow between stages, by the stage that waits.

    Attributes:
      earlier: per stage, the stages whose outputs it reads.
      later: per stage, the stages that read its outputs, and so send it gradients.
    """

    earlier: Tuple[Tuple[int, ...], ...]
    later: Tuple[Tuple[int, ...], ...]

    def of(self, action: Action) -> Iterator[Action]:
        """The actions whose results an action reads."""
        stage, kind, micro_batch = action
        if kind == FORWARD:
            for source in self.earlier[stage]:
                yield Action(source, FORWARD, micro_batch)
        else:
            yield Action(stage, FORWARD, micro_batch)
            for source in self.later[stage]:
                yield Action(source, BACKWARD, micro_batch)


def sources_of_stages(num_stages: int, dependencies: Optional[Dependencies] = None) -> Sources:
    """The data flow between stages, by stage.

    Args:
      num_stages: the number of stages.
      dependencies: see `validate`.

    Raises:
      ValueError: a pair is not of an earlier and a later stage.
    """
    pairs = sorted(set(chain(num_stages) if dependencies is None else dependencies))
    for earlier, later in pairs:
        if not 0 <= earlier < later < num_stages:
            raise ValueError(
                f"data flows from stage {earlier} to stage {later} of {num_stages}: expected pairs of an earlier and a "
                "later stage"
            )
    stages = range(num_stages)
    return Sources(
        tuple(tuple(a for a, b in pairs if b == stage) for stage in stages),
        tuple(tuple(b for a, b in pairs if a == stage) for stage in stages),
    )


def peak_in_flight(schedule: Schedule) -> Tuple[int, ...]:
    """Per stage, how many micro batches have at most run forward and not finished backward: activations in memory.

    It follows from the order of each device, for any times of the actions.
    """
    now = [0] * schedule.num_stages
    peak = [0] * schedule.num_stages
    for actions in schedule.actions:
        for action in actions:
            now[action.stage] += 1 if action.kind == FORWARD else -1
            peak[action.stage] = max(peak[action.stage], now[action.stage])
    return tuple(peak)


def _check_actions(schedule: Schedule) -> None:
    """Checks that each action occurs once, on its stage's device, backward after forward, micro batches in order."""
    expected = set(all_actions(schedule.num_stages, schedule.num_micro_batch))
    seen: Set[Action] = set()
    for device, actions in enumerate(schedule.actions):
        for action in actions:
            where = f"schedule {schedule.name}, device {device}: {action}"
            if action not in expected:
                raise ValueError(
                    f"{where} does not exist: expected stages 0 to {schedule.num_stages - 1} and micro batches 0 to "
                    f"{schedule.num_micro_batch - 1}"
                )
            if schedule.device_of_stage[action.stage] != device:
                raise ValueError(f"{where} belongs to device {schedule.device_of_stage[action.stage]}")
            if action in seen:
                raise ValueError(f"{where} is there twice: expected each action once")
            before = action._replace(micro_batch=action.micro_batch - 1)
            if action.micro_batch and before not in seen:
                raise ValueError(f"{where} stands before {before}: expected the micro batches of a pass in their order")
            if action.kind == BACKWARD and action._replace(kind=FORWARD) not in seen:
                raise ValueError(f"{where} stands before {action._replace(kind=FORWARD)}, whose activations it reads")
            seen.add(action)
    if expected - seen:
        action = min(expected - seen)
        device = schedule.device_of_stage[action.stage]
        raise ValueError(f"schedule {schedule.name}, device {device}: {action} is missing")


def all_actions(num_stages: int, num_micro_batch: int) -> Iterator[Action]:
    """The actions of one training step, in no order of execution."""
    for stage in range(num_stages):
        for kind in (FORWARD, BACKWARD):
            for micro_batch in range(num_micro_batch):
                yield Action(stage, kind, micro_batch)


def _check_in_flight(schedule: Schedule, max_in_flight: Sequence[int]) -> None:
    if len(max_in_flight) != schedule.num_stages:
        raise ValueError(
            f"max_in_flight has {len(max_in_flight)} entries: expected one for each of {schedule.num_stages} stages"
        )
    for stage, (peak, bound) in enumerate(zip(peak_in_flight(schedule), max_in_flight)):
        if peak > bound:
            raise ValueError(
                f"schedule {schedule.name}: stage {stage} has {peak} micro batches in flight: expected {bound} at most"
            )


def _deadlock(schedule: Schedule, position: Sequence[int], waiting: Dict[Action, List[int]]) -> str:
    """Describes how devices wait for each other: follows the blocking actions until a device occurs again."""
    missing_of = {device: action for action, devices in waiting.items() for device in devices}
    trail: List[int] = []
    device = min(missing_of)
    while device not in trail:
        trail.append(device)
        missing = missing_of[device]
        device = schedule.device_of_stage[missing.stage]
        if missing not in schedule.actions[device][position[device] :]:
            here = trail[-1]
            return (
                f"schedule {schedule.name}: device {here} waits at {schedule.actions[here][position[here]]} for "
                f"{missing}, which no device runs"
            )
    waits = []
    for at in trail[trail.index(device) :]:
        missing = missing_of[at]
        other = schedule.device_of_stage[missing.stage]
        waits.append(
            f"device {at} waits at {schedule.actions[at][position[at]]} for {missing}, which device {other} runs "
            f"after {schedule.actions[other][position[other]]}"
        )
    return f"schedule {schedule.name} would wait for ever: {'; '.join(waits)}"
