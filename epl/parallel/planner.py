"""Makes the plan from the annotated model, the configuration and the cluster; refuses what cannot be done.

Nothing of the graph is changed here.
"""

import logging
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster import Cluster
from epl.config import Config
from epl.ir import op_types
from epl.ir.graph import Gradient, Graph, GraphKeys, first_tensor
from epl.ir.view import GraphView
from epl.ops import fusion
from epl.parallel.plan import GradientGroup, Output, Plan, Reduction, Transfer
from epl.utils import tf_compat
from epl.utils.errors import NotAvailableError, PlanError

# Configuration keys whose pass does not exist yet, and the value that means "off".
_NOT_AVAILABLE = (
    ("auto.auto_parallel", False),
    ("gradient_checkpoint.type", ""),
    ("zero.level", ""),
    ("offload.level", ""),
    ("amp.level", ""),
    ("pipeline.num_micro_batch", 1),
    ("pipeline.num_stages", -1),
    ("optimizer.num_apply_group", 1),
)  # fmt: skip

_OUTPUT_KEYS = (
    (GraphKeys.GLOBAL_CONCAT_OBJECTS, "global", "concat"),
    (GraphKeys.GLOBAL_MEAN_OBJECTS, "global", "mean"),
    (GraphKeys.GLOBAL_SUM_OBJECTS, "global", "sum"),
    (GraphKeys.LOCAL_CONCAT_OBJECTS, "local", "concat"),
    (GraphKeys.LOCAL_MEAN_OBJECTS, "local", "mean"),
    (GraphKeys.LOCAL_SUM_OBJECTS, "local", "sum"),
)

logger = logging.getLogger("epl")

Boundary = Tuple[str, Gradient]
BoundaryGroup = NamedTuple("BoundaryGroup", [("name", str), ("boundaries", Tuple[Boundary, ...])])
BoundaryGroup.__doc__ = """The gradients to aggregate together: (variable, identity in front of which it is done)."""


def refuse_unavailable(config: Config) -> None:
    """Raises NotAvailableError for the first configured feature that does not exist yet."""
    for key, off in _NOT_AVAILABLE:
        value = config.get(key)
        if value != off:
            raise NotAvailableError(key, "It is {!r}; set it to {!r} for now.".format(value, off))


def refuse_taskgraphs(graph: Graph) -> None:
    """Raises NotAvailableError for annotations that need more than data parallelism."""
    for taskgraph in graph.taskgraphs:
        strategy = taskgraph.strategy
        if strategy.name_of_kind == "split":
            raise NotAvailableError("epl.split", "{} cannot be lowered yet.".format(strategy))
        if (strategy.device_count or 1) > 1:
            raise NotAvailableError(
                "epl.replicate(device_count={})".format(strategy.device_count),
                "Use epl.replicate(1): the number of replicas is inferred from the devices.",
            )
    if len(graph.taskgraphs) > 1:
        raise NotAvailableError(
            "pipeline stages",
            "The model has {} TaskGraphs ({}); annotate it with one.".format(
                len(graph.taskgraphs), ", ".join(str(taskgraph.strategy) for taskgraph in graph.taskgraphs)
            ),
        )


def refuse_foreign_synchronisation(tf_graph: tf.Graph) -> None:
    """Raises PlanError for ops that synchronise gradients by other means."""
    for op in tf_graph.get_operations():
        if op.type in op_types.FOREIGN_SYNCHRONISATION:
            raise PlanError(
                "{!r} ({}) synchronises gradients by itself. Remove tf.train.SyncReplicasOptimizer or the distribution "
                "strategy: EPL aggregates the gradients.".format(op.name, op.type)
            )


