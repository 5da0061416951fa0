"""How many devices a model needs that does not fit: the fewest of the same kinds, with the same machine repeated.

    machine x 2    x 4    x 8      doubled until a plan fits
    lacks          lacks  fits
                   x 6    x 5      then halved
                   fits   lacks    ->  x 6

Each number is simulated, up to a limit. That more devices may lack what fewer do not is left out of account.
"""

import json
import logging
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from epl.parallel.plan.strategy import Strategy
from epl.planner.machine import presets
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import decided
from epl.planner.prediction.prediction import predict
from epl.planner.search.candidates import PlanCandidate
from epl.planner.search.planned_model import PlannedModel
from epl.planner.search.search_time import SearchTime
from epl.planner.search.speed_balance import KEY, with_balance
from epl.utils.errors import EplError

logger = logging.getLogger("epl.search.capacity")

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


class CapacitySearch(NamedTuple):
    """What a search for enough devices has found.

    Attributes:
      enough: what would do; None if nothing was found.
      is_interrupted: whether Ctrl-C has ended it: fewer devices may do.
    """

    enough: Optional[Capacity]
    is_interrupted: bool = False


# Given a model on a larger job: the name of a plan that fits, or None.
FindFitting = Callable[[PlannedModel], Optional[str]]


def find_capacity(
    model: PlannedModel, is_rows_set: bool, find: FindFitting, search_time: SearchTime, most: int = MOST_DEVICES
) -> CapacitySearch:
    """The fewest devices on which a plan fits.

    Args:
      model: on a machine that is known to be too small.
      is_rows_set: whether the rows of the global batch stay; else those of each device do.
      find: looks for a plan of a larger job.
      search_time: of this search.
      most: devices.
    """
    devices = model.machine.num_devices
    found: Dict[int, Optional[str]] = {1: None}

    def fits(times: int) -> bool:
        if times not in found:
            found[times] = find(repeated(model, times, is_rows_set))
            plan = found[times]
            told = "too few" if plan is None else f"enough, plan {json.dumps(plan)}"
            logger.info("search: %d devices are %s", times * devices, told)
        return found[times] is not None

    largest = most // devices
    if largest > 1:
        stop = "; Ctrl-C ends this search alone" if search_time.may_stop else ""
        logger.info("search: memory is too small; looking for the fewest devices that would do, up to %d%s", most, stop)
    with search_time.until_interrupted():
        fewest(fits, largest)
    fitting = {times: plan for times, plan in found.items() if plan is not None}
    if not fitting:
        return CapacitySearch(None, search_time.interrupted)
    times = min(fitting)
    rows = repeated(model, times, is_rows_set).rows
    return CapacitySearch(Capacity(times, times * devices, fitting[times], rows), search_time.interrupted)


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


def in_words(found: CapacitySearch, machine: Machine, most: int = MOST_DEVICES) -> str:
    """What would do, in a sentence or two; "" if nothing was looked for."""
    enough = found.enough
    if enough is None:
        if found.is_interrupted:
            return "Ctrl-C ended the search for enough devices."
        return "" if 2 * machine.num_devices > most else f"No number of such devices up to {most} would do."
    fewer = " Fewer may do: Ctrl-C ended the search for them." if found.is_interrupted else ""
    return (
        f"{enough.devices} such devices would do, by the simulator: {enough.times} times the machine, "
        f"{enough.rows} rows, plan {json.dumps(enough.plan)}.{fewer}"
    )
