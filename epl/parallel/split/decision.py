"""The decision of a split: which of its ops are computed on shards. The graph is read alone; the lowering changes it.

    ops of the split TaskGraphs -> region -> unsplit program -> search -> a choice for each op

It is made when the model is differentiated, and before that by a planner, which compares plans by what they would do.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.colocation import phase_of, taskgraph_index
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.costs.op_times import times_on
from epl.parallel.plan.sections import SplitSection
from epl.parallel.plan.strategy import SplitChoices
from epl.parallel.plan.unequal_scopes import split_taskgraphs
from epl.parallel.sharding.row_dimensions import find_dimensions, without_rows
from epl.parallel.split import report
from epl.parallel.split.groups import SplitPlan
from epl.parallel.split.program import Program
from epl.parallel.split.readers import with_readers
from epl.parallel.split.region import Region, find_region
from epl.parallel.split.resharding_paths import LINKS
from epl.parallel.split.search import Decision
from epl.parallel.split.section import decide, section_of


class DecidedSplit(NamedTuple):
    """The splits of a model, and how they are computed.

    Attributes:
      region: their ops.
      full_inputs: what comes into the model and holds no rows of a batch.
      program: the unsplit program of the region.
      decision: how it is computed.
      section: the same as names and placements.
    """

    region: Region
    full_inputs: Set[tf.Tensor]
    program: Program
    decision: Decision
    section: SplitSection


def decide_split(graph: Graph, plan: SplitPlan, objective: Sequence[Any]) -> DecidedSplit:
    """Decides how the splits of a model are computed.

    Args:
      graph: the model, before it is differentiated.
      plan: the devices of its splits.
      objective: what is to be differentiated.

    Raises:
      PlanError: the model cannot be split as annotated.
    """
    env = Env.get()
    assert env.cluster is not None
    device_type = env.cluster.device_type.lower()
    ratios: Dict[int, Tuple[int, ...]] = {one.index: () for one in split_taskgraphs(graph)}
    ratios.update((one.taskgraph, one.ratios) for one in plan.ratios)

    def ratios_of(op: tf.Operation) -> Optional[Tuple[int, ...]]:
        index = taskgraph_index(op)
        return None if index is None else ratios.get(index)

    region = find_region(with_readers(_marked(graph)))
    full_inputs = find_full_inputs(graph, objective)
    half = bool(env.config.communication.fp16)
    program = Program(region, len(plan.groups[0]), times_on(device_type), half, ratios_of, full_inputs)
    program.train(objective)
    decision = decide(program, LINKS[device_type], plan.choices, graph.state_of(SplitChoices))
    report.refuse_full_variables(program, decision)
    return DecidedSplit(region, full_inputs, program, decision, section_of(plan, program, decision))


def find_full_inputs(graph: Graph, objective: Sequence[Any]) -> Set[tf.Tensor]:
    """What comes into a model and holds no rows of a batch, by the graph and by `epl.keep_whole`."""
    view = GraphView(graph.tf_graph)
    names = [y.name for y in objective if isinstance(y, tf.Tensor)]
    found = find_dimensions(graph.tf_graph, view, names) if view.user_placeholders() else None
    told = [] if found is None else [graph.tf_graph.get_tensor_by_name(name) for name in without_rows(found)]
    return set(told).union(graph.whole_inputs)


def _marked(graph: Graph) -> List[tf.Operation]:
    """The ops of the split TaskGraphs, of the forward phase."""
    indices = {taskgraph.index for taskgraph in split_taskgraphs(graph)}
    return [op for op in graph.tf_graph.get_operations() if taskgraph_index(op) in indices and not phase_of(op)]
