"""How many devices a model needs that does not fit: the fewest of the same kinds, with the same machine repeated.

    machine x 2    x 4    x 8      doubled until a plan fits
    lacks          lacks  fits
                   x 6    x 5      then halved
                   fits   lacks    ->  x 6

Each number is simulated, up to a limit. That more devices may lack what fewer do not is left out of account.
"""

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from epl.parallel.plan.strategy import Strategy
from epl.planner.machine import presets
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import decided
from epl.planner.prediction.prediction import predict
from epl.planner.search.candidates import PlanCandidate
from epl.planner.search.planned_model import PlannedModel
from epl.planner.search.speed_balance import KEY, with_balance
from epl.utils.errors import EplError

MOST_DEVICES = 512
_MOST_PASSES = 4096  # stages x micro batches of a pipeline that is simulated here
_NETWORK = "eth-10"  # between copies of a machine that names no network
_LEVELS = ("", "v0", "v1", "v2")


class Capacity(NamedTuple):
    """What would do.

    Attributes:
      times: how often the machine stands there.
      devices: all of them.
      plan: the name of the plan that fits.
      rows: of its global batch.
    """

    times: int
    devices: int
    plan: str
    rows: int


# Given a model on a larger job: the name of a plan that fits, or None.
FindFitting = Callable[[PlannedModel], Optional[str]]


def find_capacity(model: PlannedModel, is_rows_set: bool, find: FindFitting, most: int) -> Optional[Capacity]:
    """The fewest devices on which a plan fits; None if none does with up to `most`.

    Args:
      model: on a machine that is known to be too small.
      is_rows_set: whether the rows of the global batch stay; else those of each device do.
      find: looks for a plan of a larger job.
      most: devices.
    """
    found: Dict[int, Optional[str]] = {1: None}

    def fits(times: int) -> bool:
        if times not in found:
            found[times] = find(repeated(model, times, is_rows_set))
        return found[times] is not None

    largest = most // model.machine.num_devices
    times = fewest(fits, largest)
    if times is None:
        return None
    plan = found[times]
    assert plan is not None
    return Capacity(times, times * model.machine.num_devices, plan, repeated(model, times, is_rows_set).rows)


def fewest(fits: Callable[[int], bool], largest: int) -> Optional[int]:
    """The smallest number from 2 to `largest` that fits, of numbers of which all larger ones do; None if none does."""
    too_few, enough = 1, min(2, largest)
    while enough > too_few and not fits(enough):
        too_few, enough = enough, min(2 * enough, largest)
    if enough <= too_few:
        return None
    while enough - too_few > 1:
        between = (too_few + enough) // 2
        if fits(between):
            enough = between
        else:
            too_few = between
    return enough


def repeated(model: PlannedModel, times: int, is_rows_set: bool) -> PlannedModel:
    """A model on a job of so many times the workers, on so many copies of its machine."""
    machine = model.machine
    nodes, links = machine.nodes, machine.links
    if any(not node.network for node in nodes):
        nodes = tuple(node._replace(network=node.network or _NETWORK) for node in nodes)
        if all(link.name != _NETWORK for link in links):
            links = (*links, presets.LINKS[_NETWORK])
    strategy = model.strategy._replace(workers=times * model.strategy.workers)
    if decided(strategy)[KEY] != "even":  # proportions are those of fewer replicas
        strategy = with_balance(strategy, "even")
    return model._replace(
        strategy=strategy,
        machine=machine._replace(name=f"{times} x {machine.name}", nodes=nodes * times, links=links),
        rows=model.rows if is_rows_set else times * model.rows,
    )


def most_saving(candidates: Sequence[PlanCandidate]) -> List[PlanCandidate]:
    """For each number of blocks the candidate that saves most memory: gradient checkpoint, ZeRO, small micro batches.

    Plans of very many passes are left out: they take long to simulate.
    """
    found: Dict[int, PlanCandidate] = {}
    for one in candidates:
        blocks = len(one.strategy.blocks)
        values = decided(one.strategy)
        is_long = blocks * int(values["pipeline.num_micro_batch"]) > _MOST_PASSES
        if not is_long and (blocks not in found or _savings(one) > _savings(found[blocks])):
            found[blocks] = one
    return [found[blocks] for blocks in sorted(found)]


def _savings(one: PlanCandidate) -> Any:
    values = decided(one.strategy)
    level = str(values["zero.level"])
    return (
        bool(values["gradient_checkpoint.type"]),
        _LEVELS.index(level) if level in _LEVELS else 0,
        int(values["pipeline.num_micro_batch"]),
    )


def fits(strategy: Strategy, model: PlannedModel, machine: Machine) -> bool:
    """Whether a strategy of a model can be simulated on a machine, and fits."""
    try:
        return predict(strategy, model.costs, machine, model.rows).fits
    except EplError:
        return False


def in_words(found: Optional[Capacity], machine: Machine, most: int = MOST_DEVICES) -> str:
    """What would do, in a sentence."""
    if found is None:
        if 2 * machine.num_devices > most:
            return ""
        return f"No number of such devices up to {most} would do."
    return (
        f"{found.devices} such devices would do, by the simulator: {found.times} times the machine, "
        f"{found.rows} rows, plan {json.dumps(found.plan)}."
    )
