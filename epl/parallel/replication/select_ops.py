"""Finds the ops to clone for every replica, and lets gradients wait until all replicas have their data.

These are the ops that change variables (not those that initialize or restore them), the collectives, the objective, the
output collections, the scalars that are shown of all rows, and all ops that these depend on, except shared state: data
sources' state (iterators, queues, readers) and tables. A staging area is not shared: it is a part of the step.
"""

from typing import Dict, Sequence, Set, Tuple

from epl.ir import op_types
from epl.ir.taskgraph import PHASE_ATTR
from epl.ir.view import GraphView
from epl.parallel.replication import batch_division
from epl.parallel.replication.batch_weights import current_view
from epl.parallel.replication.metric_variables import MetricVariables
from epl.parallel.replication.replica_rows import ReplicaRows
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.data_waits import ends_of_data
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils import tf_compat
from epl.utils.errors import PlanError


def run(rewrite: RewriteContext) -> None:
    """Gates the gradients, reads the graph, and selects the ops."""
    _gate(rewrite)
    view = rewrite.view = current_view(rewrite)
    all_writes = view.writes()
    writes = find_training_writes(
        rewrite.tf_graph, view, all_writes, [view.index[name] for name in rewrite.gradients()]
    )
    initializers: Set[int] = set()
    sharded = rewrite.sharded
    if sharded is not None:  # every rank initializes its own shards
        initializers.update(view.index[name] for name in sharded.initializers())
        writes.update(initializers)
        writes.difference_update(view.index[name] for name in sharded.replaced())
    roots = set(writes)
    if sharded is not None:  # all ranks compute the values that are fetched
        roots.update(view.index[name] for name in sharded.results())
    roots.update(view.index[name] for name in rewrite.collectives)
    roots.update(view.index[rewrite.in_replica(output.tensor).op.name] for output in rewrite.plan.outputs)
    roots.update(view.index[name] for name in _scalars(rewrite))
    roots.update([] if rewrite.weight is None else [view.index[rewrite.weight.op.name]])
    shared = set(view.of_types(op_types.SHARED_STATE))
    reads = set(view.of_types(op_types.CHECKPOINT_READS))
    rewrite.cloned = _with_staging(view, roots, shared)
    metrics = rewrite.graph.state_of(MetricVariables) or MetricVariables()
    rewrite.cloned -= {view.index[name] for name in metrics.sums}
    _separate_reads(rewrite, view, all_writes)
    restored = rewrite.cloned & reads
    if restored and initializers:  # initial values may come from a checkpoint
        restored &= _with_staging(view, roots - initializers, shared)
    if restored:
        raise PlanError(
            "{!r} reads a checkpoint within the training step. Restore before training (tf.train.Saver.restore, or "
            "tf.train.init_from_checkpoint).".format(view.nodes[min(restored)].name)
        )
    _refuse_generators(view, rewrite.cloned)
    _refuse_tapes(rewrite, view)
    rewrite.writes = writes
    rewrite.foreign_writes = _foreign_writes(view, rewrite.cloned, set(all_writes) - writes)


def _scalars(rewrite: RewriteContext) -> Set[str]:
    """Names of the ops whose scalars are shown of all rows, from now on or since an earlier rewriting."""
    found = rewrite.graph.state_of(ReplicaRows) or ReplicaRows()
    whole = found.scalars
    return set(found.merged) if whole is None else {whole.view.nodes[node].name for node, _ in whole.scalars}


def _separate_reads(rewrite: RewriteContext, view: GraphView, all_writes: Sequence[int]) -> None:
    """Moves the ops that read a batch for several replicas from `cloned` to `read_once`."""
    if rewrite.batch_index is None:
        return
    sources = [
        view.index[prefix + division.source]
        for division in rewrite.divisions
        for prefix in rewrite.micro_prefixes_of(division.source)
    ]
    reads = view.ancestors(sources, lambda node: node not in rewrite.cloned) & rewrite.cloned
    reads.difference_update(view.of_types(op_types.VARIABLES))
    written = sorted(reads.intersection(all_writes))
    if written:
        raise PlanError(
            "{} reads a batch once for several devices, and {!r} has to run before it is read, which writes a variable "
            "that each device has a copy of. Write it after the batch is read, or {}.".format(
                batch_division.divider(rewrite), view.nodes[written[0]].name, batch_division.otherwise(rewrite)
            )
        )
    rewrite.read_once = frozenset(view.names(reads))
    rewrite.cloned -= reads


