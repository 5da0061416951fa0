"""Lowers a schedule to control edges: each action of a device begins when the one before it is done.

    device 0:   0F0   ==>   0F1   ==>   0B0

    sinks of 0F0 --> barrier --> sources of 0F1 ... sinks of 0F1 --> barrier --> sources of 0B0

The sources of an action are its ops without a producer in it, the sinks its ops without a consumer in it: every op of
the action lies between the two. Ops in a loop, or in a branch of tf.cond, which may not be taken, are no sources or
sinks: the loop and the cond as a whole are.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.control_flow import depths_of
from epl.ir.view import GraphView
from epl.parallel.pipeline.micro_batches import Actions
from epl.parallel.plan.schedule import Action, from_text
from epl.parallel.rewriting.barriers import Barrier, add_barrier
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.plan_nodes import PlanNodes, Waits

# (number of the training, action) -> the barriers before and after it; the first action of a device has none before
# it, the last none after it.
Between = Dict[Tuple[int, Action], Tuple[Optional[Barrier], Optional[Barrier]]]


class Ends(NamedTuple):
    """The first and last ops of an action: nodes of micro batch 0."""

    sources: List[int]
    sinks: List[int]


def order_actions(
    rewrite: RewriteContext, view: GraphView, trainings: Sequence[Actions], waits: Waits, between: Between
) -> List[tf.NodeDef]:
    """The barriers of the plan's schedule, for every training by itself, to be added to the graph with the clones.

    Args:
      rewrite: its `barriers` is filled.
      view: view of the graph before it is cloned.
      trainings: the nodes of the actions of micro batch 0.
      waits: the waits for the barriers are added here.
      between: the barriers around each action are added here.
    """
    schedule = from_text(rewrite.plan.schedule)
    depths = depths_of(view)
    nodes: List[tf.NodeDef] = []
    for number, actions in enumerate(trainings):
        ends = {key: _ends(view, members, depths) for key, members in actions.items()}
        for device, order in enumerate(schedule.actions):
            stage = schedule.device_of_stage.index(device)
            added = PlanNodes(rewrite, f"schedule{number}/device{device}", stage)
            ordered = [action for action in order if (action.stage, action.kind) in ends]
            barriers = _order_device(rewrite, view, added, ordered, ends, waits)
            rewrite.barriers[number] += [barrier.node.name + ":0" for barrier in barriers]
            for action, before, after in zip(ordered, [None, *barriers], [*barriers, None]):
                between[number, action] = before, after
            nodes += added.nodes
    return nodes


def _order_device(
    rewrite: RewriteContext,
    view: GraphView,
    added: PlanNodes,
    order: Sequence[Action],
    ends: Dict[Tuple[int, str], Ends],
    waits: Waits,
) -> List[Barrier]:
    """The barriers between the actions of a device."""
    barriers: List[Barrier] = []
    waiting: List[str] = []
    for action in order:
        own = ends[action.stage, action.kind]
        if waiting:
            barrier = add_barrier(added, str(len(barriers)), waiting)
            barriers.append(barrier)
            for node in own.sources:
                waits.setdefault((action.micro_batch, node), []).append(barrier.passed)
            waiting = [barrier.passed]
        waiting = waiting + [rewrite.in_micro_batch(view.nodes[node].name, action.micro_batch) for node in own.sinks]
    return barriers


def _ends(view: GraphView, nodes: Set[int], depths: Sequence[Tuple[int, int]]) -> Ends:
    consumers = view.consumers()
    sources = [
        node
        for node in nodes
        if nodes.isdisjoint(view.producers[node]) and all(depths[producer][0] == 0 for producer in view.producers[node])
    ]
    sinks = [node for node in nodes if nodes.isdisjoint(consumers[node]) and depths[node] == (0, 0)]
    return Ends(sorted(sources), sorted(sinks))
