"""Values of a step that depend on which rows a replica or a micro batch has: the step is not that of one device.

    writes        a variable is written from the rows of each replica, so that the copies differ
    mixing ops    the loss takes them, and they compute with several rows together, or with sums over rows
    fetches       a run fetches a scalar of one replica's rows
    shown values  a summary shows one

The flow of rows (epl/parallel/sharding/row_flow.py) finds writes and mixing ops in the graph of the user. A mean over
rows is exact, as gradients are averaged. A run tells its own writes, mixing ops and scalars in one sentence;
`epl.explain()` lists those of a step.

A gradient that the plan does not average where tf.gradients returns it is the mean of the gradients of the replicas, as
a mean over rows is: its norm is told, or shown of all rows. So is what an update takes besides, such as a rate.

In a pipeline a micro batch is to its replica what a replica is to the job. There a scalar that is a mean or a sum over
rows becomes an output that is merged like the loss; any other is that of the first micro batch.
"""

from types import MappingProxyType
from typing import (
    AbstractSet,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import batch_nodes, data_descendants, data_inputs, has_open_rows
from epl.ir.gradient import Boundary
from epl.ir.gradient_boundary import boundary_nodes, identity_nodes
from epl.ir.graph import Graph
from epl.ir.inserted_ops import THE_USER
from epl.ir.taskgraph import PHASE_ATTR
from epl.ir.view import GraphView
from epl.parallel.plan.gradient_groups import find_trainings
from epl.parallel.plan.plan import Output as MergedOutput
from epl.parallel.plan.plan import Plan, section, split_groups, world_size
from epl.parallel.plan.replica_groups import is_one_part, replica_groups
from epl.parallel.plan.sections import BatchNormSection, WholeBatchSection
from epl.parallel.plan.stages import stage_of_op
from epl.parallel.replication import whole_scalars
from epl.parallel.replication.metric_variables import MetricVariables
from epl.parallel.replication.whole_scalars import WholeScalars, scalars_of
from epl.parallel.replication.whole_writes import AveragedWrite, WholeWrites, choose, choose_averaged
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.parallel.sharding.row_flow import PARTIAL_SUM, SAME, UNKNOWN, Flow, Output, RowFlow, rows
from epl.parallel.sharding.row_lowering import RowLowering
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils import tf_compat
from epl.utils.source_line import user_place

WRITES, MIXES, FETCHES, SHOWS = "writes", "mixes", "fetches", "shows"

_PHASE = PHASE_ATTR.encode()
_SEED = b"seed2"
_SHOWN = 2  # findings of a kind in a sentence
_OF_SHARDS = frozenset(["sharded variables", "zero.level"])  # decisions whose ops compute no number of the script


class RowFinding(NamedTuple):
    """Ops of one line whose results depend on which rows a replica has.

    Attributes:
      kind: WRITES, MIXES, FETCHES or SHOWS.
      ops: their names.
      place: file and line of the script that made them; of a library, the name of the op.
      what: what they do, in words.
    """

    kind: str
    ops: Tuple[str, ...]
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place} {self.what}"


class ReplicaRows(NamedTuple):
    """What was found in a graph.

    Attributes:
      findings: the worst first: writes, ops that mix rows before the loss, shown values.
      whole: the writes that are to take values of all rows; they are no findings.
      averaged: the writes that are to take the mean of the replicas' values, by collective; they are no findings.
      unaveraged: the findings of a run without gradients for those, if it does not wait for other workers.
      lowered: names of the writes that take values of all replicas already.
      scalars: the scalars that are to be shown of the rows of all replicas of a process.
      merged: names of the ops of those that are shown so already.
      of_rows: their names; also where a process has one replica.
      own: names of the scalars that are those of the rows of replica 0.
      same: names of the scalars that are equal on all replicas.
      outputs: the scalars that are to be merged over the micro batches and the replicas of a process.
      shown: whose rows those in `own` are of, in words.
      users: name of a tensor in place of one of the user -> the name of the user's.
      gradients: names of the ops of the gradients of a replica's rows.
    """

    findings: Tuple[RowFinding, ...] = ()
    whole: Optional[WholeWrites] = None
    averaged: Tuple[Tuple[AveragedWrite, ...], ...] = ()
    unaveraged: Tuple[RowFinding, ...] = ()
    lowered: FrozenSet[str] = frozenset()
    scalars: Optional[WholeScalars] = None
    merged: FrozenSet[str] = frozenset()
    of_rows: FrozenSet[str] = frozenset()
    own: FrozenSet[str] = frozenset()
    same: FrozenSet[str] = frozenset()
    outputs: Tuple[MergedOutput, ...] = ()
    shown: str = "replica 0"
    users: Mapping[str, str] = MappingProxyType({})
    gradients: FrozenSet[str] = frozenset()