def _with_staging(view: GraphView, roots: Set[int], shared: Set[int]) -> Set[int]:
    """The ops that `roots` need, without `shared` and what lies before it; with a staging area, all ops that fill it.

    Each replica has its own staging areas: it gets what its own ops have put.
    """
    areas: Dict[Tuple[bytes, bytes], Set[int]] = {}
    for node in view.of_types(op_types.STAGING):
        attr = view.nodes[node].attr
        areas.setdefault((attr["container"].s, attr["shared_name"].s), set()).add(node)
    while True:
        needed = view.ancestors(roots, lambda node: node in shared) - shared
        more = set().union(*[area for area in areas.values() if area & needed]) - needed
        if not more:
            return needed | _colocation_anchors(view, areas, needed)
        roots = roots | more


def _colocation_anchors(view: GraphView, areas: Dict[Tuple[bytes, bytes], Set[int]], needed: Set[int]) -> Set[int]:
    """The no-ops that the ops of a staging area are colocated with; copies have their own."""
    staging = [view.nodes[i] for area in areas.values() for i in area & needed]
    groups = {group.decode().replace("loc:@", "", 1) for node in staging for group in node.attr["_class"].list.s}
    return {view.index[name] for name in groups if name in view.index and view.types[view.index[name]] == "NoOp"}


def _foreign_writes(view: GraphView, cloned: Set[int], others: Set[int]) -> Set[str]:
    return {view.nodes[node].name for node in others if any(p in cloned for p in view.variable_inputs(node))}


def _gate(rewrite: RewriteContext) -> None:
    """The gate of a group waits for the data of its gradients.

    So a step in which some replica of the job has no data changes no variable (see order_step_writes.py).
    """
    view = rewrite.view = current_view(rewrite)
    sources = set(view.of_types(op_types.DATA_SOURCES))
    if not sources:
        return
    needed: Dict[str, Set[int]] = {}
    done = () if rewrite.earlier is None else {one.op.name for one in rewrite.earlier.gates}
    for one in rewrite.gates:
        if one.op.name in done:
            continue
        gradients = [view.index[name] for name in one.gradients]
        needed[one.op.name] = needed.get(one.op.name, set()) | rewrite.needed_by(view, gradients)
    for name, takers in needed.items():
        data = [
            source
            for source in sorted(takers & sources)
            if not tf_compat.control_flow_context_of(rewrite.operation(view.nodes[source].name))
        ]
        if data:
            gate = rewrite.remember(rewrite.operation(name))
            tf_compat.add_control_inputs(gate, ends_of_data(rewrite, view, data, takers))


def _refuse_generators(view: GraphView, cloned: Set[int]) -> None:
    """Raises PlanError for random numbers whose state is a variable: all copies would draw the same numbers."""
    for node in sorted(cloned.intersection(view.of_types(op_types.GENERATORS))):
        raise PlanError(
            "{!r} ({}) draws from a tf.random.experimental.Generator, whose state is a variable: replicas and micro "
            "batches would have the same numbers. Draw with tf.random.normal, tf.random.uniform and the like.".format(
                view.nodes[node].name, view.types[node]
            )
        )


def _refuse_tapes(rewrite: RewriteContext, view: GraphView) -> None:
    """Refuses gradients of tf.py_function: they find their tape by a token, which copies would share."""
    for node in view.of_types(["EagerPyFunc"]):
        if rewrite.local_replicas > 1 and node in rewrite.cloned and PHASE_ATTR in view.nodes[node].attr:
            raise PlanError(
                "{!r} is the gradient of a tf.py_function, which cannot run on several devices of one process. Use "
                "tf.numpy_function with tf.custom_gradient, or one device per worker.".format(view.nodes[node].name)
            )


PASS = Pass(
    "select_ops",
    run,
    "replicas",
    provides=names("cloned writes foreign_writes read_once"),
    requires=names(
        "gates collectives weight orders barriers later_writes over_micro_batches batch_index micro_batched"
    ),
    after=names("order_step_writes count_rows"),
)
