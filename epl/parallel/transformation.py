"""`transform`: plans a graph, agrees on the plan with the other processes, and runs the passes. Once per graph."""

import contextlib
import gc
import logging
import os
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel import features
from epl.parallel.feature import Feature
from epl.parallel.pipeline import clone_micro_batches
from epl.parallel.plan import agreement, explain, loaded, planner, refusals
from epl.parallel.plan import plan as plans
from epl.parallel.plan.communicators import all_communicators
from epl.parallel.plan.dedicated_devices import tell_of_shared_devices
from epl.parallel.plan.gradient_groups import find_groups, find_trainings
from epl.parallel.plan.graph_digest import GraphDigest
from epl.parallel.plan.hierarchy import plan_hierarchy
from epl.parallel.plan.row_shares import plan_row_shares
from epl.parallel.plan.stages import batches_of_step, plan_batch_parts, plan_stages
from epl.parallel.plan.unequal_scopes import tell_of_first_devices
from epl.parallel.replication import (
    aggregate_gradients,
    average_writes,
    batch_division,
    batch_sizes,
    batch_weights,
    check_replicas,
    clone_replicas,
    divide_batches,
    lower_writes,
    merge_outputs,
    merge_scalars,
    metric_variables,
    order_step_writes,
    replica_rows,
    run_kinds,
    select_ops,
    sync_variables,
)
from epl.parallel.replication.metric_variables import MetricVariables
from epl.parallel.replication.replica_rows import ReplicaRows
from epl.parallel.rewriting import contracts, needed_collectives
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.contracts import CheckedRewrite
from epl.parallel.rewriting.pass_manager import Pass, PassReport, in_order, run_passes
from epl.parallel.sharded_variables.checkpoints import Checkpoints
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils import tf_compat

logger = logging.getLogger("epl")

_SHARDS = OpOrigin("sharded variables", "checkpoints")

# Those of every plan; their order, and that of the features' passes between them, is in their contracts.
_CORE_PASSES = (
    batch_sizes.PASS,
    needed_collectives.PASS,
    lower_writes.PASS,
    clone_micro_batches.PASS,
    divide_batches.PASS,
    aggregate_gradients.PASS,
    average_writes.PASS,
    order_step_writes.PASS,
    merge_outputs.GLOBAL_PASS,
    batch_weights.PASS,
    select_ops.PASS,
    clone_replicas.PASS,
    sync_variables.PASS,
    run_kinds.PASS,
    check_replicas.PASS,
    merge_scalars.PASS,
    metric_variables.PASS,
    merge_outputs.LOCAL_PASS,
)


def passes_of(asked: Sequence[Feature], is_plain: bool = False) -> List[Pass]:
    """The passes of features, and those of every plan, in order; `is_plain`: for one replica on one device."""
    passes = [one for feature in asked for one in feature.passes] + list(_CORE_PASSES)
    contracts.check(passes)
    return in_order([one for one in passes if one.plain or not is_plain])


class ToldByWorkers(NamedTuple):
    """What is told when the processes agree on the plan of a graph: `Graph.state_of`.

    Attributes:
      own: the text that this worker has for the others; that of worker 0 is told to all.
      of_worker_0: that one, once the graph is rewritten.
    """

    own: str = ""
    of_worker_0: str = ""


class PlannedCalls:
    """How many calls of tf.gradients and of apply_gradients a graph had when it was planned last: `Graph.state_of`."""

    def __init__(self, graph: Graph) -> None:
        self.gradients, self.applies = len(graph.gradient_calls), len(graph.apply_calls)


class TransformReport(NamedTuple):
    """What the rewriting of a graph did.

    Attributes:
      plan: the plan.
      passes: CPU seconds and ops added, per pass.
      cpu_s: CPU seconds, planning and passes together.
      cloned_ops: ops of replica 0 that have copies.
      replicas: local replicas.
    """

    plan: plans.Plan
    passes: List[PassReport]
    cpu_s: float
    cloned_ops: int
    replicas: int


def needs_transform(graph: Optional[Graph]) -> bool:
    """Whether the graph is annotated, has gradients to aggregate, and was not rewritten before."""
    return (
        graph is not None
        and graph.rewritten is None
        and bool(graph.taskgraphs)
        and bool(graph.gradient_calls or graph.apply_calls)
    )


