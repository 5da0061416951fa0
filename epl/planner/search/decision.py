"""What the planner decides when a model is first differentiated: all that is open, or the rows of replicas alone.

    the script's own strategy -> candidates -> simulated on the machine -> the fastest that fits

A candidate must train on the same batches as the script as it is (`training_batches`). Others are left out.
"""

import contextlib
import logging
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.auto_partition.partition import Partitioner, places_in_chain
from epl.parallel.plan.strategy import Strategy
from epl.parallel.strategy import record
from epl.parallel.strategy.record import ForwardPass
from epl.planner.machine.machine import Device, Machine
from epl.planner.prediction.layout import decided, lay_out
from epl.planner.prediction.prediction import KnownParts, predict
from epl.planner.search import capacity, comparison
from epl.planner.search.block_estimate import BlockEstimate
from epl.planner.search.block_plans import BlockPlans
from epl.planner.search.by_blocks import search_blocks
from epl.planner.search.candidate_estimate import CandidateEstimate
from epl.planner.search.candidates import (
    PlanCandidate,
    StagesOf,
    candidates,
    has_scopes,
    in_stages,
    is_data_parallel,
    is_left_alone,
)
from epl.planner.search.comparison import Compared, PlanOutcome
from epl.planner.search.device_orders import device_orders, with_order
from epl.planner.search.model_blocks import find_blocks
from epl.planner.search.planned_model import PlannedModel, planned_model
from epl.planner.search.reasons import with_origins
from epl.planner.search.search_time import SearchTime
from epl.planner.search.speed_balance import KEY, SPEED, balanced, is_open, with_balance
from epl.planner.search.split_choices import SplitChooser, with_choices_of_all, with_own_choices
from epl.planner.search.stage_search import StageSearch
from epl.planner.search.timed_comparison import TimedComparison
from epl.planner.search.training_batches import (
    TrainingBatches,
    may_cut_rows,
    refuse_other_batches,
    training_batches,
)
from epl.utils.errors import EplError, PlanError

logger = logging.getLogger("epl")

_ROWS_OF_PROCESSES = (
    "Rows by speed were not tried, as each process feeds its own: set auto.balance to speed, and feed epl.local_rows."
)
_ESTIMATED = 300  # ops of a model from which on a walk takes estimates of plans, and simulates the best alone

# The optimizer is not known when a model is differentiated: it counts as one of the largest that are in use.
_SLOTS = {"first moment": 1.0, "second moment": 1.0}


class SearchResult(NamedTuple):
    """State of a graph (`Graph.state_of`): what a search has compared.

    Attributes:
      compared: the candidates.
      chosen: the one that is used.
      by_blocks: how plans by blocks were searched, in words; "" if the script leaves no blocks open.
      left_out: what was not compared for want of time, in words; "" if all was.
    """

    compared: Tuple[Compared, ...]
    chosen: Compared
    by_blocks: str = ""
    left_out: str = ""

    def in_order(self) -> List[Compared]:
        """Those that fit by time, then those that do not, then what cannot be simulated."""
        return comparison.in_order(self.compared)


def find_strategy(graph: Graph, ys: Any, xs: Sequence[Any]) -> Strategy:
    """The strategy for a model that is about to be differentiated.

    Args:
      graph: the model.
      ys: its objective.
      xs: what it is differentiated by.

    Raises:
      PlanError, MachineError: no plan fits, or the machine or the rows are not known.
    """
    auto = Env.get().config.auto
    search_time = SearchTime(float(auto.budget) if auto.steps < 0 else None, may_stop=record.is_recording())
    found = record.forward_pass(graph, ys, xs)
    model = planned_model(graph, found, _SLOTS)
    model = model._replace(strategy=with_own_choices(model.strategy, graph, found, ys))
    model = model._replace(assumptions=(*model.assumptions, "the optimizer has two slots for each variable, as Adam"))
    config = Env.get().config
    machine = with_memory_fraction(model.machine, config.auto.memory_fraction)
    if config.auto.planner != "search":
        if config.auto.auto_parallel:
            raise PlanError(
                'auto.balance is "speed" and auto.auto_parallel is on: the rows depend on stages that are found later. '
                'Set auto.planner to "search", which finds both.'
            )
        return balanced(model.strategy, model.costs, machine, model.rows)
    return _searched(graph, found, ys, model, machine, search_time)


