"""Makes the TaskGraphs of `auto.auto_parallel`, one per stage, and marks every op of the model with its TaskGraph.

Runs when the user first differentiates the model, on forward ops alone; the backward pass then follows the marks.
`partition.py` decides where the model is cut.
"""

import logging
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.taskgraph import TASKGRAPH_ATTR
from epl.ir.view import GraphView
from epl.parallel.auto_partition import section
from epl.parallel.auto_partition import units as partition_units
from epl.parallel.auto_partition.partition import Partition, describe, partition
from epl.parallel.plan.sections import PartitionSection
from epl.strategies.parallel_strategy import ParallelStrategy
from epl.strategies.replicate import Replicate
from epl.utils import tf_compat
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")


class Partitioned(NamedTuple):
    """State of a graph (`Graph.state_of`): it has been divided into stages, or one stage was asked for."""


def partition_model(graph: Graph, ys: Any, num_stages: int, device_type: str = "cpu") -> Optional[Partition]:
    """Gives a model without annotation, or with one `replicate(1)`, the TaskGraphs of a pipeline.

    Every op that is in the graph gets a stage. The partition gives stages to the ops that the objective needs; other
    ops, such as metrics, get the stage of their latest input; the input pipeline is in the first stage. Ops created
    later belong to the last stage, unless they differentiate an op of another stage.

    Args:
      graph: the model.
      ys: a tensor or a list of tensors that are differentiated.
      num_stages: the number of stages; 1 or less means data parallelism of the whole model.
      device_type: "cpu" or "gpu": whose speed the stages are balanced for.

    Returns:
      The partition, None for one stage.

    Raises:
      PlanError: annotations that contradict `auto.auto_parallel`, or a model too small for so many stages.
    """
    _refuse_annotations(graph)
    if num_stages <= 1:
        if not graph.taskgraphs:
            graph.open_taskgraph(Replicate(1))
        return None
    view = GraphView(graph.tf_graph)
    roots = [y.op.name for y in (ys if isinstance(ys, (list, tuple)) else [ys])]
    found = partition(graph.tf_graph, view, roots, num_stages, device_type, section.planned(view, num_stages))
    graph.keep(PartitionSection, section.section_of(view, found))
    last = graph.taskgraphs[0].strategy if graph.taskgraphs else Replicate(1)
    mark_stages(graph, view, found, [Replicate(1) for _ in range(num_stages - 1)] + [last])
    logger.info("%s", describe(found))
    return found


def _refuse_annotations(graph: Graph) -> None:
    strategies = [taskgraph.strategy for taskgraph in graph.taskgraphs]
    if len(strategies) > 1 or any(s.name_of_kind != "replicate" or (s.device_count or 1) > 1 for s in strategies):
        raise PlanError(
            "auto.auto_parallel is on and the model is annotated with {}: stages are found automatically, so use no "
            "strategy, or epl.set_default_strategy(epl.replicate(1)) alone, or set auto.auto_parallel to False.".format(
                ", ".join(str(strategy) for strategy in strategies)
            )
        )


def mark_stages(graph: Graph, view: GraphView, found: Partition, strategies: Sequence[ParallelStrategy]) -> None:
    """Replaces the TaskGraphs by one for each stage, and marks every op of the graph with its own.

    Args:
      graph: the model.
      view: of its graph.
      found: the stages of the ops that the objective needs.
      strategies: by stage; the last one continues for ops that are created later.
    """
    mark_ops(graph.tf_graph, {view.nodes[node].name: stage for node, stage in enumerate(_stages_of_all(view, found))})
    graph.replace_taskgraphs(strategies)


def mark_ops(tf_graph: tf.Graph, taskgraphs: Mapping[str, int]) -> None:
    """Marks ops, by name, with the numbers of their TaskGraphs."""
    values = {number: tf.AttrValue(i=number) for number in set(taskgraphs.values())}
    for name, number in taskgraphs.items():
        tf_compat.set_attr(tf_graph.get_operation_by_name(name), TASKGRAPH_ATTR, values[number])


def unmark_ops(tf_graph: tf.Graph, view: GraphView) -> None:
    """Takes the marks of TaskGraphs from all ops of a graph."""
    for node, is_marked in enumerate(view.of_attrs(lambda attrs: TASKGRAPH_ATTR in attrs)):
        if is_marked:
            tf_compat.clear_attr(tf_graph.get_operation_by_name(view.nodes[node].name), TASKGRAPH_ATTR)


def _stages_of_all(view: GraphView, found: Partition) -> List[int]:
    """The stage of every node, including nodes that the objective does not need."""
    units = found.units
    stages = {units.of_node[node]: stage for node, stage in found.of_node.items()}
    for unit in partition_units.input_pipeline(view, units, range(len(view))):
        stages.setdefault(unit, 0)
    _spread(view, units.of_node, stages, view.consumers(), max)
    _spread(view, units.of_node, stages, view.producers, min)
    return [stages.get(unit, 0) for unit in units.of_node]


def _spread(
    view: GraphView, of_node: Sequence[int], stages: Dict[int, int], edges: Sequence[Collection[int]], choose: Any
) -> None:
    """Gives a unit without a stage one of the stages that lead to it along `edges`; `choose` picks it."""
    members: Dict[int, List[int]] = {}
    for node, unit in enumerate(of_node):
        members.setdefault(unit, []).append(node)
    fixed = frozenset(stages)
    waiting = list(fixed)
    while waiting:
        unit = waiting.pop()
        for other in {of_node[n] for node in members[unit] for n in edges[node]} - fixed:
            stage = choose(stages[unit], stages.get(other, stages[unit]))
            if stages.get(other) != stage:
                stages[other] = stage
                waiting.append(other)