def find_groups(graph: Graph, config: Config) -> List[BoundaryGroup]:
    """Where gradients are aggregated: at each apply_gradients, or earlier.

    Earlier, at tf.gradients, with `communication.clip_after_allreduce`, and for gradients that no optimizer receives
    but that the user writes into variables by other means.
    """
    by_identity: Dict[str, Boundary] = {}
    for call in graph.gradient_calls:
        for boundary in call.boundaries:
            by_identity[first_tensor(boundary[1]).op.name] = boundary
    first_id = min([tf_compat.op_id(graph.tf_graph.get_operation_by_name(name)) for name in by_identity] or [0])
    groups: List[BoundaryGroup] = []
    taken: Set[str] = set()
    for number, applied in enumerate(graph.apply_calls):
        upstream = _upstream_boundaries([first_tensor(g).op for _, g in applied.boundaries], by_identity, first_id)
        taken.update(upstream)
        boundaries = list(applied.boundaries)
        if config.communication.clip_after_allreduce and upstream:
            boundaries = [boundary for name, boundary in by_identity.items() if name in upstream]
        elif applied.changed and upstream:
            logger.warning(
                "Gradients are changed between tf.gradients and apply_gradients (clipped, for example). Each replica "
                "does so with its own gradients, before they are averaged; communication.clip_after_allreduce does it "
                "after, as one device would."
            )
        groups.append(BoundaryGroup("apply{}".format(number), tuple(boundaries)))
    all_boundaries = list(by_identity)
    for apply_call in graph.apply_calls:
        all_boundaries.extend(first_tensor(gradient).op.name for _, gradient in apply_call.boundaries)
    unused = [name for name in by_identity if name not in taken]
    trained = frozenset(variable for variable, _ in by_identity.values())
    written = _written_without_optimizer(graph.tf_graph, unused, all_boundaries, trained)
    if written:
        groups.append(BoundaryGroup("writes", tuple(by_identity[name] for name in written)))
    groups = _without_repetition(groups)
    for group in groups:
        control_flow_context(group)
    return groups


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


def make_plan(name: str, graph: Graph, groups: Sequence[BoundaryGroup], config: Config, cluster: Cluster) -> Plan:
    """The plan for `graph`, of which the `refuse_` functions have refused nothing.

    Args:
      name: prefix of communicator names, the same in every process.
      graph: the annotated model.
      groups: what `find_groups` found.
      config: the configuration.
      cluster: the devices.

    Raises:
      PlanError: a gradient that cannot be aggregated.
    """
    return Plan(
        name=name,
        workers=cluster.worker_num,
        devices_per_worker=cluster.gpu_num_per_worker,
        device_type=cluster.device_type,
        strategy=str(graph.taskgraphs[0].strategy),
        reduce_method=config.communication.gradients_reduce_method,
        fp16_scale=config.communication.fp16_scale if config.communication.fp16 else None,
        groups=tuple(_plan_group(name, group, config) for group in groups),
        outputs=tuple(_plan_outputs(name, graph)),
    )


def _plan_group(plan_name: str, group: BoundaryGroup, config: Config) -> GradientGroup:
    reductions = tuple(_reduction(variable, gradient) for variable, gradient in group.boundaries)
    ready = [_readiness(gradient) for _, gradient in group.boundaries]
    dense = [i for i, reduction in enumerate(reductions) if not reduction.sparse]
    plan = fusion.plan_buckets(
        [_bytes(reductions[i]) for i in dense],
        [reductions[i].dtype for i in dense],
        sorted(range(len(dense)), key=lambda position: (ready[dense[position]], position)),
        config.communication.max_splits,
    )
    moved = [tuple(dense[i] for i in bucket.tensors) for bucket in plan.buckets]
    moved += [(i,) for i, reduction in enumerate(reductions) if reduction.sparse]
    moved.sort(key=lambda members: (max(ready[i] for i in members), members))
    used = max(1, min(config.communication.num_communicators, len(moved)))
    prefix = "{}/{}".format(plan_name, group.name)
    transfers = tuple(
        Transfer("{}/{}".format(prefix, k % used), "{}/gradients{}".format(group.name, k), members)
        for k, members in enumerate(moved)
    )
    return GradientGroup(group.name, reductions, transfers)