def _searched(
    graph: Graph, found: ForwardPass, ys: Any, model: PlannedModel, machine: Machine, search_time: SearchTime
) -> Strategy:
    """The fastest candidate that fits."""
    stages_of = _StagesOf(graph, found)
    model, own = _as_it_is(stages_of, model, machine)
    are_cut = may_cut_rows(graph, model)
    known = KnownParts(model.costs, machine, model.strategy)
    orders = device_orders(model.strategy, machine)

    def all_candidates() -> List[PlanCandidate]:
        every: List[PlanCandidate] = []
        for order in ["", *orders]:
            ordered = model._replace(strategy=with_order(model.strategy, order)) if order else model
            found_here = candidates(ordered.strategy, model.rows, stages_of)
            found_here += _cut_for_devices(graph, found, ordered, machine, trains_the_same, search_time)
            if order:
                stages = [one for one in found_here if len(one.strategy.blocks) > 1]
                found_here = [PlanCandidate(f"{one.name}, devices {order}", one.strategy) for one in stages]
            every += found_here
        wanted = _wanted(every)
        return wanted + (_with_rows_by_speed(wanted, model, machine) if are_cut else [])

    def with_rows(strategy: Strategy) -> Strategy:
        return balanced(strategy, model.costs, machine, model.rows, known)

    def trains_the_same(strategy: Strategy) -> bool:
        try:
            refuse_other_batches(training_batches(strategy, model, machine), own, are_cut)
        except EplError:
            return False
        return are_cut or max(block.devices for block in strategy.blocks) == 1  # these divide the rows of a batch

    def refuse(strategy: Strategy) -> None:
        refuse_other_batches(training_batches(strategy, model, machine), own, are_cut)

    def simulate(strategy: Strategy) -> PlanOutcome:
        refuse(strategy)
        return outcome(strategy, model, machine, known)

    estimate = CandidateEstimate(model.costs, known.links, model.rows)
    timed = TimedComparison(all_candidates(), simulate, refuse, estimate, with_rows)
    leaves_blocks = _leaves_blocks(model.strategy)
    timed.simulate_always(search_time)
    timed.simulate_others(search_time, 0.5 if leaves_blocks else 1.0)
    plans_by_blocks: List[Compared] = []
    by_blocks = ""
    if leaves_blocks and not search_time.interrupted:
        base = _fastest_first(model, machine, orders)
        plans = _block_plans(graph, found, ys, model._replace(strategy=base), machine, are_cut)
        is_large = len(model.strategy.ops) >= _ESTIMATED
        searched = search_blocks(
            base,
            plans,
            with_rows,
            simulate,
            BlockEstimate(plans, model.costs, machine, model.rows, known) if is_large else None,
            search_time,
        )
        plans_by_blocks, by_blocks = list(searched.compared), searched.told
        timed.simulate_others(search_time)
    compared = [*timed.compared(search_time.in_words()), *plans_by_blocks]
    try:
        chosen = comparison.best(compared)
    except PlanError as error:
        if all(one.outcome is None for one in compared):
            raise
        raise PlanError(f"{error} {_enough_devices(graph, found, ys, stages_of, model, are_cut)}".rstrip()) from None
    words = ([f"{timed.left} candidates"] if timed.left else []) + search_time.left_out
    left_out = f"{', '.join(words)}: not simulated, as {search_time.in_words()}" if words else ""
    if are_cut and _leaves_rows(model.strategy, machine) and model.strategy.workers > 1:
        left_out = " ".join(filter(None, (left_out and f"{left_out}.", _ROWS_OF_PROCESSES)))
    graph.keep(SearchResult, SearchResult(tuple(compared), chosen, by_blocks, left_out))
    logger.info("%s", "\n".join(comparison.describe(compared, chosen)))
    return with_origins(chosen, compared)


