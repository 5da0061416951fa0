"""Values of a training step that depend on which rows a replica has, so that the step is not that of one device.

    writes        a variable is written from the rows of each replica, so that the copies differ
    mixing ops    the loss takes them, and they compute with several rows together, or with sums over rows
    fetches       a run fetches a scalar of one replica's rows
    shown values  a summary shows one

The flow of rows (epl/parallel/sharding/row_flow.py) finds writes and mixing ops in the graph of the user. A mean over
rows is exact, as gradients are averaged. A run tells its own writes, mixing ops and scalars in one sentence;
`epl.explain()` lists those of a step.
"""

from typing import AbstractSet, Container, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import batch_nodes, data_descendants, data_inputs, has_open_rows
from epl.ir.gradient import Boundary
from epl.ir.gradient_boundary import boundary_nodes, identity_nodes
from epl.ir.graph import Graph
from epl.ir.inserted_ops import THE_USER
from epl.ir.taskgraph import PHASE_ATTR
from epl.ir.view import GraphView
from epl.parallel.plan.plan import Plan, section, world_size
from epl.parallel.plan.replica_groups import is_one_part, replica_groups
from epl.parallel.plan.sections import BatchNormSection, WholeBatchSection
from epl.parallel.replication import whole_scalars
from epl.parallel.replication.metric_variables import MetricVariables
from epl.parallel.replication.whole_scalars import WholeScalars, scalars_of
from epl.parallel.replication.whole_writes import WholeWrites, choose
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.parallel.sharding.row_flow import SAME, UNKNOWN, Flow, Output, RowFlow, rows
from epl.parallel.sharding.row_lowering import RowLowering
from epl.utils.source_line import user_place

WRITES, MIXES, FETCHES, SHOWS = "writes", "mixes", "fetches", "shows"

