"""Which ops of a pipeline's graph each micro batch has a copy of, and in which action of the schedule they run.

    data source --> ... --> objective --> gradients | boundary --> clip, apply
    \\_____________ once per micro batch __________/  \\__ once per step _____/

An op differs between micro batches if data, a placeholder, a random number or other state of its own reaches it.
What a step needs of such ops is copied; the rest (variables, what depends on them alone) is shared. A write of a value
that differs (statistics of batch norm, a metric) happens once per micro batch, in order; one that gets its value from
gradients, or from no batch at all (the global step, a learning rate that is fed), once per step.

Within a copy, what depends on the gradient of the objective is the backward pass (B) of its stage, what comes before
is the forward pass (F). Data is read ahead of both, in the order of the micro batches. Tables of op types say what
holds state; nothing else is known by name.
"""

from typing import Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.control_flow import depths_of, ends_of, loops_of
from epl.ir.dataflow import data_descendants
from epl.ir.gradient_boundary import Training, boundary_nodes
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.schedule import BACKWARD, FORWARD
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_BACKWARD_PHASE = Phase.BACKWARD.encode()

_FIRST_NAMES = 5  # of variables in a message
_IN_ORDER = "Annotate the ops in the order in which data flows through the model."
_SECOND_GRADIENTS = (
    "The objective is computed from gradients (a gradient penalty, for example), which go back and forth over the "
    "stages. Let the inner tf.gradients go no further back than to what the last stage takes, or annotate the model "
    "as one stage."
)

# (stage, FORWARD or BACKWARD) -> nodes
Actions = Dict[Tuple[int, str], Set[int]]


class MicroBatchOps(NamedTuple):
    """Nodes of a graph by how often they run in a step.

    Attributes:
      cloned: once per micro batch.
      varying: those whose value differs between micro batches; the other clones do no more than wait for them.
      sources: those of them that read data.
      inputs: the sources and the placeholders, and what they need.
      writes: those of them that write variables.
      once: what is computed from gradients after they were accumulated, and the other writes.
    """

    cloned: Set[int]
    varying: Set[int]
    sources: List[int]
    inputs: Set[int]
    writes: Set[int]
    once: Set[int]


def find_micro_batch_ops(
    tf_graph: tf.Graph,
    view: GraphView,
    trainings: Sequence[Training],
    writes: Set[int],
    outputs: Iterable[int],
    repeated: Iterable[int] = (),
) -> MicroBatchOps:
    """Tells apart what runs once per micro batch and what runs once per step.

    Args:
      tf_graph: the graph.
      view: of it.
      trainings: its backward passes.
      writes: the writes of a training step, initializers left out.
      outputs: nodes whose value is merged over micro batches.
      repeated: nodes that run in every micro batch that needs them, whatever they are computed from.
    """
    boundaries = boundary_nodes(view, trainings)
    shared = set(view.of_types(op_types.SHARED_STATE | op_types.VARIABLES))
    after = data_descendants(view, boundaries, set())
    gradients = {producer for node in boundaries for producer in view.producers[node]}
    states = _own_state(tf_graph, view).union(repeated)
    loops = loops_of(view)
    varying = _varying(view, states, boundaries, loops)
    micro_writes = _among(writes - after, varying, loops)
    if micro_writes:
        trained = view.ancestors(gradients, writes.__contains__)
        batch = states - (set(view.of_types(op_types.PLACEHOLDERS)) - trained)
        computed = varying if batch == states else _varying(view, batch, boundaries, loops)
        steps = {step.op.name for step in tf_graph.get_collection_ref(tf.GraphKeys.GLOBAL_STEP)}
        may_count = {w for w in writes - after if not any(view.nodes[v].name in steps for v in view.variable_inputs(w))}
        micro_writes = _micro_batch_writes(view, writes - after, may_count, computed, boundaries, loops)
        varying |= _varying(view, _readers(view, micro_writes), boundaries, loops)
    once = after | (writes - micro_writes)
    roots = gradients | micro_writes | set(outputs)
    depths = depths_of(view) if micro_writes else []
    roots.update(end for node in micro_writes for end in ends_of(view, node, depths))
    kept = shared | boundaries | once
    needed = view.ancestors(roots, kept.__contains__)
    cloned = (needed & view.descendants(varying, boundaries.__contains__)) - shared - once
    sources = sorted(cloned & set(view.of_types(op_types.DATA_SOURCES)))
    inputs = view.ancestors(sources + _fed_inputs(view), lambda node: node in shared) & cloned
    return MicroBatchOps(cloned, varying, sources, inputs, micro_writes, once)


