"""Gradient checkpoint: activations are not kept for the backward pass but computed a second time.

    x --> f1 --> f2 --> [h] --> ...        x --> f1 --> f2 --> [h] --> ...
           |      |                   =>   x --> f1' -> f2'        f1' waits for the gradient
           b1 <-- b2 <-- ...                      b1 <-- b2 <-- ...

The copies of a segment are imported in one call under `EPL_RECOMPUTE/` and keep the marks of their ops. They begin
after a no-op that waits, so they depend on the gradient: in a pipeline they belong to the backward action, and every
micro batch and replica gets its own. Copies and their ops have different control inputs, so TensorFlow does not merge
them as duplicates.

The pass runs on the user's graph, before any other pass; also for a model on one device.
"""

import hashlib
import logging
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import Edit, clone_nodes
from epl.ir.control_flow import depths_of
from epl.ir.dataflow import batch_nodes, data_inputs, viewed_variables
from epl.ir.gradient_boundary import boundary_nodes, tensors_of, variables_by_gradient
from epl.ir.graph import GradientCall, first_tensor
from epl.ir.taskgraph import TASKGRAPH_ATTR
from epl.ir.view import GraphView
from epl.parallel.costs.costs import node_costs
from epl.parallel.costs.shapes import output_types
from epl.parallel.plan.gradient_groups import find_trainings
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.sections import Recomputed, RecomputeSection, StageDivision
from epl.parallel.plan.stages import stages_of_nodes
from epl.parallel.recompute import check_graph, section
from epl.parallel.recompute import segments as recompute
from epl.parallel.recompute.order import find_waits, late_reads
from epl.parallel.recompute.segments import BackwardPass, Segment
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.delay_gradients import delay_gradients
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils import tf_compat

logger = logging.getLogger("epl")

SCOPE = "EPL_RECOMPUTE"


class _Recomputation(NamedTuple):
    """The recomputation for a call of tf.gradients.

    Node numbers are those of the graph before the passes; they stay valid, as passes add nodes at the end.

    Attributes:
      call: the call.
      ends: the nodes that pass its gradients on.
      backward: its backward pass.
      stages: the stage of each node.
      segments: the segments that are recomputed.
      divisions: where they begin, with "auto".
    """

    call: GradientCall
    ends: Set[int]
    backward: BackwardPass
    stages: Sequence[int]
    segments: List[Segment]
    divisions: Tuple[StageDivision, ...]


def find(rewrite: RewriteContext) -> Optional[RecomputeSection]:
    """Finds the segments to recompute for each call of tf.gradients that trains. `run` changes the graph.

    Other calls are left alone: nothing orders their gradients before an update in the same run, so a recomputed op
    could read a variable after its update.
    """
    if not rewrite.config.gradient_checkpoint.type:
        return None
    trained = {
        first_tensor(gradient).op.name
        for training in find_trainings(rewrite.graph)
        for _, gradient in training.boundaries
    }
    calls = [
        call
        for call in rewrite.graph.gradient_calls
        if call.seeds and any(first_tensor(gradient).op.name in trained for _, gradient in call.boundaries)
    ]
    _warn_of_shared_objectives(rewrite, calls)
    view = GraphView(rewrite.tf_graph)
    stages = stages_of_nodes(view, rewrite.plan.stages)
    rewrite.recomputations = [_find(rewrite, view, stages, number, call) for number, call in enumerate(calls)]
    return RecomputeSection(
        tuple(division for one in rewrite.recomputations for division in one.divisions),
        tuple(_summary(view, one.call, segment) for one in rewrite.recomputations for segment in one.segments),
    )


def _find(
    rewrite: RewriteContext, view: GraphView, stages: Sequence[int], number: int, call: GradientCall
) -> _Recomputation:
    ends = _ends(rewrite, view, call)
    backward = recompute.find_backward_pass(
        view, [view.index[y.op.name] for y in call.ys], [view.index[seed.op.name] for seed in call.seeds], ends
    )
    segments, divisions = _segments(rewrite, view, backward, stages, ends, (number, _objective(call)))
    if not segments and not rewrite.config.gradient_checkpoint.memory_budget:  # with a budget, all may fit
        logger.warning(
            "gradient_checkpoint.type is %r, and nothing can be recomputed for %s.",
            rewrite.config.gradient_checkpoint.type,
            ", ".join(y.name for y in call.ys),
        )
    return _Recomputation(call, ends, backward, stages, segments, divisions)