def parts_of(plan: Plan) -> int:
    """In how many parts a step computes with the rows of the job: one for each micro batch of each replica."""
    return world_size(plan) * plan.num_micro_batch


def is_one_replica(plan: Plan) -> bool:
    """Whether all ranks are one replica, split over them, in one micro batch."""
    return plan.num_micro_batch == 1 and len(split_groups(plan)) == 1


def find(
    graph: Graph,
    plan: Plan,
    view: GraphView,
    global_variables: AbstractSet[str],
    aggregated: Sequence[Boundary],
    metrics: MetricVariables,
    state: str = "each",
) -> ReplicaRows:
    """Finds what depends on the rows that a replica or a micro batch has; nothing in a plan that has one.

    Args:
      graph: the annotated model, before the passes.
      plan: its plan.
      view: of its graph.
      global_variables: names of the ops of the variables that a checkpoint has.
      aggregated: the boundaries of the gradients that the plan makes equal on all replicas.
      metrics: the metric variables, to which all replicas of a process add.
      state: "all" if writes are to take values of all rows, where they can; "each".
    """
    if parts_of(plan) == 1:
        return ReplicaRows()
    calls = [call for call in graph.gradient_calls if call.boundaries]
    gradients = boundary_nodes(view, calls)
    one_part = is_one_part(graph, plan)
    own_metrics: Set[str] = set()
    if not one_part:
        own_metrics = {variable.op.name for variable in tf_compat.metric_variables(graph.tf_graph)} - global_variables
    trained = frozenset(one.op.name for one in graph.tf_graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES))
    updated_alike = _updated_alike(graph, trained) if world_size(plan) > 1 else {}
    written = _written_values(graph.tf_graph, view, global_variables | own_metrics, updated_alike, gradients)
    objective = {view.index[y.op.name] for call in calls for y in call.ys}
    of_all = _statistics_of_all(plan, view)
    statistics = of_all if plan.num_micro_batch == 1 else {}  # of the rows of a micro batch
    # A loss may take gradients of another: those of each replica, if no optimizer gets them.
    averaged_gradients = identity_nodes(view, aggregated)
    before_loss = _needed(view, objective, averaged_gradients, set(), statistics)
    # Of accumulated gradients, those that are averaged in the last micro step, in a branch: it alone updates.
    averaged_gradients |= identity_nodes(view, graph.moved_boundaries.values())
    of_replica = _gradients_of_replicas(graph, plan, view, averaged_gradients | before_loss)
    own_gradients = {node for node, _ in of_replica}
    known_gradients = (gradients | averaged_gradients) - own_gradients
    written_values = {node for _, values in written.values() for node, _ in values}
    nodes = _needed(view, written_values, known_gradients, before_loss, {**statistics, **of_replica})
    opaque, of_ranks = _lowered(graph, view), {**_values_of_all_ranks(graph, plan, view), **of_all}
    sources = {**sources_of(graph, view, nodes), **statistics}
    from_rows = data_descendants(view, {node for node, _ in sources}, gradients | averaged_gradients)
    sources.update(of_replica)
    of_replicas = RowFlow(graph.tf_graph, view, nodes, {**sources, **of_ranks}, opaque)
    is_whole = plan.num_micro_batch == 1 or not of_ranks
    flow = of_replicas if is_whole else RowFlow(graph.tf_graph, view, nodes, sources, opaque)
    earlier = graph.state_of(ReplicaRows)
    lowered: FrozenSet[str] = frozenset() if earlier is None else earlier.lowered
    writing = [
        (node, variable)
        for node, (variable, values) in sorted(written.items())
        if view.nodes[node].name not in lowered
        and any(_differs(flow.of(one), one[0] in from_rows, _is_of_gradients(view, node)) for one in values)
    ]
    in_order = {node for node, _ in writing} if world_size(plan) == 1 else set()
    alike = {node for node, _ in writing if all(of_replicas.of(one).is_same for one in written[node][1])}
    if own_metrics:  # micro batches add to a metric in their order; replicas have one each
        right = {
            node
            for node, variable in writing
            if variable in own_metrics
            and (world_size(plan) == plan.workers or all(of_replicas.of(value).is_same for value in written[node][1]))
        }
        in_order |= right
        writing = [(node, variable) for node, variable in writing if node not in right]
    whole = None
    averaged: Tuple[Tuple[AveragedWrite, ...], ...] = ()
    unaveraged: List[Tuple[int, str]] = []
    made_alike: Set[int] = set()
    if writing and state == "all" and one_part:
        candidates = [node for node, _ in writing if not _is_of_gradients(view, node)]
        sources.update(dict.fromkeys(of_replica, UNKNOWN))  # no second all-reduce of gradients
        whole = choose(graph.tf_graph, view, flow, nodes, sources, candidates, before_loss, trained)
        made_alike = {write.node for write in whole.writes}
        left = [node for node in candidates if node not in made_alike]
        if left and flow.mixing:
            own_means = RowFlow(graph.tf_graph, view, nodes, sources, own_means=before_loss)
            before = [view.ancestors([view.index[y.op.name]]) for call in calls for y in call.ys]
            averaged = choose_averaged(graph.tf_graph, view, own_means, left, before)
            means = {view.index[write.op] for group in averaged for write in group}
            made_alike |= means
            unaveraged = [(node, variable) for node, variable in writing if node in means]
        writing = [(node, variable) for node, variable in writing if node not in made_alike]
    writing += [
        (node, view.nodes[view.variable_inputs(node)[0]].name)
        for node in sorted(map(view.index.__getitem__, metrics.others))
    ]
    mixing = [(node, what) for node, what in sorted(flow.mixing.items()) if node in before_loss]
    found = earlier
    if found is None:
        differing = {one for node, _ in writing for one in view.variable_inputs(node)}
        updated = {view.index[name] for name in metrics.updated} | data_descendants(view, in_order, set())
        found = _find_scalars(
            graph, plan, view, gradients, of_replica, before_loss, made_alike, differing, trained, updated
        )
    known = found.same.union(output.tensor for output in plan.outputs + found.outputs)
    shown = _shown_values(view, known | found.of_rows if plan.workers == 1 else known - found.of_rows)
    names = _Names(graph, view, found.users)
    findings = _written(names, writing, plan, alike)
    findings += [RowFinding(MIXES, *at, whats[0] + _on_the_way(plan)) for at, whats in names.by_place(mixing)]
    findings += [RowFinding(SHOWS, *at, f"shows {_of_part(tensors, found)}") for at, tensors in names.by_place(shown)]
    return found._replace(
        findings=tuple(findings), whole=whole, averaged=averaged, lowered=lowered,
        unaveraged=found.unaveraged + tuple(_written(names, unaveraged, plan)),
    )  # fmt: skip


