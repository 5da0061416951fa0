"""What the planner decides when a model is first differentiated: all that is open, or the rows of replicas alone.

    the script's own strategy -> candidates -> simulated on the machine -> the fastest that fits

A batch that the script has built in stays: candidates with another number of replicas would train on other batches, and
are left out.
"""

import logging
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.auto_partition.partition import partition
from epl.parallel.plan.strategy import Strategy
from epl.parallel.strategy import forward, record
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import lay_out
from epl.planner.prediction.prediction import predict
from epl.planner.search import comparison
from epl.planner.search.candidates import PlanCandidate, candidates
from epl.planner.search.comparison import Compared, PlanOutcome
from epl.planner.search.planned_model import PlannedModel, planned_model
from epl.planner.search.speed_balance import balanced, is_open, with_balance
from epl.utils.containers import as_list
from epl.utils.errors import EplError, PlanError

logger = logging.getLogger("epl")

# The optimizer is not known when a model is differentiated: it counts as one of the largest that are in use.
_SLOTS = {"first moment": 1.0, "second moment": 1.0}


class SearchResult(NamedTuple):
    """State of a graph (`Graph.state_of`): what a search has compared.

    Attributes:
      compared: the candidates.
      chosen: the one that is used.
    """

    compared: Tuple[Compared, ...]
    chosen: Compared

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
    model = planned_model(graph, record.forward_pass(graph, ys, xs), _SLOTS)
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
    return _searched(graph, ys, model, machine)


def _searched(graph: Graph, ys: Any, model: PlannedModel, machine: Machine) -> Strategy:
    """The fastest candidate that fits."""
    replicas = _replicas(model.strategy, model, machine)

    def balanced_candidates() -> Iterator[PlanCandidate]:
        for one in candidates(model.strategy, model.rows, lambda count: _stages(graph, ys, count)):
            try:
                yield one._replace(strategy=balanced(one.strategy, model.costs, machine, model.rows))
            except EplError:  # the comparison says why
                yield one

    def simulate(strategy: Strategy) -> PlanOutcome:
        if model.costs.rows is not None and _replicas(strategy, model, machine) != replicas:
            raise PlanError(f"another number of replicas, and the script has {model.costs.rows} rows for each.")
        return outcome(strategy, model, machine)

    compared = comparison.compare(list(balanced_candidates()), simulate)
    chosen = comparison.best(compared)
    graph.keep(SearchResult, SearchResult(tuple(compared), chosen))
    logger.info("%s", "\n".join(comparison.describe(compared, chosen)))
    return chosen.candidate.strategy


def _replicas(strategy: Strategy, model: PlannedModel, machine: Machine) -> int:
    even = with_balance(strategy, "even") if is_open(strategy) else strategy
    return lay_out(even, machine, model.rows).ranks


def outcome(strategy: Strategy, model: PlannedModel, machine: Machine) -> PlanOutcome:
    """What the simulator says of a strategy of a model on a machine."""
    found = predict(strategy, model.costs, machine, model.rows)
    lacking = [(f"{one.name} ({one.kind})", float(one.memory.lacks)) for one in found.devices if one.memory.lacks]
    return PlanOutcome(found.seconds, tuple(lacking))


def with_memory_fraction(machine: Machine, fraction: float) -> Machine:
    """The machine with a part of the memory of its devices."""
    devices = [
        one if one.memory is None else one._replace(memory=int(one.memory * fraction)) for one in machine.devices
    ]
    return machine._replace(devices=tuple(devices))


def _stages(graph: Graph, ys: Any, count: int) -> Optional[Sequence[int]]:
    """The stage of each op of the forward pass; None if the model has too few units of work."""
    view = GraphView(graph.tf_graph)
    cluster = Env.get().cluster
    assert cluster is not None
    roots: List[str] = [y.op.name for y in as_list(ys)]
    try:
        found = partition(graph.tf_graph, view, roots, count, cluster.device_type.lower())
    except PlanError:
        return None
    return [found.of_node[node] for node in forward.forward_ops(graph.tf_graph, view, ys)]