_PHASE = PHASE_ATTR.encode()
_SEED = b"seed2"
_SHOWN = 2  # findings of a kind in a sentence


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
      lowered: names of the writes that take them already.
      scalars: the scalars that are to be shown of the rows of all replicas of a process.
      merged: names of the ops of those that are shown so already.
      of_rows: their names; also where a process has one replica.
      own: names of the scalars that are those of the rows of replica 0.
    """

    findings: Tuple[RowFinding, ...] = ()
    whole: Optional[WholeWrites] = None
    lowered: FrozenSet[str] = frozenset()
    scalars: Optional[WholeScalars] = None
    merged: FrozenSet[str] = frozenset()
    of_rows: FrozenSet[str] = frozenset()
    own: FrozenSet[str] = frozenset()


def find(
    graph: Graph,
    plan: Plan,
    view: GraphView,
    global_variables: AbstractSet[str],
    aggregated: Sequence[Boundary],
    metrics: MetricVariables,
    state: str = "each",
) -> ReplicaRows:
    """Finds what depends on the rows that a replica has; nothing in a plan with one replica.

    Args:
      graph: the annotated model, before the passes.
      plan: its plan.
      view: of its graph.
      global_variables: names of the ops of the variables that a checkpoint has.
      aggregated: the boundaries of the gradients that the plan makes equal on all replicas.
      metrics: the metric variables, to which all replicas of a process add.
      state: "all" if writes are to take values of all rows, where they can; "each".
    """
    if world_size(plan) == 1:
        return ReplicaRows()
    calls = [call for call in graph.gradient_calls if call.boundaries]
    gradients = boundary_nodes(view, calls)
    written = _written_values(graph.tf_graph, view, global_variables, gradients)
    objective = {view.index[y.op.name] for call in calls for y in call.ys}
    statistics = _statistics_of_all(plan, view)
    # A loss may take gradients of another: those of each replica, if no optimizer gets them.
    before_loss = _needed(view, objective, identity_nodes(view, aggregated), set(), statistics)
    written_values = {node for _, values in written.values() for node, _ in values}
    nodes = _needed(view, written_values, gradients, before_loss, statistics)
    sources = {**sources_of(graph, view, nodes), **statistics}
    flow = RowFlow(graph.tf_graph, view, nodes, sources, _lowered(graph, view))
    earlier = graph.state_of(ReplicaRows)
    lowered: FrozenSet[str] = frozenset() if earlier is None else earlier.lowered
    writing = [
        (node, variable)
        for node, (variable, values) in sorted(written.items())
        if view.nodes[node].name not in lowered and any(not flow.of(value).is_same for value in values)
    ]
    whole = None
    trained = frozenset(one.op.name for one in graph.tf_graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES))
    if writing and state == "all" and is_one_part(graph, plan):
        candidates = [node for node, _ in writing]
        whole = choose(graph.tf_graph, view, flow, nodes, sources, candidates, before_loss, trained)
        chosen = {write.node for write in whole.writes}
        writing = [(node, variable) for node, variable in writing if node not in chosen]
    writing += [
        (node, view.nodes[view.variable_inputs(node)[0]].name)
        for node in sorted(map(view.index.__getitem__, metrics.others))
    ]
    mixing = [(node, what) for node, what in sorted(flow.mixing.items()) if node in before_loss]
    found = ReplicaRows() if earlier is None else earlier
    if earlier is None and is_one_part(graph, plan):
        same = set() if whole is None else {write.node for write in whole.writes}
        differing = {one for node, _ in writing for one in view.variable_inputs(node)}
        updated = {view.index[name] for name in metrics.updated}
        scalars, own = _find_scalars(graph, plan, view, gradients, before_loss, same, differing, trained, updated)
        of_rows = frozenset(f"{view.nodes[node].name}:{at}" for node, at in scalars.scalars)
        several = world_size(plan) > plan.workers
        found = ReplicaRows(scalars=scalars if several else None, of_rows=of_rows, own=own)
    shown = _shown_values(plan, view, found.of_rows if plan.workers == 1 else frozenset())
    names = _Names(graph, view)
    return ReplicaRows(
        tuple(
            [RowFinding(WRITES, *place, _in_words(variables)) for place, variables in names.by_place(writing)]
            + [RowFinding(MIXES, *place, whats[0] + _ON_THE_WAY) for place, whats in names.by_place(mixing)]
            + [
                RowFinding(SHOWS, *place, _in_words_of_shown(tensors, found.of_rows))
                for place, tensors in names.by_place(shown)
            ]
        ),
        whole,
        lowered,
        found.scalars,
        found.merged,
        found.of_rows,
        found.own,
    )


def _find_scalars(
    graph: Graph,
    plan: Plan,
    view: GraphView,
    gradients: Set[int],
    before_loss: Set[int],
    same: AbstractSet[int],
    differing: AbstractSet[int],
    trained: AbstractSet[str],
    updated: AbstractSet[int],
) -> Tuple[WholeScalars, FrozenSet[str]]:
    """The scalars that are to be shown of all rows, and the names of those that are of the rows of a replica.

    What takes data, or is fed rows, that the gradients do not take is neither.
    """
    data = _batches(graph.tf_graph, view)
    others = view.descendants(data - view.ancestors(gradients))
    merged = {output.tensor for output in plan.outputs}
    of_batch = data_descendants(view, data, set()) - others - updated
    candidates = {
        (node, at)
        for node, at in scalars_of(graph.tf_graph, view, of_batch)
        if not _is_of_gradients(view, node) and f"{view.nodes[node].name}:{at}" not in merged
    }
    statistics = _statistics_of_all(plan, view)
    nodes = _needed(view, {node for node, _ in candidates}, gradients, before_loss, statistics)
    sources = {**sources_of(graph, view, nodes), **statistics}
    flow = RowFlow(graph.tf_graph, view, nodes, sources, own_means=before_loss)
    lowering = RowLowering(graph.tf_graph, view, flow, nodes, {**sources, **flow.kept}, same, differing, trained)
    means = {output.tensor for output in plan.outputs if (output.scope, output.merge) == ("local", "mean")}
    averaged = frozenset(one for one in candidates if whole_scalars.shown_value(view, one) in means)
    return whole_scalars.choose(view, flow, lowering, candidates, averaged)


def _batches(tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    """The placeholders that are fed rows, and the data sources."""
    fed = {
        node
        for node in view.user_placeholders()
        if tf_graph.get_operation_by_name(view.nodes[node].name).outputs[0].shape.ndims != 0
    }
    return fed.union(view.of_types(op_types.DATA_SOURCES))


def from_batches(tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    """The nodes that are computed from batches, but for gradients, which are of all rows."""
    found = data_descendants(view, _batches(tf_graph, view), set())
    return {node for node in found if not _is_of_gradients(view, node)}


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
            findings.append(_given(kind, tensor, _of_part([tensor.name], found.of_rows)))
    return findings


def _given(kind: str, tensor: tf.Tensor, what: str) -> RowFinding:
    place = user_place(tensor.op)
    where = tensor.op.name if place is None else f"{place[0]}:{place[1]}"
    return RowFinding(kind, (tensor.op.name,), where, f"gives {what}")


def fetched_late(tensor: tf.Tensor, replicas: int) -> RowFinding:
    """The finding for a scalar of the batch that was built after the plan: nothing merges it.

    Args:
      tensor: it.
      replicas: those of this process.
    """
    own, of_rows = (FETCHES, set()) if replicas > 1 else (SHOWS, {tensor.name})
    return _given(own, tensor, f"{_of_part([tensor.name], of_rows)}, as it was built after the first run")


def describe_rows(findings: Sequence[RowFinding]) -> List[str]:
    """The findings in lines for a person, with their ops."""
    return [f"{one} ({', '.join(one.ops)})" for one in findings]


def _written_values(
    tf_graph: tf.Graph, view: GraphView, global_variables: AbstractSet[str], gradients: Set[int]
) -> Dict[int, Tuple[str, List[Output]]]:
    """The script's writes of global variables: the name of the variable, and what is written."""
    found: Dict[int, Tuple[str, List[Output]]] = {}
    writes = [node for node in view.writes() if not _is_of_gradients(view, node)]
    for node in find_training_writes(tf_graph, view, writes, gradients):
        variables = set(view.variable_inputs(node))
        names = [view.nodes[variable].name for variable in sorted(variables)]
        if global_variables.isdisjoint(names):
            continue
        values = [one for one in data_inputs(view, node) if one[0] not in variables and not view.passes_on(one[0])]
        if values:
            found[node] = names[0], values
    return found