def _find_scalars(
    graph: Graph,
    plan: Plan,
    view: GraphView,
    gradients: Set[int],
    of_replica: Dict[Output, Flow],
    before_loss: Set[int],
    same: AbstractSet[int],
    differing: AbstractSet[int],
    trained: AbstractSet[str],
    updated: AbstractSet[int],
) -> ReplicaRows:
    """The scalars that are to be shown of all rows, and those of the rows of a replica.

    What takes data, or is fed rows, that the gradients do not take is neither.
    """
    data = _batches(graph.tf_graph, view)
    others = view.descendants(data - view.ancestors(gradients))
    merged = {output.tensor for output in plan.outputs}
    of_shards = {node for node, decision in _decisions(graph, view).items() if decision in _OF_SHARDS}
    of_batch = data_descendants(view, data, set()) - others - updated - of_shards
    candidates = {
        (node, at)
        for node, at in scalars_of(graph.tf_graph, view, of_batch)
        if not _is_of_gradients(view, node) and f"{view.nodes[node].name}:{at}" not in merged
    }
    statistics = dict(of_replica)
    if plan.num_micro_batch == 1:
        statistics.update(_statistics_of_all(plan, view))
        statistics.update(_values_of_all_ranks(graph, plan, view))
    known_gradients = gradients - {node for node, _ in of_replica}
    nodes = _needed(view, {node for node, _ in candidates}, known_gradients, before_loss, statistics)
    sources = {**sources_of(graph, view, nodes), **statistics}
    flow = RowFlow(graph.tf_graph, view, nodes, sources, _lowered(graph, view), own_means=before_loss)
    one_part = is_one_part(graph, plan)
    sources = {**sources, **flow.kept}
    lowering = RowLowering(graph.tf_graph, view, flow, nodes, sources, same, differing, trained, not one_part)
    means = {output.tensor for output in plan.outputs if (output.scope, output.merge) == ("local", "mean")}
    averaged = frozenset(one for one in candidates if whole_scalars.shown_value(view, one) in means)
    chosen = whole_scalars.choose(view, flow, lowering, candidates, averaged)
    outputs: Tuple[MergedOutput, ...] = ()
    if not one_part and replica_groups(graph) is None:
        outputs = _merged(graph, plan, chosen, gradients | before_loss)
    of_rows = _tensors(view, chosen.scalars) if one_part else frozenset(output.tensor for output in outputs)
    not_same = {one for one in candidates if not flow.of(one).is_same}
    return ReplicaRows(
        scalars=chosen if one_part and world_size(plan) > plan.workers else None,
        of_rows=of_rows,
        own=_tensors(view, not_same) - of_rows,
        same=_tensors(view, candidates - not_same),
        outputs=outputs,
        shown=_first_part(plan),
        users=_users_tensors(graph),
        gradients=frozenset(view.nodes[node].name for node, _ in of_replica),
    )