def _summary(view: GraphView, call: GradientCall, segment: Segment) -> Recomputed:
    names = [view.nodes[node].name for node in segment.nodes]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    return Recomputed(_objective(call), segment.place[0], segment.place[1], len(names), names[0], names[-1], digest)


def _objective(call: GradientCall) -> str:
    return ", ".join(y.name for y in call.ys)


def run(rewrite: RewriteContext) -> None:
    """Adds the recomputed segments that `find` has found."""
    for number, recomputation in enumerate(rewrite.recomputations):
        if recomputation.segments:
            _recompute(rewrite, f"{SCOPE}_{number}" if number else SCOPE, recomputation)


def _warn_of_shared_objectives(rewrite: RewriteContext, calls: Sequence[GradientCall]) -> None:
    """Warns of two optimizers of one objective: they run together, so one may read what the other has written."""
    seen: Set[str] = set()
    for call in calls:
        own = {y.name for y in call.ys}
        references = [v for v, _ in call.boundaries if rewrite.operation(v).type in op_types.REF_VARIABLES]
        if references and not seen.isdisjoint(own):
            logger.warning(
                "%s is differentiated by two calls of tf.gradients. Their recomputed activations may be those of "
                "variables that the optimizer of the other call has updated already, if both run together: compute "
                "all gradients in one call (one compute_gradients), or use resource variables.",
                ", ".join(sorted(seen & own)),
            )
        seen |= own


def _recompute(rewrite: RewriteContext, scope: str, recomputation: _Recomputation) -> None:
    view = GraphView(rewrite.tf_graph)
    _, ends, backward, stages, segments, _ = recomputation
    if rewrite.config.gradient_checkpoint.check_gradients:
        rewrite.gradient_checks += check_graph.keep_plain(rewrite, view, backward, segments, ends)
    # One scope for each segment: TensorFlow imports no op with the name of an existing scope.
    prefixes = ["{}/stage{}_segment{}/".format(scope, *segment.place) for segment in segments]
    depths = depths_of(view)
    waits = find_waits(view, backward, segments, _moving(rewrite.tf_graph, view), depths, stages)
    for segment, wait, prefix in zip(segments, waits, prefixes):
        _clone(rewrite.tf_graph, view, segment, wait, prefix)
        _rewire(rewrite, view, segment, prefix)
    copies = {
        node: prefix + view.nodes[node].name for segment, prefix in zip(segments, prefixes) for node in segment.nodes
    }
    for node, copy in copies.items():
        rewrite.recomputed.setdefault(view.nodes[node].name, []).append(copy)
    gradients = _gradients(rewrite, view, backward, ends, depths)
    late = late_reads(view, backward, segments, waits, gradients, viewed_variables(view))
    delayed = {gradient: [copies[node] for node in readers] for gradient, readers in late.items() if readers}
    delay_gradients(rewrite, view, delayed, scope)


def _ends(rewrite: RewriteContext, view: GraphView, call: GradientCall) -> Set[int]:
    """The nodes that pass the gradients of a call on; with accumulation, those that run in every accumulation step."""
    sources = {view.index[tensor.op.name] for source in rewrite.graph.run_gradients for tensor in tensors_of(source)}
    return sources | (boundary_nodes(view, [call]) - view.descendants(sources))


def _segments(
    rewrite: RewriteContext,
    view: GraphView,
    backward: BackwardPass,
    stages: Sequence[int],
    ends: Set[int],
    call: Tuple[int, str],
) -> Tuple[List[Segment], Tuple[StageDivision, ...]]:
    config = rewrite.config.gradient_checkpoint
    tf_graph = rewrite.tf_graph
    writes = find_training_writes(tf_graph, view, view.writes(), ends)
    if config.type == "auto":
        costs = node_costs(tf_graph, view, backward.forward, rewrite.plan.device_type.lower())
        recomputable = recompute.find_recomputable(tf_graph, view, backward, writes, costs.types)
        if config.end_taskgraph >= 0:
            recomputable = {node for node in recomputable if _taskgraph(view, node) <= config.end_taskgraph}
        if config.memory_budget:
            for note in costs.notes:
                logger.warning("gradient_checkpoint.memory_budget may be missed: %s.", note)
        choice = section.decide(view, backward, recomputable, stages, costs, config.memory_budget, *call)
        found = recompute.find_segments(view, backward, recomputable, choice.places, (), choice.whole)
        return found, section.divisions_of(view, choice, *call)
    types, _ = output_types(tf_graph, view, backward.forward)
    recomputable = recompute.find_recomputable(tf_graph, view, backward, writes, types)
    checkpoints = _collected(rewrite, view, backward)
    if not checkpoints or not recomputable:
        return [], ()
    numbers = recompute.number_by_checkpoints(view, backward, checkpoints)
    places = {node: (stages[node], numbers[node]) for node in recomputable}
    return recompute.find_segments(view, backward, recomputable, places, checkpoints, {max(places.values())}), ()