def _statistics_of_all(plan: Plan, view: GraphView) -> Dict[Output, Flow]:
    """What is of all rows: sums that batch norms take (`batch_norm.sync`), and what losses do (`replicate.batch`)."""
    found = [section(plan, BatchNormSection), section(plan, WholeBatchSection)]
    return {(view.index[op], 0): SAME for one in found if one is not None for op in one.ops}


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
    return {view.index[name] for name, origin in graph.inserted.by_name().items() if origin.decision != THE_USER}


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


def _shown_values(plan: Plan, view: GraphView, of_rows: AbstractSet[str]) -> List[Tuple[int, str]]:
    """The summaries of scalars that are those of one replica's rows, and the names of the scalars."""
    summaries = view.of_types(["ScalarSummary"])
    own = batch_nodes(view, frozenset()) if summaries else set()
    merged = {output.tensor for output in plan.outputs} | of_rows
    found = []
    for node in summaries:
        value, at = data_inputs(view, node)[-1]
        name = f"{view.nodes[value].name}:{at}"
        if value in own and name not in merged:
            found.append((node, name))
    return found


class _Names:
    """The names and the lines of nodes."""

    def __init__(self, graph: Graph, view: GraphView) -> None:
        self._tf_graph = graph.tf_graph
        self._view = view

    def by_place(self, found: Sequence[Tuple[int, str]]) -> List[Tuple[Tuple[Tuple[str, ...], str], List[str]]]:
        """For each line: names of the nodes that it made, the line, and what is said of each of them."""
        places: Dict[str, List[Tuple[str, str]]] = {}
        for node, what in found:
            name = self._view.nodes[node].name
            place = user_place(self._tf_graph.get_operation_by_name(name))
            places.setdefault(name if place is None else f"{place[0]}:{place[1]}", []).append((name, what))
        return [
            ((tuple(name for name, _ in ops), place), list(dict.fromkeys(what for _, what in ops)))
            for place, ops in places.items()
        ]


_ON_THE_WAY = " on the way to the loss: each replica takes its own rows alone"


def _in_words(variables: Sequence[str]) -> str:
    return f"writes {_listed(variables)} from the rows of each replica: the copies differ"


def _in_words_of_shown(tensors: Sequence[str], of_rows: AbstractSet[str]) -> str:
    return f"shows {_of_part(tensors, of_rows)}"


def _of_part(tensors: Sequence[str], of_rows: AbstractSet[str]) -> str:
    part = "each worker" if of_rows >= set(tensors) else "replica 0"
    return f"{_listed(tensors)} of the rows of {part} alone"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more