def transform(tf_graph: Optional[tf.Graph] = None) -> Optional[TransformReport]:
    """Rewrites an annotated graph for all devices of the job. The first Session.run does it; again, it does nothing.

    Args:
      tf_graph: the graph; the default graph if not given.

    Returns:
      A report, or None if there is nothing to do: no annotation, no gradients, or done before.

    Raises:
      NotAvailableError: a feature that does not exist yet is asked for.
      PlanError: the model cannot be trained as asked; the message says why.
      PlanMismatchError: the processes built different models.
    """
    graph = Graph.of(tf_graph or tf.get_default_graph())
    if graph is None or not needs_transform(graph):
        return None
    if graph.failure is not None:
        raise graph.failure
    start = time.process_time()
    env = Env.get()
    cluster = env.cluster
    assert cluster is not None
    refusals.refuse_contradictions(env.config)
    for feature in features.FEATURES:
        feature.refuse(graph, env.config)
    refusals.refuse_foreign_synchronisation(graph.tf_graph)
    if cluster.worker_num > 1:
        agreement.meet()
    if graph.device_placement is not None:  # the graph ran before it had gradients
        graph.device_placement.undo(graph.tf_graph)
        graph.device_placement = None
    with tf_compat.unfinalized(graph.tf_graph), without_garbage_collection(), contextlib.ExitStack() as changes:
        sharded = graph.state_of(ShardedVariables)
        if sharded is not None:
            changes.enter_context(graph.changing())
            with graph.building_shards():
                sharded.adopt_updates()  # of moving averages, which are built after apply_gradients
        digest = _digest_of(graph, cluster, env.config)
        if sharded is not None:
            for owner in sharded.owners.values():
                with graph.inserted.following(_SHARDS):
                    owner.finish()
        for feature in features.FEATURES:
            with graph.inserted.following(feature.origin):
                feature.complete(graph)
        stages, owners = plan_stages(graph, cluster)
        tell_of_shared_devices(graph.taskgraphs, cluster)
        tell_of_first_devices(graph.taskgraphs, cluster)
        groups = find_groups(graph, env.config, stages) if len(stages) * len(owners) > 1 else []
        for feature in features.FEATURES:
            feature.refuse_plan(graph, env.config, stages, groups)
        trainings = find_trainings(graph) if len(stages) > 1 else []
        row_shares = plan_row_shares(env.config, owners, cluster.worker_num)
        refusals.refuse_uneven_rows(graph, cluster, row_shares)
        batch_parts = plan_batch_parts(graph, cluster, bool(row_shares) or env.asked_local_rows)
        plan = planner.make_plan(
            env.new_graph_name(), graph, stages, owners, batch_parts, groups, env.config, cluster, row_shares
        )
        kind = CheckedRewrite if os.environ.get("EPL_VERIFY") else RewriteContext
        rewrite = kind(graph, plan, groups, trainings, env.config, cluster)
        sections = [feature.plan(rewrite) for feature in features.FEATURES]
        sections.append(plan_hierarchy(env.config, cluster))
        rewrite.divisions = batch_division.find(rewrite)
        plan = rewrite.plan = plan._replace(
            features=tuple(one for one in sections if one is not None),
            batch_rows=batch_sizes.plan_batch_rows(rewrite, batches_of_step(graph, cluster)) if row_shares else (),
        )
        loaded.refuse_other_plan(plan)
        explain.tell(plan, cluster)
        passes: List[PassReport] = []
        if not rewrite.is_plain:
            agreement.refuse_missing_workers(plan.name, plan.owners)
            agreement.meet()
            if plan.workers > 1:
                agreement.compare_plans(plan)
                if digest is not None:
                    agreement.compare_graphs(plan.name, graph, digest)
            told = graph.state_of(ToldByWorkers) or ToldByWorkers()
            of_worker_0 = agreement.of_worker_0(plan, "checkpoints", told.own)
            graph.keep(ToldByWorkers, told._replace(of_worker_0=of_worker_0))
            env.end_unused()
            if rewrite.spans_processes:
                _open_communicators(rewrite)
            if replica_rows.parts_of(plan) > 1:
                find_replica_rows(rewrite, GraphView(rewrite.tf_graph), env.config.replicate.state)
            with changing(graph, rewrite):
                passes = run_passes(passes_of(features.FEATURES), rewrite)
                checkpoints = graph.state_of(Checkpoints)
                if checkpoints is not None:
                    with graph.inserted.following(_SHARDS):
                        checkpoints.complete([rewrite.prefix(copy) for copy in range(rewrite.local_replicas)])
                if plan.workers > 1:
                    agreement.compare_facts(plan.name, "collectives", fingerprint(rewrite))
        else:
            with changing(graph, rewrite):
                passes = run_passes(passes_of(features.FEATURES, is_plain=True), rewrite)
            rewrite.view = None if rewrite.runs_as_it_is else GraphView(graph.tf_graph)
    graph.rewritten = rewrite
    graph.keep(PlannedCalls, PlannedCalls(graph))
    return TransformReport(plan, passes, time.process_time() - start, len(rewrite.cloned), rewrite.local_replicas)


