"""Simulates a pipeline schedule: times of its actions, idle time, micro batches in flight; and draws it.

A simulation takes the order of each device from the schedule and the times of the passes from the caller; nothing else
uses the devices. `bubble_bound` is the idle time that equal stages cannot avoid, for comparison.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from epl.parallel.plan import schedule as schedules
from epl.parallel.plan.schedule import BACKWARD, FORWARD, Action, Dependencies, Schedule

PerStage = Union[float, Sequence[float]]


class Simulation(NamedTuple):
    """The course of one training step.

    Attributes:
      start_s: when each action starts, from 0 on.
      end_s: when each action ends.
      total_s: when the last action ends.
      bubble: per device, its idle share of `total_s`.
      peak_in_flight: per stage, how many micro batches are at most in memory: from the start of their forward pass to
        the end of their backward pass.
    """

    start_s: Dict[Action, float]
    end_s: Dict[Action, float]
    total_s: float
    bubble: Tuple[float, ...]
    peak_in_flight: Tuple[int, ...]


def simulate(
    schedule: Schedule,
    forward_s: PerStage,
    backward_s: PerStage,
    transfer_s: float = 0.0,
    dependencies: Optional[Dependencies] = None,
) -> Simulation:
    """Simulates a schedule: each device runs its actions in order, each as soon as its inputs are ready.

    Args:
      schedule: the schedule.
      forward_s: seconds of a forward pass over one micro batch, for all stages or per stage.
      backward_s: the same for a backward pass.
      transfer_s: seconds from the end of a pass until another device has its result; no device is busy with it.
      dependencies: the data flow between stages, see `epl.parallel.plan.schedule.validate`.

    Raises:
      ValueError: times are negative or not one per stage, or the devices would wait for ever.
    """
    if transfer_s < 0:
        raise ValueError(f"transfer_s is {transfer_s}: expected seconds, 0 or more")
    seconds = {
        FORWARD: _per_stage("forward_s", forward_s, schedule.num_stages),
        BACKWARD: _per_stage("backward_s", backward_s, schedule.num_stages),
    }
    sources = schedules.sources_of_stages(schedule.num_stages, dependencies)
    start_s: Dict[Action, float] = {}
    end_s: Dict[Action, float] = {}
    free = [0.0] * schedule.num_devices
    busy = [0.0] * schedule.num_devices
    for action in schedules.execution_order(schedule, dependencies):
        device = schedule.device_of_stage[action.stage]
        start = free[device]
        for source in sources.of(action):
            away = schedule.device_of_stage[source.stage] != device
            start = max(start, end_s[source] + (transfer_s if away else 0.0))
        start_s[action] = start
        end_s[action] = free[device] = start + seconds[action.kind][action.stage]
        busy[device] += seconds[action.kind][action.stage]
    total = max(free)
    bubble = tuple(1 - part / total if total else 0.0 for part in busy)
    return Simulation(start_s, end_s, total, bubble, schedules.peak_in_flight(schedule))


def _per_stage(name: str, value: PerStage, num_stages: int) -> List[float]:
    values = [float(value)] * num_stages if isinstance(value, (int, float)) else [float(item) for item in value]
    if len(values) != num_stages or min(values) < 0:
        raise ValueError(f"{name} is {value}: expected seconds, 0 or more, for all stages or for each of {num_stages}")
    return values


def bubble_bound(num_devices: int, num_micro_batch: int, stages_per_device: int = 1) -> float:
    """The idle share of a step on each device of a pipeline with equal stages, without transfer times.

    With one stage per device it is (D - 1) / (M + D - 1) (Huang et al. 2019, "GPipe", section 2.3). With v interleaved
    stages per device it is (D - 1) / (v * M + D - 1): the bubble is v times shorter. Narayanan et al. 2021, "Efficient
    Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2, relate it to the time without
    the bubble: (D - 1) / (v * M).

    Args:
      num_devices: D, the devices of one model replica.
      num_micro_batch: M, at least D when stages are interleaved: with fewer the bubble is longer.
      stages_per_device: v.
    """
    return (num_devices - 1) / (stages_per_device * num_micro_batch + num_devices - 1)


def draw(schedule: Schedule, forward: int = 1, backward: int = 2, dependencies: Optional[Dependencies] = None) -> str:
    """The schedule as a picture: a line per device, time to the right, a column per unit of time.

        device 0 |F0|F1|..|..|B0:::|..|B1:::|
        device 1 |..|F0|B0:::|F1|B1:::|..|..|

    The first column of an action has its name, the others `:`; `..` is idle. If devices run several stages, the name
    includes the stage (`2F0`).

    Args:
      schedule: the schedule.
      forward: units of time of a forward pass, a whole number.
      backward: the same for a backward pass.
      dependencies: the data flow between stages, see `epl.parallel.plan.schedule.validate`.

    Raises:
      ValueError: a pass has no column, or the devices would wait for ever.
    """
    if forward != int(forward) or backward != int(backward) or min(forward, backward) < 1:
        raise ValueError(
            f"passes of {forward} and {backward} columns cannot be drawn: expected whole numbers, 1 or more"
        )
    simulation = simulate(schedule, forward, backward, 0, dependencies)
    several = schedule.num_stages > schedule.num_devices
    names = {action: str(action) if several else str(action)[len(str(action.stage)) :] for action in simulation.start_s}
    width = max(len(name) for name in names.values())
    lines = []
    for device, actions in enumerate(schedule.actions):
        cells, now = [], 0
        for action in actions:
            start, end = int(simulation.start_s[action]), int(simulation.end_s[action])
            cells += ["." * width] * (start - now)
            # One cell for all columns of the action, as wide as they are with the bars between them.
            cells.append(names[action].ljust(width).ljust((width + 1) * (end - start) - 1, ":"))
            now = end
        cells += ["." * width] * (int(simulation.total_s) - now)
        lines.append(f"device {device} |{'|'.join(cells)}|")
    return "\n".join(lines) + "\n"
