"""Metric variables (of tf.metrics and Keras), to which a step adds sums and counts of the rows of its batch.

    replica 0   rows --> count --> add --> total           replica 0   rows --> count --> add --> total --> value
    replica 1   rows --> count --> add --> total'    =>    replica 1   rows --> count --> add -----^ (after the first)

All replicas of a process add to the variable of replica 0, in their order, so that what is computed from it is of the
rows of all of them. A value that an update gives is fetched from the last replica, which has added last. A run of
replica 0 alone, such as a fed evaluation, adds to the same variable.

A metric variable that is not only added to (a mean that is corrected by each batch, a list of all rows) stays one of
each replica, and is told: `replica_rows.py`.
"""

from typing import AbstractSet, FrozenSet, List, NamedTuple, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_descendants
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView
from epl.parallel.plan.replica_groups import is_one_part
from epl.parallel.rewriting.context import RewriteContext, Sibling
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils import tf_compat

_ADDS = frozenset(["AssignAdd", "AssignAddVariableOp"])  # the second input is added


class MetricVariables(NamedTuple):
    """The metric variables of a graph; names of ops.

    Attributes:
      sums: the variables that are only added to, and set to values of no batch.
      adds: the ops that add to them.
      updated: the ops that compute values from them after an addition.
      others: the ops that write other metric variables in a step.
    """

    sums: FrozenSet[str] = frozenset()
    adds: FrozenSet[str] = frozenset()
    updated: FrozenSet[str] = frozenset()
    others: FrozenSet[str] = frozenset()


def find_in(rewrite: RewriteContext, view: GraphView) -> MetricVariables:
    """Finds the metric variables; none unless each replica has one stage, one micro batch, and rows of its own."""
    if not is_one_part(rewrite.graph, rewrite.plan):
        return MetricVariables()
    gradients = boundary_nodes(view, [call for call in rewrite.graph.gradient_calls if call.boundaries])
    writes = find_training_writes(rewrite.tf_graph, view, view.writes(), gradients)
    earlier = rewrite.graph.state_of(MetricVariables) or MetricVariables()
    named = {variable.op.name for variable in tf_compat.metric_variables(rewrite.tf_graph)}
    # An earlier rewriting may have given each replica its own of the others.
    named = {name for name in named if rewrite.is_new(view.index.get(name, -1)) or name in earlier.sums}
    found = find(rewrite.tf_graph, view, writes, named)
    return MetricVariables(*[before | now for before, now in zip(earlier, found)])


def find(tf_graph: tf.Graph, view: GraphView, writes: AbstractSet[int], named: AbstractSet[str]) -> MetricVariables:
    """Finds which metric variables are sums.

    Args:
      tf_graph: the graph.
      view: of it.
      writes: the ops that write variables in a step, not those that initialize them.
      named: names of the ops of the metric variables.
    """
    metrics = {node for name, node in view.names(view.of_types(op_types.VARIABLES)).items() if name in named}
    written = {node: metrics.intersection(view.variable_inputs(node)) for node in writes}
    written = {node: variables for node, variables in written.items() if variables}
    summaries = set(view.of_types(op_types.SUMMARIES))
    from_metrics = data_descendants(view, metrics, summaries)
    data = set(view.of_types(op_types.DATA_SOURCES))
    others: Set[int] = set()
    for node, variables in written.items():
        if not _keeps_sum(tf_graph, view, node, from_metrics, data):
            others |= variables
    sums = metrics - others
    while True:  # a value takes sums alone, or none
        from_others = data_descendants(view, others, summaries)
        mixed = {one for one in sums if not from_others.isdisjoint(data_descendants(view, [one], summaries))}
        if not mixed:
            break
        others |= mixed
        sums -= mixed
    adds = {node for node, variables in written.items() if variables <= sums and view.types[node] in _ADDS}
    of_batch = data_descendants(view, data.union(view.user_placeholders()), adds)
    updated = (data_descendants(view, sums, summaries) & view.descendants(adds)) - of_batch - sums
    return MetricVariables(
        frozenset(view.names(sums)),
        frozenset(view.names(adds)),
        frozenset(view.names(updated)),
        frozenset(view.names(node for node, variables in written.items() if variables & others)),
    )


def _keeps_sum(
    tf_graph: tf.Graph, view: GraphView, write: int, from_metrics: AbstractSet[int], data: AbstractSet[int]
) -> bool:
    """Whether a write adds what no metric variable is read for, or sets a variable to what is of no batch."""
    is_add = view.types[write] in _ADDS
    if not is_add and view.types[write] not in op_types.PLAIN_ASSIGNS:
        return False
    operation = tf_graph.get_operation_by_name(view.nodes[write].name)
    value = view.producers[write][1]
    if value in from_metrics or tf_compat.control_flow_context_of(operation) is not None:
        return False
    return is_add or view.ancestors([value]).isdisjoint(data)


def run(rewrite: RewriteContext) -> None:
    """Orders the additions of the replicas, and has values of updates fetched from the last one."""
    found = rewrite.graph.state_of(MetricVariables)
    view, last = rewrite.view, rewrite.local_replicas - 1
    if found is None or not last:
        return
    assert view is not None
    for name in sorted(found.adds):
        if rewrite.is_new(view.index[name]):
            adds = [rewrite.operation(rewrite.prefix(replica) + name) for replica in range(last + 1)]
            _leave_out_copied_rows(rewrite, adds)
            for earlier, later in zip(adds, adds[1:]):
                tf_compat.add_control_inputs(later, [earlier])
    for name in sorted(found.updated):
        if rewrite.is_new(view.index[name]):
            copy = rewrite.operation(rewrite.prefix(last) + name)
            for own, value in zip(rewrite.operation(name).outputs, copy.outputs):
                rewrite.merged[own.name] = Sibling(value, "")


def _leave_out_copied_rows(rewrite: RewriteContext, adds: List[tf.Operation]) -> None:
    """Adds zeros for a replica that has no row of a divided batch and computes on a row of another replica."""
    if rewrite.batch_index is None:
        return
    for add, weight in zip(adds[1:], rewrite.weights[1:]):  # the first has a row
        value = add.inputs[1]
        with rewrite.building("metrics"), tf.device(value.device):
            kept = value * tf.cast(tf.sign(weight), value.dtype)
        tf_compat.set_input(rewrite.remember(add), 1, kept)


PASS = Pass(
    "sum_metrics",
    run,
    "outputs",
    adds=names("merged"),
    requires=names("weights batch_index cloned"),
    after=names("broadcast_variables"),
)