def _merged(graph: Graph, plan: Plan, scalars: WholeScalars, backward: Set[int]) -> Tuple[MergedOutput, ...]:
    """Those of the scalars that are the mean, or the sum, of their values of the micro batches and replicas.

    A scalar that an update takes, by another way than `backward` (gradients and what the loss needs), is none: updates
    are the same in all workers.
    """
    found = []
    for node, at in scalars.scalars:
        later = data_descendants(scalars.view, [node], backward)
        if any(scalars.view.types[one] in op_types.WRITES for one in later):
            continue
        flow, is_mean = scalars.lowering.of((node, at)), (node, at) in scalars.averaged
        if is_mean or (flow.kind == PARTIAL_SUM and scalars.lowering.found[node].inputs is None):
            operation = graph.tf_graph.get_operation_by_name(scalars.view.nodes[node].name)
            merge = "mean" if is_mean or flow.degree == 0 else "sum"
            found.append(
                MergedOutput(operation.outputs[at].name, stage_of_op(operation, plan.stages), "local", merge, "")
            )
    return tuple(found)


def _tensors(view: GraphView, outputs: Iterable[Output]) -> FrozenSet[str]:
    """The names of outputs of nodes."""
    return frozenset(f"{view.nodes[node].name}:{at}" for node, at in outputs)