def _micro_batch_writes(
    view: GraphView,
    writes: Set[int],
    may_count: Set[int],
    computed: Set[int],
    boundaries: Set[int],
    loops: Dict[int, int],
) -> Set[int]:
    """The writes that happen once per micro batch.

    They write what is computed from a batch, or from a variable that such a write writes, or they count for such a
    write, which takes the new count. Of these, those that wait for gradients belong to the end of the step: a moving
    average of all variables after the update.

    Args:
      view: of the graph.
      writes: those to choose from.
      may_count: those of them that may be counters; the global step counts steps.
      computed: what is computed from a batch. A placeholder that no gradient needs gives none: it sets things by hand.
      boundaries: where gradients are accumulated.
      loops: see `loops_of`.
    """
    found = _among(writes, computed, loops)
    while True:
        passed_on = _varying(view, _readers(view, found), boundaries, loops)
        more = (_among(writes, passed_on, loops) | _counting(view, may_count - found, found)) - found
        if more:
            more -= view.descendants(boundaries)
        if not more:
            return found
        found |= more


def _counting(view: GraphView, writes: Set[int], counted: Set[int]) -> Set[int]:
    """Those of `writes` whose new value one of `counted` needs."""
    needed = view.ancestors(counted)
    found = set()
    for write in writes & needed:
        behind = view.descendants([write], lambda node: node not in needed)
        if not needed.isdisjoint(takers_of_new_value(view, write) & behind):
            found.add(write)
    return found


def takers_of_new_value(view: GraphView, write: int) -> Set[int]:
    """The nodes that may take what was written: those that take the variable, or the reference that the write gives."""
    takers = {node for node in view.consumers()[write] if view.takes_data(node, write)}
    return takers | readers_of(view, view.variable_inputs(write)) - {write}


def _among(writes: Set[int], varying: Set[int], loops: Dict[int, int]) -> Set[int]:
    """The writes that vary, or happen in a loop that does."""
    entered = {loops[node] for node in varying if node in loops}
    return {node for node in writes if node in varying or loops.get(node, -1) in entered}


def _varying(view: GraphView, roots: Set[int], boundaries: Set[int], loops: Dict[int, int]) -> Set[int]:
    """What is computed from the roots. The frame of a loop is one thing: with anything in it, its counter is."""
    while True:
        found = data_descendants(view, roots, boundaries)
        entered = {loops[node] for node in found if node in loops}
        enters = {node for node in view.of_types(op_types.ENTERS) if loops[node] in entered}
        if enters <= roots:
            return found
        roots = roots | enters


def _fed_inputs(view: GraphView) -> List[int]:
    """The placeholders in front of the model: feeding one cuts off what it waits for. Not those in the midst of it."""
    variables = set(view.of_types(op_types.VARIABLES))
    return [node for node in view.of_types(op_types.PLACEHOLDERS) if variables.isdisjoint(view.ancestors([node]))]


def find_actions(
    view: GraphView,
    ops: MicroBatchOps,
    trainings: Sequence[Training],
    stages: Sequence[int],
    of_gradients: Iterable[int] = (),
) -> List[Actions]:
    """Per training, the nodes of each action of micro batch 0; those of no training are in none.

    Args:
      view: of the graph.
      ops: what each micro batch has.
      trainings: the backward passes.
      stages: of the nodes of `view`.
      of_gradients: nodes that belong to backward passes although they may depend on no gradient.

    Raises:
      PlanError: the forward pass goes back to an earlier stage, or the backward pass is not known.
    """
    shared = set(view.of_types(op_types.SHARED_STATE | op_types.VARIABLES))
    boundaries = boundary_nodes(view, trainings)
    loops = loops_of(view)
    result: List[Actions] = []
    for training in trainings:
        _refuse_tape(view, training)
        first = _first_of_backward_pass(view, training).union(of_gradients)
        backward = view.descendants(first, boundaries.__contains__)
        backward |= _beside_gradients(view, backward, loops)
        backward |= _behind_later_stages(view, ops, backward, stages, boundaries)
        own = boundary_nodes(view, [training])
        roots = {producer for node in own for producer in view.producers[node]}
        needed = view.ancestors(roots, lambda node: node in shared or node in boundaries)
        actions: Actions = {}
        for node in (needed & ops.cloned) - ops.inputs:
            kind = BACKWARD if node in backward else FORWARD
            actions.setdefault((stages[node], kind), set()).add(node)
        _check_direction(view, training, actions, stages)
        result.append(actions)
    return result


