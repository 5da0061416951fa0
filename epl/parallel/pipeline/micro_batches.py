"""Which ops of a pipeline's graph are copied for each micro batch, and in which action of the schedule they run.

    data source --> ... --> objective --> gradients | boundary --> clip, apply
    \\_____________ once per micro batch __________/  \\__ once per step _____/

An op differs between micro batches if it depends on data, a placeholder, a random number or other state of its own.
Such ops are copied if the step needs them; the others (variables, ops that depend on variables alone) are shared. A
write of a value that differs (statistics of batch norm, a metric) runs once per micro batch, in order; a write of a
value from gradients, or from no batch (the global step, a learning rate that is fed), runs once per step.

Within a copy, the ops that depend on the gradient of the objective are the backward pass (B) of their stage, the others
are the forward pass (F). Data is read before both, in the order of the micro batches. Tables of op types tell which ops
hold state; no op is recognized by its name.
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
      cloned: nodes that run once per micro batch.
      varying: nodes whose value differs between micro batches; the other cloned nodes only wait for such nodes.
      sources: cloned nodes that read data.
      inputs: the sources and the placeholders, with the ops that they need.
      writes: cloned nodes that write variables.
      once: nodes that run once per step: those computed from accumulated gradients, and the other writes.
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
    """Finds the nodes that run once per micro batch, and those that run once per step.

    Args:
      tf_graph: the graph.
      view: its view.
      trainings: its backward passes.
      writes: the writes of a training step, without initializers.
      outputs: nodes whose value is merged over micro batches.
      repeated: nodes that run in every micro batch that needs them, even if they depend on no data (collectives).
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
    """The writes that run once per micro batch.

    Such a write writes a value computed from a batch, or from a variable that another such write writes; or it
    increments a counter that another such write reads. Writes that wait for gradients are excluded: they belong to the
    end of the step, as a moving average of all variables after the update does.

    Args:
      view: view of the graph.
      writes: the candidates.
      may_count: candidates that may be counters; the global step is not, it counts steps.
      computed: nodes computed from a batch. A placeholder that no gradient needs is no batch: the user sets a value.
      boundaries: the gradient boundaries, where gradients are accumulated.
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
    """The `writes` whose new value one of `counted` needs."""
    needed = view.ancestors(counted)
    found = set()
    for write in writes & needed:
        after = view.descendants([write], lambda node: node not in needed)
        if not needed.isdisjoint(readers_of_new_value(view, write) & after):
            found.add(write)
    return found


def readers_of_new_value(view: GraphView, write: int) -> Set[int]:
    """The nodes that may read the written value: readers of the variable, or of the reference the write returns."""
    takers = {node for node in view.consumers()[write] if view.takes_data(node, write)}
    return takers | readers_of(view, view.variable_inputs(write)) - {write}


def _among(writes: Set[int], varying: Set[int], loops: Dict[int, int]) -> Set[int]:
    """The writes that differ between micro batches, or are in a loop that does."""
    entered = {loops[node] for node in varying if node in loops}
    return {node for node in writes if node in varying or loops.get(node, -1) in entered}


def _varying(view: GraphView, roots: Set[int], boundaries: Set[int], loops: Dict[int, int]) -> Set[int]:
    """The nodes computed from the roots. If one node of a loop is, all inputs of the loop are, such as its counter."""
    while True:
        found = data_descendants(view, roots, boundaries)
        entered = {loops[node] for node in found if node in loops}
        enters = {node for node in view.of_types(op_types.ENTERS) if loops[node] in entered}
        if enters <= roots:
            return found
        roots = roots | enters


def _fed_inputs(view: GraphView) -> List[int]:
    """The placeholders before the model, not those inside it: a feed cuts off the ops that a placeholder waits for."""
    variables = set(view.of_types(op_types.VARIABLES))
    return [node for node in view.of_types(op_types.PLACEHOLDERS) if variables.isdisjoint(view.ancestors([node]))]


def find_actions(
    view: GraphView,
    ops: MicroBatchOps,
    trainings: Sequence[Training],
    stages: Sequence[int],
    of_gradients: Iterable[int] = (),
) -> List[Actions]:
    """Per training, the nodes of each action of micro batch 0; nodes that no training needs are in none.

    Args:
      view: view of the graph.
      ops: the nodes of each micro batch.
      trainings: the backward passes.
      stages: the stage of each node.
      of_gradients: nodes that belong to backward passes although they may depend on no gradient.

    Raises:
      PlanError: the forward pass goes back to an earlier stage, or the backward pass is unknown (tf.GradientTape).
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
        backward |= _after_later_stages(view, ops, backward, stages, boundaries)
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
    """Refuses gradients of a tape: they are all in the TaskGraph of its `gradient` call, without a known beginning."""
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
    """The seeds; instead of seeds that the user built (grad_ys), which may belong to the model, their consumers."""
    seeds = {view.index[seed.op.name] for seed in training.seeds}
    own = {node for node in seeds if view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE}
    takers = {consumer for node in seeds - own for consumer in view.consumers()[node]}
    return own | {node for node in takers if view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE}


def _beside_gradients(view: GraphView, backward: Set[int], loops: Dict[int, int]) -> Set[int]:
    """Nodes of the backward pass that do not depend on gradients, so that they could run too early.

    They are the counter of a loop, and the zeros for the gradient of a branch that was not taken. (A control edge to
    the Merge that reads them does not help: TensorFlow's dependency optimizer removes it, as if a Merge waited for all
    of its inputs.)
    """
    entered = {loops[node] for node in backward if node in loops}
    found = {node for node, loop in loops.items() if loop in entered}
    consumers = view.consumers()
    for node in view.of_types(op_types.MERGES):
        if node in backward:
            found.update(p for p in view.producers[node] if p not in backward and backward.issuperset(consumers[p]))
    return found


def _after_later_stages(
    view: GraphView, ops: MicroBatchOps, backward: Set[int], stages: Sequence[int], boundaries: Set[int]
) -> Set[int]:
    """Nodes of the differentiation that use forward values of later stages, such as indices of sparse gradients."""
    late = {
        node
        for node in ops.cloned - backward
        if any(stages[p] > stages[node] and p in ops.cloned for p in view.producers[node])
        and view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE
    }
    return view.descendants(late, boundaries.__contains__)


def _check_direction(view: GraphView, training: Training, actions: Actions, stages: Sequence[int]) -> None:
    """Refuses forward data that flows to an earlier stage, and gradients that flow to a later one."""
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
    """Whether the objective is computed from gradients."""
    nodes = view.ancestors(view.index[y.op.name] for y in training.ys)
    return any(view.nodes[node].attr[PHASE_ATTR].s == _BACKWARD_PHASE for node in nodes)


def _own_state(tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    """Data sources, placeholders, random ops and other ops whose state is not a variable."""
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
    stateful -= op_types.SHARED_STATE | op_types.VARIABLES | op_types.WRITES | COLLECTIVE_OP_TYPES.keys()
    state = set(view.of_types(op_types.DATA_SOURCES) + view.user_placeholders())
    # A stateful op on a variable only reads it: its value differs only if the variable does.
    state.update(n for n in view.of_types(stateful) if not view.variable_inputs(n))
    return state


def readers_of(view: GraphView, variables: Iterable[int]) -> Set[int]:
    """The nodes that use one of the variables, directly or through ops that pass the variable on."""
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
    """The nodes that use a variable that one of `writes` writes."""
    return readers_of(view, {variable for node in writes for variable in view.variable_inputs(node)})