def _enough_devices(
    graph: Graph, found: ForwardPass, ys: Any, stages_of: StagesOf, model: PlannedModel, are_cut: bool
) -> str:
    """How many devices would do for a model that fits by no candidate, in a sentence."""
    fraction = Env.get().config.auto.memory_fraction

    def find(larger: PlannedModel) -> Optional[str]:
        machine = with_memory_fraction(larger.machine, fraction)
        try:
            larger = larger._replace(strategy=with_choices_of_all(larger.strategy, graph, found, ys, machine))
        except EplError:
            return None  # the split cannot be cut for so many devices
        own = training_batches(larger.strategy, larger, machine)
        allowed = []
        for one in candidates(larger.strategy, larger.rows, stages_of):
            with contextlib.suppress(EplError):
                refuse_other_batches(training_batches(one.strategy, larger, machine), own, are_cut)
                allowed.append(one)
        tried = capacity.most_saving(allowed)
        return next((one.name for one in tried if capacity.fits(one.strategy, larger, machine)), None)

    is_rows_set = bool(Env.get().config.auto.rows)
    searched = capacity.find_capacity(model, is_rows_set, find, SearchTime(None, may_stop=record.is_recording()))
    words = capacity.in_words(searched, model.machine)
    is_none = searched.enough is None and not searched.is_interrupted
    return f"By rows or in stages, {words[:1].lower()}{words[1:]}" if words and is_none else words


def _cut_for_devices(
    graph: Graph,
    found: ForwardPass,
    model: PlannedModel,
    machine: Machine,
    trains_the_same: Callable[[Strategy], bool],
    search_time: SearchTime,
) -> List[PlanCandidate]:
    """Pipelines that are cut for the devices of their stages, as time allows; none if the script has scopes."""
    if has_scopes(model.strategy):
        return []
    config = Env.get().config
    count = config.pipeline.num_stages if config.is_set("pipeline.num_stages") else None
    roots = [found.view.nodes[node].name for node in found.nodes]
    place = places_in_chain(graph.tf_graph, found.view, roots)
    by_speed = is_open(model.strategy)
    base = with_balance(model.strategy, "even") if by_speed else model.strategy
    search = StageSearch(base, model.costs, machine, model.rows, [place[node] for node in found.nodes])
    pipelines: List[PlanCandidate] = []
    late: List[int] = []
    for stages in search.depths() if count in (None, -1) else [count]:
        with search_time.until_interrupted():
            if not search_time.is_over():
                pipelines += search.candidates(trains_the_same, [stages])
                continue
        late.append(stages)
    if late:
        words = f"pipelines of {', '.join(map(str, late))} stages that are cut for their devices"
        search_time.left_out += [] if words in search_time.left_out else [words]  # in several orders of the devices
    if by_speed:
        pipelines = [one._replace(strategy=with_balance(one.strategy, SPEED)) for one in pipelines]
    return pipelines


def _fastest_first(model: PlannedModel, machine: Machine, orders: Sequence[str]) -> Strategy:
    """The strategy with the device first that computes the model in the least time: a group's first may do it alone."""
    kinds = machine.placed_devices()

    def in_order(order: str) -> List[Device]:
        return [kinds[int(at)] for at in order.split(",")] if order else list(kinds[: model.strategy.devices])

    def seconds(order: str) -> Tuple[float, List[str]]:
        found = model.costs.at(model.rows, in_order(order)[0])
        return sum(found.forward) + sum(found.backward), [device.name for device in in_order(order)]

    best = min(["", *orders], key=seconds)
    return with_order(model.strategy, best) if best else model.strategy


def _leaves_rows(strategy: Strategy, machine: Machine) -> bool:
    """Whether the rows of replicas are open, and the devices are of several kinds."""
    return is_left_alone(strategy, KEY) and len(set(machine.placed_devices())) > 1


def _with_rows_by_speed(every: Sequence[PlanCandidate], model: PlannedModel, machine: Machine) -> List[PlanCandidate]:
    """The candidates of several replicas once more, with rows by the speed of their devices, where that is open.

    In a job of several processes each feeds its own rows, so that a plan cannot move rows from one to another.
    """
    if not _leaves_rows(model.strategy, machine) or model.strategy.workers > 1 or Env.get().asked_local_rows:
        return []
    found = []
    for one in every:
        with contextlib.suppress(EplError):
            if training_batches(one.strategy, model, machine).replicas > 1:
                strategy = with_balance(one.strategy, SPEED)
                found.append(PlanCandidate(f"{one.name}, rows by speed", strategy))
    return found


def _leaves_blocks(strategy: Strategy) -> bool:
    """Whether the search may decide how each block is computed: all of them share the devices of the job."""
    config = Env.get().config
    wants_stages = config.is_set("pipeline.num_stages") and config.pipeline.num_stages not in (None, -1, 1)
    return is_data_parallel(strategy) and not wants_stages and strategy.workers * strategy.devices > 1