def _refuse_tape(view: GraphView, training: Training) -> None:
    """Gradients of a tape are all in the TaskGraph in which it was asked for them, and begin nobody knows where."""
    if training.seeds:
        return
    for node in view.ancestors(boundary_nodes(view, [training])):
        if view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE:
            raise PlanError(
                "The gradients of {} come from a tf.GradientTape, which a pipeline cannot divide into stages. Use "
                "tf.gradients, or minimize with a tensor as loss.".format(
                    ", ".join(variable for variable, _ in training.boundaries[:_FIRST_NAMES])
                )
            )


def _first_of_backward_pass(view: GraphView, training: Training) -> Set[int]:
    """The seeds; in place of those that the user made (grad_ys), which may be a part of the model, what takes them."""
    seeds = {view.index[seed.op.name] for seed in training.seeds}
    own = {node for node in seeds if view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE}
    takers = {consumer for node in seeds - own for consumer in view.consumers()[node]}
    return own | {node for node in takers if view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE}


def _beside_gradients(view: GraphView, backward: Set[int], loops: Dict[int, int]) -> Set[int]:
    """What is part of the backward pass without depending on gradients, and would let it begin before its time.

    It is the counter of a loop, and the zeros that stand for the gradient of a branch that was not taken. (A control
    edge to the Merge that takes them would not do: TensorFlow's dependency optimizer removes it, as if a Merge waited
    for all of its inputs.)
    """
    entered = {loops[node] for node in backward if node in loops}
    found = {node for node, loop in loops.items() if loop in entered}
    consumers = view.consumers()
    for node in view.of_types(op_types.MERGES):
        if node in backward:
            found.update(p for p in view.producers[node] if p not in backward and backward.issuperset(consumers[p]))
    return found


def _behind_later_stages(
    view: GraphView, ops: MicroBatchOps, backward: Set[int], stages: Sequence[int], boundaries: Set[int]
) -> Set[int]:
    """What TensorFlow made while differentiating from forward values of later stages: indices of sparse gradients."""
    late = {
        node
        for node in ops.cloned - backward
        if any(stages[p] > stages[node] and p in ops.cloned for p in view.producers[node])
        and view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE
    }
    return view.descendants(late, boundaries.__contains__)


def _check_direction(view: GraphView, training: Training, actions: Actions, stages: Sequence[int]) -> None:
    """Forward data flows from earlier to later stages, gradients the other way; the order of a schedule needs it."""
    for (stage, kind), nodes in actions.items():
        for node in nodes:
            for producer in view.producers[node]:
                other = stages[producer]
                back = other > stage if kind == FORWARD else other < stage
                if back and producer in actions.get((other, kind), ()):
                    raise PlanError(
                        "{!r} of stage {} takes {!r} of stage {}: the {} pass of a pipeline goes from {} stages to {} "
                        "ones. {}".format(
                            view.nodes[node].name,
                            stage,
                            view.nodes[producer].name,
                            other,
                            *(("forward", "earlier", "later") if kind == FORWARD else ("backward", "later", "earlier")),
                            _SECOND_GRADIENTS if _is_of_gradients(view, training) else _IN_ORDER,
                        )
                    )


def _is_of_gradients(view: GraphView, training: Training) -> bool:
    """Whether gradients are differentiated."""
    nodes = view.ancestors(view.index[y.op.name] for y in training.ys)
    return any(view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE for node in nodes)


def _own_state(tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    """Data sources, placeholders, random ops and other ops with state that is not a variable."""
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
    stateful -= op_types.SHARED_STATE | op_types.VARIABLES | op_types.WRITES | COLLECTIVE_OP_TYPES.keys()
    state = set(view.of_types(op_types.DATA_SOURCES) + view.user_placeholders())
    # What takes a variable itself reads it; it differs only if the variable does.
    state.update(n for n in view.of_types(stateful) if not view.variable_inputs(n))
    return state


def readers_of(view: GraphView, variables: Iterable[int]) -> Set[int]:
    """The nodes that take one of the variables, and those that take what hands it on."""
    consumers = view.consumers()
    found: Set[int] = set()
    stack = list(variables)
    while stack:
        for consumer in consumers[stack.pop()]:
            if consumer not in found:
                found.add(consumer)
                if view.passes_on(consumer):
                    stack.append(consumer)
    return found


def _readers(view: GraphView, writes: Set[int]) -> Set[int]:
    """The nodes that take a variable that one of `writes` writes."""
    return readers_of(view, {variable for node in writes for variable in view.variable_inputs(node)})
