"""Groups of gradients to aggregate, and where: at apply_gradients, or earlier, at tf.gradients."""

import logging
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.config.config import Config
from epl.ir import op_types
from epl.ir.gradient import Boundary
from epl.ir.gradient_boundary import Training, walk_up
from epl.ir.graph import ApplyCall, Graph, first_tensor
from epl.ir.view import GraphView
from epl.parallel.plan.plan import Stage
from epl.parallel.plan.replica_groups import ReplicaGroups, replica_groups
from epl.parallel.plan.stages import stage_of_op
from epl.utils import tf_compat
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")


class BoundaryGroup(NamedTuple):
    """Gradients that are aggregated together.

    Attributes:
      name: name in keys and messages.
      stage: the stage of their variables.
      of_shards: whether they are gradients of shards: the ranks of a split group do not aggregate them with each other,
        but each with the same rank of the other groups. With one group there is nothing to aggregate.
      boundaries: (variable, identity whose input is replaced by the aggregated gradient).
    """

    name: str
    stage: int
    of_shards: bool
    boundaries: Tuple[Boundary, ...]


def find_groups(graph: Graph, config: Config, stages: Sequence[Stage]) -> List[BoundaryGroup]:
    """The groups: one for each apply_gradients, and one for gradients that the user applies without an optimizer.

    Gradients are aggregated earlier, at tf.gradients, with `communication.clip_after_allreduce` or a split, and if the
    user writes them into variables without an optimizer.
    """
    by_identity = _boundaries_of_gradients(graph)
    ranks = replica_groups(graph)
    groups: List[Tuple[str, Sequence[Boundary]]] = []
    taken: Set[str] = set()
    for number, applied in enumerate(graph.apply_calls):
        earliest = _earliest_boundaries(applied, by_identity)
        upstream = earliest.keys() & by_identity.keys()
        taken.update(upstream)
        boundaries = list(applied.boundaries)
        if config.communication.clip_after_allreduce or ranks is not None:  # one norm over shards and replicas
            boundaries = list(earliest.values())
        elif applied.changed and upstream and len(stages[0].devices) > 1:
            logger.warning(
                "Gradients are changed between tf.gradients and apply_gradients (clipped, for example). Each replica "
                "does so with its own gradients, before they are averaged; communication.clip_after_allreduce does it "
                "after, as one device would."
            )
        groups.append((f"apply{number}", boundaries))
    groups.append(("writes", _written_without_optimizer(graph, by_identity, taken)))
    result = _by_stage(_without_repetition(groups), graph.tf_graph, stages)
    if ranks is not None:
        result = [one for group in result for one in _by_ranks(ranks, group)]
    for group in result:
        control_flow_context(group)
    return result


def _by_ranks(ranks: ReplicaGroups, group: BoundaryGroup) -> Iterator[BoundaryGroup]:
    """Divides a group: gradients to aggregate over all ranks, and those over the same rank of each split group."""
    of_all = tuple(one for one in group.boundaries if not ranks.is_complete(*one))
    of_shards = tuple(one for one in group.boundaries if ranks.is_complete(*one))
    if of_all:
        yield group._replace(boundaries=of_all)
    if of_shards:
        yield group._replace(name=group.name + "/parts", of_shards=True, boundaries=of_shards)


def find_trainings(graph: Graph) -> List[Training]:
    """The backward passes that train: one per apply_gradients, and one for gradients written without an optimizer."""
    by_identity = _boundaries_of_gradients(graph)
    trainings: List[Tuple[str, Sequence[Boundary]]] = []
    taken: Set[str] = set()
    for applied in graph.apply_calls:
        earliest = _earliest_boundaries(applied, by_identity)
        taken.update(earliest)
        trainings.append(("", list(earliest.values())))
    trainings.append(("", _written_without_optimizer(graph, by_identity, taken)))
    return [_training(graph, boundaries) for _, boundaries in _without_repetition(trainings)]


def find_trained_by_hand(graph: Graph) -> List[str]:
    """In a script without optimizer, the variables whose gradients are written into trained variables."""
    by_identity = _boundaries_of_gradients(graph)
    trained = {variable for variable, _ in by_identity.values()}
    found = []
    for name in by_identity:
        stack, seen = [graph.tf_graph.get_operation_by_name(name)], set()
        while stack:
            op = stack.pop()
            if op in seen or (op.name in by_identity and op.name != name):
                continue
            seen.add(op)
            if op.type in op_types.WRITES:
                found += [by_identity[name][0]] if op.inputs[0].op.name in trained else []
            else:
                stack += [consumer for output in op.outputs for consumer in output.consumers()]
    return list(dict.fromkeys(found))