def _collected(rewrite: RewriteContext, view: GraphView, backward: BackwardPass) -> Set[int]:
    """The checkpoints of the collection that end a segment."""
    found = set()
    forward = set(backward.forward)
    depths = depths_of(view)
    ranks = replica_groups(rewrite.graph)
    for item in rewrite.tf_graph.get_collection(recompute.COLLECTION):
        item = item if ranks is None else ranks.local(item)
        replaced = None if isinstance(item, tf.Operation) else rewrite.graph.replacements.get(item.name)
        op = item if isinstance(item, tf.Operation) else (item if replaced is None else replaced.computed).op
        node = view.index[op.name]
        if node not in forward or depths[node] != (0, 0):
            logger.warning(
                "The checkpoint %r has no effect: %s.",
                op.name,
                "it lies in a loop or branch, which is kept as a whole"
                if node in forward
                else "no gradient is computed through it",
            )
        else:
            found.add(node)
    return found


def _taskgraph(view: GraphView, node: int) -> int:
    attrs = view.nodes[node].attr
    return attrs[TASKGRAPH_ATTR].i if TASKGRAPH_ATTR in attrs else 0


def _gradients(
    rewrite: RewriteContext, view: GraphView, backward: BackwardPass, ends: Set[int], depths: Sequence[Tuple[int, int]]
) -> Dict[int, List[int]]:
    """By variable, the nodes of the backward pass that compute its gradient."""
    variables = variables_by_gradient(rewrite.graph)
    found: Dict[int, List[int]] = {}
    for end in ends:
        for node, output in data_inputs(view, end):
            variable = variables.get(f"{view.nodes[node].name}:{output}")
            if variable is not None and node in backward.nodes and depths[node] == (0, 0):
                found.setdefault(view.index[variable], []).append(node)
    return found


def _moving(tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
    return batch_nodes(view, stateful)


def _clone(tf_graph: tf.Graph, view: GraphView, segment: Segment, wait: Sequence[int], prefix: str) -> None:
    """Imports the copies of a segment, which begin after a no-op that waits.

    One segment at a time, so that a control input from another segment stays the original op, not its copy.
    """
    node = tf.NodeDef(name=prefix + "wait", op="NoOp")
    node.input.extend("^" + view.nodes[producer].name for producer in wait)
    mark = view.nodes[segment.nodes[0]].attr.get(TASKGRAPH_ATTR)
    if mark is not None:
        node.attr[TASKGRAPH_ATTR].CopyFrom(mark)
    plain = Edit(None, None)
    clone_nodes(tf_graph, view, segment.nodes, [prefix], lambda copy, node: plain, [node])
    waiting = tf_graph.get_operation_by_name(node.name)
    for member in _first_nodes(view, segment.nodes):
        tf_compat.add_control_inputs(tf_graph.get_operation_by_name(prefix + view.nodes[member].name), [waiting])


def _first_nodes(view: GraphView, members: Sequence[int]) -> List[int]:
    """The nodes of a segment, in the order of the forward pass, that would not wait for another one of it.

    Grappler takes an IdentityN with unused outputs apart, so each of its outputs waits for its own input alone.
    """
    first = []
    late: Set[int] = set()  # nodes that wait
    late_tensors: Set[Tuple[int, int]] = set()  # outputs of an IdentityN that wait
    for node in members:
        taken = data_inputs(view, node)
        if view.types[node] == "IdentityN":
            is_late = [producer in late or (producer, output) in late_tensors for producer, output in taken]
            late_tensors.update((node, at) for at, one in enumerate(is_late) if one)
            continue
        if late.isdisjoint(view.producers[node]) and late_tensors.isdisjoint(taken):
            first.append(node)
        late.add(node)
    return first


def _rewire(rewrite: RewriteContext, view: GraphView, segment: Segment, prefix: str) -> None:
    """Connects the backward pass to the copies."""
    for use in segment.uses:
        copy = rewrite.operation(prefix + view.nodes[use.producer].name)
        consumer = rewrite.remember(rewrite.operation(view.nodes[use.consumer].name))
        tf_compat.set_input(consumer, use.position, copy.outputs[use.output])


PASS = Pass(
    "recompute",
    run,
    "gradient_checkpoint.type",
    provides=names("recomputed gradient_checks"),
    plain=True,
    optional=True,
)