def _block_plans(
    graph: Graph, found: ForwardPass, ys: Any, model: PlannedModel, machine: Machine, are_cut: bool
) -> BlockPlans:
    rows = max(1, model.rows // machine.num_devices)
    costs = model.costs.at(rows, machine.slowest)
    seconds = [forward + backward for forward, backward in zip(costs.forward, costs.backward)]
    blocks = find_blocks(graph, found, seconds)
    even = with_balance(model.strategy, "even") if is_open(model.strategy) else model.strategy
    enough = machine.num_devices * int(decided(even)["pipeline.num_micro_batch"])
    devices = lay_out(even, machine, enough).stages[0]

    def seconds_on(kind: Device) -> float:
        on_kind = model.costs.at(rows, kind)
        return sum(on_kind.forward) + sum(on_kind.backward)

    chooser = SplitChooser(graph, found, ys, machine)
    colocates = Env.get().config.cluster.colocate_split_and_replicate
    return BlockPlans(model.strategy, blocks, machine, devices, seconds_on, chooser, are_cut, colocates)


def _as_it_is(stages_of: StagesOf, model: PlannedModel, machine: Machine) -> Tuple[PlannedModel, TrainingBatches]:
    """The model with the stages that `auto.auto_parallel` would find without a search; how it takes batches."""
    config = Env.get().config
    count = config.pipeline.num_stages or 1
    if config.auto.auto_parallel and count > 1 and not has_scopes(model.strategy):
        stages = stages_of(count)
        if stages is not None:
            model = model._replace(strategy=in_stages(model.strategy, stages, count))
    own = training_batches(model.strategy, model, machine)
    if model.costs.rows is not None and not config.auto.rows:
        model = model._replace(rows=model.costs.rows * own.replicas * own.micro_batches * own.runs)
    return model, own


def _wanted(found: Sequence[PlanCandidate]) -> List[PlanCandidate]:
    """The candidates with `pipeline.num_stages`, if that is set.

    Raises:
      PlanError: there is none.
    """
    config = Env.get().config
    count = config.pipeline.num_stages
    if not config.is_set("pipeline.num_stages") or count in (None, -1):
        return list(found)
    wanted = [one for one in found if len(one.strategy.blocks) == count]
    if not wanted:
        raise PlanError(
            f"pipeline.num_stages is {count}, and no candidate of the search has as many stages: they divide the "
            "devices of the job evenly, or are the scopes of the script. Leave the key out, or set another number."
        )
    return wanted


def outcome(
    strategy: Strategy, model: PlannedModel, machine: Machine, known: Optional[KnownParts] = None
) -> PlanOutcome:
    """What the simulator says of a strategy of a model on a machine."""
    found = predict(strategy, model.costs, machine, model.rows, known=known)
    lacking = [(one.name, float(one.memory.lacks)) for one in found.devices if one.memory.lacks]
    return PlanOutcome(found.seconds, tuple(lacking))


def with_memory_fraction(machine: Machine, fraction: float) -> Machine:
    """The machine with a part of the memory of its devices."""
    devices = [
        one if one.memory is None else one._replace(memory=int(one.memory * fraction)) for one in machine.devices
    ]
    return machine._replace(devices=tuple(devices))


class _StagesOf:
    """Given a number of stages: the stage of each op of the forward pass; None if there are too few units of work."""

    def __init__(self, graph: Graph, found: ForwardPass) -> None:
        self._graph, self._found = graph, found
        self._partitioner: Optional[Partitioner] = None
        self._known: Dict[int, Optional[Sequence[int]]] = {}

    def __call__(self, count: int) -> Optional[Sequence[int]]:
        if count not in self._known:
            self._known[count] = self._find(count)
        return self._known[count]

    def _find(self, count: int) -> Optional[Sequence[int]]:
        found = self._found
        if self._partitioner is None:
            cluster = Env.get().cluster
            assert cluster is not None
            roots = [found.view.nodes[node].name for node in found.nodes]
            device_type = cluster.device_type.lower()
            self._partitioner = Partitioner(self._graph.tf_graph, found.view, roots, device_type)
        try:
            divided = self._partitioner.partition(count)
        except PlanError:
            return None
        return [divided.of_node[node] for node in found.nodes]
