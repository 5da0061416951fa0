"""Training steps that are built after the graph was rewritten: a second optimizer, a Keras model that compiles again.

The graph goes on as it stands. The new step is planned and rewritten in its turn; its copies use the copies and
variables that the replicas have already:

    first rewriting        EPL_REPLICA_1/forward --> EPL_REPLICA_1/gradient --> all-reduce --> EPL_REPLICA_1/apply
                                  |
    second rewriting              '--> EPL_REPLICA_1/gradient_1 --> all-reduce --> EPL_REPLICA_1/apply_1

A session does not see changes of ops that it has, so the passes change new ops alone. This is done for data parallelism
without further features; a step that is built late is refused in any other model (`missing_words`).
"""

from typing import Any, Iterable, List, Optional, Sequence

from epl.env import Env
from epl.ir import op_types
from epl.ir.graph import Graph, first_tensor
from epl.parallel import features
from epl.parallel.plan import agreement, planner, refusals
from epl.parallel.plan.gradient_groups import BoundaryGroup, find_groups
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import run_passes
from epl.parallel.transformation import (
    PlannedCalls,
    changing,
    find_replica_rows,
    fingerprint,
    passes_of,
    without_garbage_collection,
)
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_DECISIONS = ("replicas", "outputs", "debug.check_replicas")  # of the passes that data parallelism needs


def missing_words(graph: Graph) -> List[str]:
    """What a training step would lack that is built now, after the graph was rewritten; [] if it lacks nothing."""
    rewrite, config = graph.rewritten, Env.get().config
    if rewrite is None:
        return []
    missing = [feature.missing_after_plan(graph, config) for feature in features.FEATURES]
    if not rewrite.is_plain and (len(rewrite.plan.stages) > 1 or rewrite.plan.features or rewrite.sharded is not None):
        missing.insert(0, "replica 0 alone")
    return [words for words in missing if words]


def is_recorded(graph: Graph) -> bool:
    """Whether calls of tf.gradients and apply_gradients are noted for a rewriting."""
    return graph.rewritten is None or (not graph.rewritten.is_plain and not missing_words(graph))


def has_parts(graph: Graph, variables: Iterable[Optional[str]]) -> bool:
    """Whether any of the named variables of a rewritten graph is in parts."""
    rewrite = graph.rewritten
    return rewrite is not None and any(name is not None and rewrite.shard_of(name) != name for name in variables)


def needs_rewriting(graph: Optional[Graph]) -> bool:
    """Whether a rewritten graph has calls of tf.gradients or apply_gradients that no rewriting has seen."""
    if graph is None or graph.rewritten is None or graph.rewritten.is_plain:
        return False
    planned = graph.state_of(PlannedCalls)
    now = PlannedCalls(graph)
    return planned is not None and (planned.gradients, planned.applies) != (now.gradients, now.applies)


def rewrite_again(session: Any) -> None:
    """Plans and rewrites the training steps that were built since the graph of a session was rewritten.

    Raises:
      PlanError: the step cannot be trained as asked; the message says why.
      PlanMismatchError: the processes built different steps.
    """
    tf_graph = session.graph
    graph = Graph.of(tf_graph)
    if graph is None or not needs_rewriting(graph):
        return
    if graph.failure is not None:
        raise graph.failure
    earlier, env = graph.rewritten, Env.get()
    assert earlier is not None and env.cluster is not None
    planned = graph.state_of(PlannedCalls)
    assert planned is not None
    plan, config, cluster = earlier.plan, env.config, env.cluster
    groups = _groups(graph, earlier)
    if len(groups) == len(earlier.groups) and len(graph.apply_calls) == planned.applies:
        graph.keep(PlannedCalls, PlannedCalls(graph))  # gradients that train nothing
        return
    _refuse_shipped(session, groups[len(earlier.groups) :])
    for feature in features.FEATURES:
        feature.refuse(graph, config)
        feature.refuse_plan(graph, config, plan.stages, groups)
    refusals.refuse_foreign_synchronisation(tf_graph)
    name = env.new_graph_name()
    later = planner.make_plan(
        name, graph, plan.stages, plan.owners, plan.batch_parts, groups, config, cluster, plan.row_shares
    )
    later = later._replace(groups=plan.groups + later.groups[len(plan.groups) :])
    with tf_compat.unfinalized(tf_graph), without_garbage_collection():
        rewrite = type(earlier)(graph, later, groups, [], config, cluster)
        rewrite.go_on_from(earlier)
        _refuse_divided_batches(rewrite, earlier)
        agreement.meet()
        if plan.workers > 1:
            agreement.compare_plans(later)
        assert rewrite.view is not None
        # A write that is built late keeps the rows of its replica, and is told.
        find_replica_rows(rewrite, rewrite.view, "each")
        asked = [one for one in passes_of(features.FEATURES) if one.decision in _DECISIONS]
        with changing(graph, rewrite):
            run_passes(asked, rewrite)
            if plan.workers > 1:
                agreement.compare_facts(name, "collectives", fingerprint(rewrite))
        rewrite.take_in_earlier()
    graph.rewritten = rewrite
    graph.keep(PlannedCalls, PlannedCalls(graph))
    if graph.runner is not None:
        graph.runner.go_on_with(rewrite)


def _groups(graph: Graph, earlier: RewriteContext) -> List[BoundaryGroup]:
    """The groups of the earlier rewritings, then those of gradients that none of them has aggregated."""
    done = {first_tensor(gradient).op.name for group in earlier.groups for _, gradient in group.boundaries}
    names = {group.name for group in earlier.groups}
    new: List[BoundaryGroup] = []
    for group in find_groups(graph, Env.get().config, earlier.plan.stages):
        boundaries = tuple(one for one in group.boundaries if first_tensor(one[1]).op.name not in done)
        if boundaries:
            name = group.name if group.name not in names else f"{group.name}_{len(earlier.groups) + len(new)}"
            new.append(group._replace(name=name, boundaries=boundaries))
    return [*earlier.groups, *new]


def _refuse_divided_batches(rewrite: RewriteContext, earlier: RewriteContext) -> None:
    """Raises PlanError where devices share a batch that a step reads: the cuts of a batch are made once."""
    view = rewrite.view
    assert view is not None
    gradients = [
        view.index[first_tensor(one).op.name] for _, group in rewrite.new_groups for _, one in group.boundaries
    ]
    reads = view.ancestors(gradients).intersection(view.of_types(op_types.DATA_SOURCES))
    if earlier.batch_index is not None or (rewrite.plan.batch_parts and reads):
        raise PlanError(
            "A training step was built after the graph was rewritten by its first Session.run, and devices share the "
            "batches that the model reads (epl.replicate of several devices, epl.local_rows or auto.balance). Build "
            "the whole training step before the first run; or feed the batches."
        )


def _refuse_shipped(session: Any, groups: Sequence[BoundaryGroup]) -> None:
    """Raises PlanError for gradients that a session has: it would not see that they are averaged."""
    shipped = getattr(session, "_epl_shipped", 0)
    for variable, gradient in (boundary for group in groups for boundary in group.boundaries):
        if tf_compat.op_id(first_tensor(gradient).op) <= shipped:
            raise PlanError(
                "The session ran before the graph could be rewritten for {} (its gradient {!r} is in it already). "
                "Build the whole training step first, or open a new session.".format(
                    variable, first_tensor(gradient).name
                )
            )