def _batches(tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    """The placeholders that are fed rows, and the data sources."""
    fed = {
        node
        for node in view.user_placeholders()
        if tf_graph.get_operation_by_name(view.nodes[node].name).outputs[0].shape.ndims != 0
    }
    return fed.union(view.of_types(op_types.DATA_SOURCES))


def from_batches(found: ReplicaRows, tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    """The nodes that are computed from batches, but for gradients that are of all rows."""
    nodes = data_descendants(view, _batches(tf_graph, view), set())
    return {node for node in nodes if not _is_of_gradients(view, node) or view.nodes[node].name in found.gradients}


def sentence(findings: Sequence[RowFinding]) -> str:
    """The findings in one sentence, by line of the script, the worst first."""
    parts = []
    for kind in (WRITES, MIXES, FETCHES, SHOWS):
        told = [str(one) for one in findings if one.kind == kind]
        if told:
            more = [f"so do {len(told) - _SHOWN} more lines"] if len(told) > _SHOWN else []
            parts += told[:_SHOWN] + more
    return "; ".join(parts)


def fetched(found: ReplicaRows, tensors: Sequence[tf.Tensor], workers: int) -> List[RowFinding]:
    """The findings for tensors that a run fetches next to gradients: scalars of the rows of a replica, or a worker."""
    findings = []
    for tensor in tensors:
        if tensor.name in found.own or (tensor.name in found.of_rows and workers > 1):
            kind = FETCHES if tensor.name in found.own else SHOWS
            users = tensor.graph.get_tensor_by_name(found.users.get(tensor.name, tensor.name))
            findings.append(_given(kind, users, _of_part([tensor.name], found)))
    return findings


def _given(kind: str, tensor: tf.Tensor, what: str) -> RowFinding:
    place = user_place(tensor.op)
    where = tensor.op.name if place is None else f"{place[0]}:{place[1]}"
    return RowFinding(kind, (tensor.op.name,), where, f"gives {what}")


def fetched_late(found: ReplicaRows, tensor: tf.Tensor, parts: int, shows: Optional[tf.Tensor] = None) -> RowFinding:
    """The finding for a scalar of the batch that was built after the plan: nothing merges it.

    Args:
      found: what was found in the graph.
      tensor: it.
      parts: in how many this process computes.
      shows: the tensor of the user whose value it was built to give.
    """
    kind, of_rows = (FETCHES, frozenset()) if parts > 1 else (SHOWS, frozenset([tensor.name]))
    if shows is not None:
        return _given(kind, shows, _of_part([shows.name], found))
    part = _of_part([tensor.name], found._replace(of_rows=of_rows))
    return _given(kind, tensor, f"{part}, as it was built after the first run")


def describe_rows(findings: Sequence[RowFinding]) -> List[str]:
    """The findings in lines for a person, with their ops."""
    return [f"{one} ({', '.join(one.ops)})" for one in findings]


def _written_values(
    tf_graph: tf.Graph,
    view: GraphView,
    global_variables: AbstractSet[str],
    updated_alike: Mapping[str, str],
    gradients: Set[int],
) -> Dict[int, Tuple[str, List[Output]]]:
    """The script's writes of global variables, and updates: the name of the variable, and what is written."""
    found: Dict[int, Tuple[str, List[Output]]] = {}
    for node in find_training_writes(tf_graph, view, view.writes(), gradients):
        variables = set(view.variable_inputs(node))
        names = [view.nodes[variable].name for variable in sorted(variables)]
        if (updated_alike.keys() if _is_of_gradients(view, node) else global_variables).isdisjoint(names):
            continue
        values = [one for one in data_inputs(view, node) if one[0] not in variables and not view.passes_on(one[0])]
        if values:
            found[node] = updated_alike.get(names[0], names[0]), values
    return found


def _updated_alike(graph: Graph, trained: AbstractSet[str]) -> Dict[str, str]:
    """Name of the op of a variable, or of its shard, that all replicas are to update alike -> name of the variable."""
    sharded = graph.state_of(ShardedVariables)
    shards = [] if sharded is None else sharded.shards
    return {**{name: name for name in trained}, **{one.variable.op.name: one.name for one in shards}}


def _differs(value: Flow, is_from_rows: bool, is_update: bool) -> bool:
    """Whether replicas write different values; sums of their own gradients are meant to differ, and averaged later."""
    if value.is_same or (is_update and (value.kind == UNKNOWN.kind or not value.has_data)):
        return False
    return is_from_rows or value.kind != PARTIAL_SUM


def _gradients_of_replicas(graph: Graph, plan: Plan, view: GraphView, known: AbstractSet[int]) -> Dict[Output, Flow]:
    """The gradients that are each replica's own where tf.gradients returns them, but for those that are `known`."""
    found: Dict[Output, Flow] = {}
    groups = replica_groups(graph)
    if world_size(plan) == 1:  # summed over the micro batches
        known = known | identity_nodes(view, [one for training in find_trainings(graph) for one in training.boundaries])
    own = Flow(PARTIAL_SUM, degree=0 if plan.reduce_method == "mean" else 1, has_data=True)
    for variable, gradient in (boundary for call in graph.gradient_calls for boundary in call.boundaries):
        if groups is not None and len(split_groups(plan)) == 1 and groups.is_complete(variable, gradient):
            continue
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        for node in identity_nodes(view, [(variable, gradient)]) - known:
            found[node, 0] = UNKNOWN if is_sparse else own
    return found


def _statistics_of_all(plan: Plan, view: GraphView) -> Dict[Output, Flow]:
    """What is of all rows: sums that batch norms take (`batch_norm.sync`), and what losses do (`replicate.batch`)."""
    found = [section(plan, BatchNormSection), section(plan, WholeBatchSection)]
    return {(view.index[op], 0): SAME for one in found if one is not None for op in one.ops}


def _users_tensors(graph: Graph) -> Dict[str, str]:
    """Name of a tensor that the ranks of a split compute in place of one of the user -> the name of the user's."""
    groups = replica_groups(graph)
    return {} if groups is None else groups.users_tensors()


def _values_of_all_ranks(graph: Graph, plan: Plan, view: GraphView) -> Dict[Output, Flow]:
    """What the ranks of a split compute together, if they are one replica: from the rows of all, of a micro batch."""
    groups = replica_groups(graph)
    if groups is None or len(split_groups(plan)) > 1:
        return {}
    named = [name.rpartition(":") for name in groups.values_of_groups()]
    return {(view.index[op], int(at)): SAME for op, _, at in named if op in view.index}


def _needed(
    view: GraphView, roots: Set[int], gradients: Set[int], known: Set[int], statistics: Container[Output]
) -> Set[int]:
    """`known`, and what values are computed from, but for what the plan makes equal on all replicas, as gradients."""
    found = set(known)
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found and node not in gradients:
            found.add(node)
            if view.types[node] not in op_types.VARIABLES and (node, 0) not in statistics:
                stack += [one for name, one in zip(view.nodes[node].input, view.producers[node]) if name[0] != "^"]
    return found


def _is_of_gradients(view: GraphView, node: int) -> bool:
    """Whether an op is of the backward pass, or of the optimizer."""
    return _PHASE in view.nodes[node].serialized_attrs


def sources_of(graph: Graph, view: GraphView, nodes: AbstractSet[int]) -> Dict[Output, Flow]:
    """Where rows begin, among nodes: placeholders and data sources; and random numbers, which each replica draws."""
    whole = {tensor.name for tensor in graph.whole_inputs}
    found: Dict[Output, Flow] = {}
    fed, read = (sorted(nodes & set(some)) for some in (view.user_placeholders(), view.of_types(op_types.DATA_SOURCES)))
    tensors = {node: graph.tf_graph.get_operation_by_name(view.nodes[node].name).outputs for node in fed + read}
    # Then what is fed with a known first dimension goes to all replicas.
    open_rows = any(has_open_rows(one) for outputs in tensors.values() for one in outputs)
    for node in fed:
        (tensor,) = tensors[node]
        is_whole = tensor.name in whole or _may_be_a_shape(tensor) or (open_rows and not has_open_rows(tensor))
        of_sparse = any(_takes_sparse_tensor(view.types[one]) for one in view.consumers()[node])
        found[node, 0] = UNKNOWN if of_sparse else SAME if is_whole else _of_data(tensor, SAME)
    for node in read:
        for at, tensor in enumerate(tensors[node]):
            found[node, at] = SAME if tensor.name in whole else _of_data(tensor, UNKNOWN)
    for node in nodes:
        if _SEED in view.nodes[node].serialized_attrs and "seed2" in view.nodes[node].attr:
            found[node, 0] = UNKNOWN
    return found


def _takes_sparse_tensor(op_type: str) -> bool:
    """Whether ops of a type take the components of a SparseTensor, whose first dimension is not that of the batch."""
    return op_type.startswith("Sparse") and not op_type.startswith(("SparseSoftmax", "SparseSegment", "SparseApply"))


def _lowered(graph: Graph, view: GraphView) -> Set[int]:
    """The ops that EPL has built in place of those of a split: together the ranks compute with the rows of all."""
    if replica_groups(graph) is None:
        return set()
    return {node for node, decision in _decisions(graph, view).items() if decision != THE_USER}


def _decisions(graph: Graph, view: GraphView) -> Dict[int, str]:
    """Op that EPL has added, or had the user's code add -> the decision that it follows from."""
    return {view.index[name]: origin.decision for name, origin in graph.inserted.by_name().items()}


def _of_data(tensor: tf.Tensor, of_scalar: Flow) -> Flow:
    """The flow of a tensor that a replica is fed or reads."""
    if tensor.shape.ndims == 0:
        return of_scalar
    if tensor.shape.ndims is None or tensor.dtype in (tf.variant, tf.resource):
        return UNKNOWN
    may_be_indices = tensor.dtype == tf.int64 and tensor.shape.ndims == 2  # of a sparse tensor, which number its rows
    return rows()._replace(counts=may_be_indices)


def _may_be_a_shape(placeholder: tf.Tensor) -> bool:
    """Whether a placeholder may be the dense shape of a sparse one."""
    return placeholder.dtype == tf.int64 and placeholder.shape.ndims == 1 and placeholder.shape.is_fully_defined()


def _shown_values(view: GraphView, known: AbstractSet[str]) -> List[Tuple[int, str]]:
    """The summaries of scalars of the batch that are not `known`, and the names of the scalars."""
    summaries = view.of_types(["ScalarSummary"])
    own = batch_nodes(view, frozenset()) if summaries else set()
    found = []
    for node in summaries:
        value, at = data_inputs(view, node)[-1]
        name = f"{view.nodes[value].name}:{at}"
        if value in own and name not in known:
            found.append((node, name))
    return found


class _Names:
    """The names and the lines of nodes."""

    def __init__(self, graph: Graph, view: GraphView, users: Mapping[str, str]) -> None:
        self._tf_graph = graph.tf_graph
        self._view = view
        self._users = users

    def by_place(self, found: Sequence[Tuple[int, str]]) -> List[Tuple[Tuple[Tuple[str, ...], str], List[str]]]:
        """For each line: names of the nodes that it made, the line, and what is said of each of them."""
        places: Dict[str, List[Tuple[str, str]]] = {}
        for node, what in found:
            name = self._view.nodes[node].name
            users = self._users.get(f"{name}:0", name).partition(":")[0]
            place = user_place(self._tf_graph.get_operation_by_name(users))
            places.setdefault(name if place is None else f"{place[0]}:{place[1]}", []).append((name, what))
        return [
            ((tuple(name for name, _ in ops), place), list(dict.fromkeys(what for _, what in ops)))
            for place, ops in places.items()
        ]


def _written(
    names: _Names, writing: Sequence[Tuple[int, str]], plan: Plan, alike: Container[int] = ()
) -> List[RowFinding]:
    """The findings for writes; those that are `alike` in all replicas differ between micro batches."""
    if world_size(plan) == 1:
        alike = {node for node, _ in writing}
    differing = [one for one in writing if one[0] not in alike]
    in_order = [one for one in writing if one[0] in alike]
    found = [
        RowFinding(WRITES, *at, f"writes {_listed(variables)} from the rows of each replica: the copies differ")
        for at, variables in names.by_place(differing)
    ]
    return found + [
        RowFinding(WRITES, *at, f"writes {_listed(variables)} from the rows of each micro batch, one after the other")
        for at, variables in names.by_place(in_order)
    ]


def _on_the_way(plan: Plan) -> str:
    part = "replica" if plan.num_micro_batch == 1 else "micro batch"
    return f" on the way to the loss: each {part} takes its own rows alone"


def _first_part(plan: Plan) -> str:
    """Whose rows a scalar is of that nothing merges."""
    parts = ["micro batch 0"] * (plan.num_micro_batch > 1) + ["replica 0"] * (world_size(plan) > 1)
    return " of ".join(parts)


def _of_part(tensors: Sequence[str], found: ReplicaRows) -> str:
    part = "each worker" if found.of_rows.issuperset(tensors) else found.shown
    return f"{_listed([found.users.get(one, one) for one in tensors])} of the rows of {part} alone"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more