def find_replica_rows(rewrite: RewriteContext, view: GraphView, state: str) -> None:
    """Notes what depends on the rows of a replica or a micro batch. The training does not need it: no error ends it.

    With `state` "all" writes are to take values of all rows, as `replicate.state` says.

    The view is not kept: features change ops before the first pass with a view, and do not say which.
    """
    try:
        aggregated = [boundary for group in rewrite.groups for boundary in group.boundaries]
        metrics = metric_variables.find_in(rewrite, view)
        found = replica_rows.find(
            rewrite.graph, rewrite.plan, view, rewrite.global_variables, aggregated, metrics, state
        )
        rewrite.graph.keep(MetricVariables, metrics)
        rewrite.graph.keep(ReplicaRows, found)
        rewrite.plan = rewrite.plan._replace(outputs=rewrite.plan.outputs + found.outputs)
    except Exception as error:
        logger.warning(
            "EPL cannot tell whether the step is that of one device on all rows (%r): see 'What equals one device' in "
            "docs/data_parallelism.md.", error,
        )  # fmt: skip


def _digest_of(graph: Graph, cluster: Cluster, config: Config) -> Optional[GraphDigest]:
    """The digest of the graph as the user built it, if other workers have theirs to compare it with."""
    if cluster.worker_num == 1 or config.communication.allow_different_graphs:
        return None
    return GraphDigest(graph)


@contextlib.contextmanager
def changing(graph: Graph, rewrite: RewriteContext) -> Iterator[None]:
    """Notes the ops that are added inside."""
    users = tf_compat.op_names(graph.tf_graph)
    with graph.changing():
        yield
    rewrite.added = frozenset(tf_compat.op_names(graph.tf_graph) - users)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """The rewriting makes many small objects and no cycles; looking for them takes a sixth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open_communicators(rewrite: RewriteContext) -> None:
    """Has the processes of later stages open their communicators.

    Raises:
      PlanError: the session is a local one.
    """
    server = agreement.process_server()
    if agreement.is_imagined():
        return
    if server is None:
        agreement.refuse_local_session()
    sharded = rewrite.sharded
    server.open(rewrite.tf_graph, all_communicators(rewrite.plan) + ([] if sharded is None else sharded.unopened))


def fingerprint(rewrite: RewriteContext) -> Dict[str, str]:
    """For every collective of replica 0: op, dtype, shapes and communicator, in the order of the graph."""
    view = rewrite.view
    assert view is not None
    facts: Dict[str, str] = {}
    order: Dict[str, int] = {}
    for node in view.of_types(COLLECTIVE_OP_TYPES):
        proto = view.nodes[node]
        communicator = proto.attr["communicator"].s.decode()
        place = order[communicator] = order.get(communicator, 0) + 1
        op = rewrite.tf_graph.get_operation_by_name(proto.name)
        tensors = list(op.inputs)[COLLECTIVE_OP_TYPES[proto.op].first_tensor :]
        groups = rewrite.sub_communicators(communicator)
        key = "{} on {}".format(proto.attr["key"].s.decode(), communicator if groups is None else groups.name)
        # Parts may be larger on one rank than on another.
        shapes = ["" if groups is not None and groups.name in rewrite.holders else t.shape for t in tensors]
        facts[key] = "number {} there, {} of {}".format(
            place, proto.op, ", ".join(f"{t.dtype.name}{shape}" for t, shape in zip(tensors, shapes))
        )
    return facts