def _plan_outputs(plan_name: str, graph: Graph) -> List[Output]:
    outputs: List[Output] = []
    for key, scope, merge in _OUTPUT_KEYS:
        for tensor in graph.get_collection(key):
            communicator = "{}/outputs{}".format(plan_name, len(outputs)) if scope == "global" else ""
            outputs.append(Output(tensor.name, scope, merge, communicator))
    collected = {output.tensor for output in outputs}
    for call in graph.gradient_calls:
        for y in call.ys:
            # The objective: a mean over the samples, so its value over all local replicas is the mean of theirs.
            in_branch = tf_compat.control_flow_context_of(y.op) is not None
            is_scalar = y.shape.ndims == 0 and y.dtype.is_floating
            if y.name not in collected and is_scalar and call.boundaries and not in_branch:
                outputs.append(Output(y.name, "local", "mean", ""))
                collected.add(y.name)
    return outputs


def _reduction(variable: str, gradient: Gradient) -> Reduction:
    sparse = isinstance(gradient, tf.IndexedSlices)
    value = gradient.values if sparse else gradient
    if not value.dtype.is_floating:
        raise PlanError(
            "The gradient of variable {!r} has dtype {}: only floating gradients can be averaged over replicas.".format(
                variable, value.dtype.name
            )
        )
    shape = None if value.shape.ndims is None else tuple(value.shape.as_list())
    return Reduction(variable, value.dtype.name, shape, sparse)


def _bytes(reduction: Reduction) -> Optional[int]:
    if reduction.shape is None or None in reduction.shape:
        return None
    elements = 1
    for size in reduction.shape:
        elements *= size or 0
    return elements * tf.as_dtype(reduction.dtype).size


def _readiness(boundary: Gradient) -> int:
    """Creation number of the op that computes a gradient: backward ops are created in the order in which they run."""
    op = first_tensor(boundary).op
    while op.type == "Identity":
        op = op.inputs[0].op
    return tf_compat.op_id(op)


def _upstream_boundaries(ops: Sequence[tf.Operation], boundaries: Dict[str, Any], first_id: int) -> List[str]:
    """The boundaries of tf.gradients that `ops` are computed from; nothing older than `first_id` can be one."""
    found = []
    seen: Set[Any] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op in seen or tf_compat.op_id(op) < first_id:
            continue
        seen.add(op)
        if op.name in boundaries:
            found.append(op.name)
        else:
            stack.extend(tensor.op for tensor in op.inputs)
    return found


def _written_without_optimizer(
    tf_graph: tf.Graph, names: Sequence[str], boundaries: Sequence[str], trained: FrozenSet[str]
) -> List[str]:
    """Which of the boundaries `names` the user writes into variables other than through another boundary.

    A gradient that goes into an accumulator from which an optimizer is fed later is aggregated there, not here.
    """
    if not names:
        return []
    view = GraphView(tf_graph)
    stop = {view.index[name] for name in boundaries}
    written = []
    for name in names:
        start = view.index[name]
        reached = view.descendants([start], stop=(stop - {start}).__contains__)
        variables = {v for node in reached if view.types[node] in op_types.WRITES for v in view.variable_inputs(node)}
        if any(view.nodes[v].name in trained for v in variables) or (
            variables and not view.descendants(variables) & (stop - {start})
        ):
            written.append(name)
    return written


def _without_repetition(groups: Sequence[BoundaryGroup]) -> List[BoundaryGroup]:
    """Each boundary once, in the first group that names it; groups without any are left out."""
    seen: Set[Any] = set()
    result: List[BoundaryGroup] = []
    for group in groups:
        kept = []
        for boundary in group.boundaries:
            name = first_tensor(boundary[1]).op.name
            if name not in seen:
                seen.add(name)
                kept.append(boundary)
        if kept:
            result.append(BoundaryGroup(group.name, tuple(kept)))
    return result