def _training(graph: Graph, boundaries: Sequence[Boundary]) -> Training:
    names = {first_tensor(gradient).name for _, gradient in boundaries}
    calls = [
        call
        for call in graph.gradient_calls
        if any(first_tensor(gradient).name in names for _, gradient in call.boundaries)
    ]
    return Training(
        tuple(boundaries),
        tuple(y for call in calls for y in call.ys),
        tuple(seed for call in calls for seed in call.seeds),
    )


def _boundaries_of_gradients(graph: Graph) -> Dict[str, Boundary]:
    """The boundaries of all calls of tf.gradients, by the name of their op."""
    return {
        first_tensor(boundary[1]).op.name: boundary for call in graph.gradient_calls for boundary in call.boundaries
    }


def _by_stage(
    groups: Sequence[Tuple[str, Sequence[Boundary]]], tf_graph: tf.Graph, stages: Sequence[Stage]
) -> List[BoundaryGroup]:
    """Divides groups by stage: each stage has its own devices, and so its own communicators."""
    result = []
    for name, boundaries in groups:
        by_stage: Dict[int, List[Boundary]] = {}
        for boundary in boundaries:
            stage = stage_of_op(tf_graph.get_operation_by_name(boundary[0]), stages)
            by_stage.setdefault(stage, []).append(boundary)
        for stage, members in sorted(by_stage.items()):
            own = name if len(stages) == 1 else f"{name}/stage{stage}"
            result.append(BoundaryGroup(own, stage, False, tuple(members)))
    return result


def control_flow_context(group: BoundaryGroup) -> Optional[object]:
    """The branch of control flow in which the gradients of a group are applied, or None.

    Raises:
      PlanError: several branches, or a loop.
    """
    contexts = {
        id(context): context
        for context in (
            tf_compat.control_flow_context_of(first_tensor(gradient).op) for _, gradient in group.boundaries
        )
    }
    if len(contexts) > 1:
        raise PlanError(
            "The gradients of {} are applied in different branches of control flow ({}). Apply all of them in one "
            "branch, or outside of tf.cond.".format(
                group.name, ", ".join(sorted(variable for variable, _ in group.boundaries))
            )
        )
    (context,) = contexts.values()
    if tf_compat.is_in_while(context):
        raise PlanError(
            "{} applies gradients inside a tf.while_loop: its replicas cannot be kept in step. Apply them once per "
            "Session.run.".format(group.name)
        )
    return context


def _earliest_boundaries(applied: ApplyCall, returned: Dict[str, Boundary]) -> Dict[str, Boundary]:
    """By name, the boundaries of tf.gradients that the gradients of an apply_gradients are computed from.

    A gradient that is computed from none of them (by the user's own ops) has its boundary of apply_gradients.
    """
    own = {first_tensor(gradient).op: (variable, gradient) for variable, gradient in applied.boundaries}
    found, consumers = walk_up(list(own), returned)
    computed = set(found)
    stack = list(found)
    while stack:
        more = [op for op in consumers.get(stack.pop(), ()) if op not in computed]
        computed.update(more)
        stack.extend(more)
    names = {op.name for op in found}
    earliest = {name: boundary for name, boundary in returned.items() if name in names}
    earliest.update((op.name, boundary) for op, boundary in own.items() if op not in computed)
    return earliest


def _written_without_optimizer(graph: Graph, by_identity: Dict[str, Boundary], taken: Set[str]) -> List[Boundary]:
    """The boundaries of gradients that the user writes into variables without an optimizer.

    A gradient that is added to an accumulator variable, which an optimizer reads later, is aggregated there instead.
    """
    names = [name for name in by_identity if name not in taken]
    if not names:
        return []
    trained = frozenset(variable for variable, _ in by_identity.values())
    applied = [first_tensor(gradient).op.name for call in graph.apply_calls for _, gradient in call.boundaries]
    view = GraphView(graph.tf_graph)
    stop = {view.index[name] for name in list(by_identity) + applied}
    written = []
    for name in names:
        start = view.index[name]
        reached = view.descendants([start], stop=(stop - {start}).__contains__)
        variables = {v for node in reached if view.types[node] in op_types.WRITES for v in view.variable_inputs(node)}
        if any(view.nodes[v].name in trained for v in variables) or (
            variables and not view.descendants(variables) & (stop - {start})
        ):
            written.append(by_identity[name])
    return written


def _without_repetition(groups: Sequence[Tuple[str, Sequence[Boundary]]]) -> List[Tuple[str, Sequence[Boundary]]]:
    """Each boundary once, in the first group that has it; empty groups are left out."""
    seen: Set[Any] = set()
    result: List[Tuple[str, Sequence[Boundary]]] = []
    for name, boundaries in groups:
        kept = []
        for boundary in boundaries:
            op = first_tensor(boundary[1]).op.name
            if op not in seen:
                seen.add(op)
                kept.append(boundary)
        if kept:
            result.append((name, kept))
    return result
