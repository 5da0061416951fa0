"""How the ops of a part of a model would be computed on shards, found before the model is annotated.

    ops of the part -> region -> unsplit program -> the search of epl/parallel/split, with the links and the device of
    the machine in place of those that it assumes when a script is split by hand

The graph is read alone. What is found is a part of a strategy, whose choices the lowering of a split follows.
"""

from typing import Any, Dict, FrozenSet, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.costs.op_times import OpTimes
from epl.parallel.plan.hierarchy import costs_of_job
from epl.parallel.plan.strategy import Block, PlannedChoice, SplitChoices, Strategy
from epl.parallel.split import report
from epl.parallel.split.decision import decide_split, find_full_inputs
from epl.parallel.split.given_choices import choice_of, of_strategy
from epl.parallel.split.groups import plan_split
from epl.parallel.split.program import Program
from epl.parallel.split.readers import with_readers
from epl.parallel.split.region import find_region
from epl.parallel.split.resharding_paths import Link
from epl.parallel.split.search import FULL_VARIABLE, Limits, is_trained, search
from epl.parallel.split.shape_inference import OpenShape, open_shapes
from epl.parallel.strategy.record import ForwardPass, choices_of
from epl.planner.machine.machine import Machine

# How many moved bytes a byte of a variable counts as that each rank has in full: its gradient is all-reduced, or it is
# to be cut for the memory that it takes, as where a script is split by hand.
FAST, SMALL = 2.0, FULL_VARIABLE

_PROBE = 64e6  # bytes of a collective whose time tells the bandwidth
_MOST_PROGRAMS = 8  # that are kept

Ratios = Tuple[int, ...]


def with_own_choices(strategy: Strategy, graph: Graph, found: ForwardPass, ys: Any) -> Strategy:
    """The strategy of a script with the choices that its own splits would have without the planner.

    Args:
      strategy: of the script as it is.
      graph: the model, about to be differentiated.
      found: its forward pass.
      ys: its objective.

    Raises:
      PlanError: the model cannot be split as annotated.
    """
    plan = plan_split(graph)
    if plan is None:
        return strategy
    return strategy._replace(choices=choices_of(decide_split(graph, plan, tf.nest.flatten(ys)).section, found))


def is_over_all(block: Block) -> bool:
    """Whether a block is a split over all devices, however many there are."""
    return block.kind == "split" and not block.devices


def with_choices_of_all(strategy: Strategy, graph: Graph, found: ForwardPass, ys: Any, machine: Machine) -> Strategy:
    """The strategy with new choices for its splits over all devices, for as many as its job has now; else itself.

    Args:
      strategy: of a job with another number of devices than the script is run for; its splits have no ratios.
      graph: the model, about to be differentiated.
      found: its forward pass.
      ys: its objective.
      machine: of the larger job.

    Raises:
      PlanError: the model cannot be cut for so many devices.
    """
    splits = {number for number, one in enumerate(strategy.blocks) if is_over_all(one)}
    if not splits:
        return strategy
    ranks = strategy.workers * strategy.devices
    ratios: Dict[int, Ratios] = {place: () for place, op in enumerate(strategy.ops) if op.block in splits}
    choices = SplitChooser(graph, found, ys, machine).choose(ratios, ranks, SMALL)
    return strategy._replace(choices=choices)


class SplitChooser:
    """Finds choices for parts of one model on one machine; it keeps the programs that it has read."""

    def __init__(self, graph: Graph, found: ForwardPass, ys: Any, machine: Machine) -> None:
        """Takes a model that is about to be differentiated.

        Args:
          graph: the model.
          found: its forward pass.
          ys: its objective.
          machine: of the job.
        """
        self._graph, self._found, self._machine = graph, found, machine
        self._objective = tf.nest.flatten(ys)
        self._full_inputs = find_full_inputs(graph, self._objective)
        env = Env.get()
        assert env.cluster is not None
        asked, job = env.config.communication.hierarchy, env.cluster
        self._links = costs_of_job(machine, job.worker_num, job.gpu_num_per_worker, asked)
        self._place = {op.name: place for place, op in enumerate(found.ops)}
        # The shapes of the last region: that of the whole model is taken for each number of ranks.
        self._shapes: Tuple[Sequence[tf.Operation], Dict[tf.Tensor, OpenShape]] = ((), {})
        self._programs: Dict[Tuple[FrozenSet[Tuple[int, Ratios]], int], Program] = {}

    def choose(
        self, ratios: Mapping[int, Ratios], ranks: int, full_variable: float, given: Optional[Mapping[int, str]] = None
    ) -> Tuple[PlannedChoice, ...]:
        """The choices that cost least.

        Args:
          ratios: for each op of the part, by its place in the forward pass, the ratios in which it is cut; () for
            equal shards.
          ranks: of a group.
          full_variable: FAST, SMALL, or another weight of variables that stay whole.
          given: choices that are decided, by place, ops without one computed in full; None: all are open.

        Raises:
          PlanError: the part cannot be split, or not so.
        """
        program = self._program(ratios, ranks)
        limits: Optional[Limits] = None
        if given is not None:
            texts = {op.name: given.get(place, "") for place, op in enumerate(self._found.ops)}
            limits = of_strategy(program, SplitChoices(texts))
        decision = search(program, self._link(ranks), full_variable, limits=limits)
        report.refuse_full_variables(program, decision)
        made = []
        for step, choice in zip(program.steps, decision.choices):
            if choice >= 0 and step.op.name in self._place:
                found = choice_of(step, choice, is_trained(program, step))
                made.append(PlannedChoice(self._place[step.op.name], found.text(), found.inside))
        return tuple(sorted(made))

    def _program(self, ratios: Mapping[int, Ratios], ranks: int) -> Program:
        key = frozenset(ratios.items()), ranks
        if key not in self._programs:
            ops: Dict[tf.Operation, Ratios] = {
                self._graph.tf_graph.get_operation_by_name(self._found.ops[place].name): own
                for place, own in ratios.items()
            }
            half = Env.get().config.communication.fp16
            times = OpTimes(self._machine.slowest)
            region = find_region(with_readers(ops))
            if region.ops != self._shapes[0]:
                self._shapes = region.ops, open_shapes(region)
            program = Program(region, ranks, times, half, ops.get, self._full_inputs, self._shapes[1])
            program.train(self._objective)
            while len(self._programs) >= _MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = program
        return self._programs[key]

    def _link(self, ranks: int) -> Link:
        """The connection between the first `ranks` devices, as the search of a split sees it."""
        devices: Sequence[int] = range(ranks)
        latency = self._links.cost("all-gather", devices, 1.0).seconds
        seconds = self._links.cost("all-gather", devices, _PROBE).seconds - latency
        return Link(latency, (ranks - 1) / ranks * _PROBE / seconds)
