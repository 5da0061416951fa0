"""Makes the plan from the annotated model, the configuration and the cluster; refuses what cannot be done.

Nothing of the graph is changed here.
"""

import logging
from typing import Any, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.ir import op_types
from epl.ir.gradient_boundary import readiness
from epl.ir.graph import Gradient, Graph, GraphKeys
from epl.ops import bucketing as fusion
from epl.parallel.plan.gradient_groups import BoundaryGroup, find_trained_by_hand
from epl.parallel.plan.plan import BatchPart, GradientGroup, Output, Plan, Reduction, Stage, Transfer
from epl.parallel.plan.schedule import to_text
from epl.parallel.plan.schedule_generators import generate
from epl.parallel.plan.stages import device_of_stage, stage_of_op
from epl.utils import tf_compat
from epl.utils.errors import NotAvailableError, PlanError

logger = logging.getLogger("epl")

_OUTPUT_KEYS = (
    (GraphKeys.GLOBAL_CONCAT_OBJECTS, "global", "concat"),
    (GraphKeys.GLOBAL_MEAN_OBJECTS, "global", "mean"),
    (GraphKeys.GLOBAL_SUM_OBJECTS, "global", "sum"),
    (GraphKeys.LOCAL_CONCAT_OBJECTS, "local", "concat"),
    (GraphKeys.LOCAL_MEAN_OBJECTS, "local", "mean"),
    (GraphKeys.LOCAL_SUM_OBJECTS, "local", "sum"),
)


def refuse_contradictions(config: Config) -> None:
    """Raises PlanError for settings that contradict each other."""
    if config.pipeline.num_stages > 1 and not config.auto.auto_parallel:
        raise PlanError(
            "pipeline.num_stages is {} and auto.auto_parallel is off: the number of stages is that of the annotations "
            "then. Set auto.auto_parallel to True, or leave pipeline.num_stages out.".format(config.pipeline.num_stages)
        )
    recomputation = config.gradient_checkpoint
    if recomputation.memory_budget and recomputation.type != "auto":
        raise PlanError(
            "gradient_checkpoint.memory_budget is {} and gradient_checkpoint.type is {!r}: a budget decides what is "
            'recomputed where it is chosen automatically. Set gradient_checkpoint.type to "auto", or leave the budget '
            "out.".format(recomputation.memory_budget, recomputation.type)
        )


def refuse_taskgraphs(graph: Graph, cluster: Cluster) -> None:
    """Raises NotAvailableError for a split that nothing has lowered."""
    total_devices = cluster.total_gpu_num
    for taskgraph in graph.taskgraphs:
        strategy = taskgraph.strategy
        if strategy.name_of_kind == "split":
            if graph.split is None and (strategy.device_count or total_devices) > 1 and total_devices > 1:
                raise NotAvailableError("epl.split", "{} cannot be lowered without tf.gradients yet.".format(strategy))


def refuse_foreign_synchronisation(tf_graph: tf.Graph) -> None:
    """Raises PlanError for ops that synchronise gradients by other means."""
    for op in tf_graph.get_operations():
        if op.type in op_types.FOREIGN_SYNCHRONISATION:
            raise PlanError(
                "{!r} ({}) synchronises gradients by itself. Remove tf.train.SyncReplicasOptimizer or the distribution "
                "strategy: EPL aggregates the gradients.".format(op.name, op.type)
            )


def warn_of_precision(graph: Graph, config: Config) -> None:
    """Warns where `amp.level` means nothing."""
    if config.amp.level and not graph.twins:
        logger.warning(
            "amp.level is %r and has no effect: %s.",
            config.amp.level,
            "no op of the model computes in half precision"
            if graph.gradient_calls
            else "tf.gradients was not called for variables of the model",
        )


def refuse_unskipped(graph: Graph, config: Config) -> None:
    """Raises PlanError for updates that a dynamic loss scale cannot skip: EPL sees those of optimizers.

    Beside an optimizer what the script writes may be taken back, as in adversarial training.
    """
    if not graph.twins or config.amp.loss_scale != "dynamic" or graph.apply_calls:
        return
    by_hand = find_trained_by_hand(graph)
    if by_hand:
        raise PlanError(
            "amp.loss_scale is 'dynamic', and the gradient of {} is written into a variable without apply_gradients "
            "({} in all): a step whose gradients overflow could not be skipped. Apply the gradients by an optimizer, "
            "or set amp.loss_scale to a number.".format(by_hand[0], len(by_hand))
        )


def refuse_accumulation(graph: Graph, stages: Sequence[Stage], groups: Sequence[BoundaryGroup], config: Config) -> None:
    """Raises PlanError where `pipeline.num_micro_batch` could not mean what it says; warns where it means nothing."""
    count = config.pipeline.num_micro_batch
    if count == 1:
        return
    if graph.apply_calls and bool(graph.accumulations) != (len(stages) == 1):
        raise PlanError(
            "pipeline.num_micro_batch is {}, and the model has {} stage(s), not as when apply_gradients was called: "
            "with one stage gradients are accumulated over runs, with several a run is a pipeline. Annotate the whole "
            "model before tf.gradients and apply_gradients.".format(count, len(stages))
        )
    if len(stages) > 1:
        return
    written = sorted(variable for group in groups if group.name == "writes" for variable, _ in group.boundaries)
    if written:
        raise PlanError(
            "pipeline.num_micro_batch is {}, and the gradient of {} is written to a variable without an optimizer. It "
            "would be so in every run, not once in {}. Apply it with apply_gradients of an optimizer, or set the "
            "key to 1.".format(count, ", ".join(written), count)
        )
    if not graph.apply_calls:
        logger.warning(
            "pipeline.num_micro_batch is %d and has no effect: no gradient goes into apply_gradients of an optimizer.",
            count,
        )


def make_plan(
    name: str,
    graph: Graph,
    stages: Tuple[Stage, ...],
    owners: Tuple[int, ...],
    batch_parts: Tuple[BatchPart, ...],
    groups: Sequence[BoundaryGroup],
    config: Config,
    cluster: Cluster,
) -> Plan:
    """The plan for `graph`, of which the `refuse_` functions have refused nothing.

    Args:
      name: prefix of communicator names, the same in every process.
      graph: the annotated model.
      stages, owners: what `plan_stages` found.
      batch_parts: what `plan_batch_parts` found.
      groups: what `find_groups` found.
      config: the configuration.
      cluster: the devices.

    Raises:
      PlanError: a gradient that cannot be aggregated.
    """
    is_pipeline = len(stages) > 1
    micro_batches = config.pipeline.num_micro_batch if is_pipeline else 1
    schedule = generate(config.pipeline.strategy, device_of_stage(stages), micro_batches) if is_pipeline else None
    return Plan(
        name=name,
        workers=cluster.worker_num,
        device_type=cluster.device_type,
        stages=stages,
        owners=owners,
        batch_parts=batch_parts,
        split_groups=() if graph.split is None else graph.split.groups,
        split_ratios=() if graph.split is None else graph.split.ratios,
        num_micro_batch=micro_batches,
        schedule="" if schedule is None else to_text(schedule),
        reduce_method=config.communication.gradients_reduce_method,
        fp16_scale=config.communication.fp16_scale if config.communication.fp16 else None,
        precision="{}, loss scale {}".format(config.amp.dtype, config.amp.loss_scale) if config.amp.level else "",
        zero="" if graph.zero is None else graph.zero.report(),
        apply_groups=config.optimizer.num_apply_group,
        recomputed=(),  # decided on the graph, when the rest is known
        offloaded=(),  # so is this
        groups=tuple(_plan_group(name, group, config, graph) for group in groups),
        outputs=tuple(_plan_outputs(name, graph, stages)),
    )


def _plan_group(plan_name: str, group: BoundaryGroup, config: Config, graph: Graph) -> GradientGroup:
    reductions = tuple(_reduction(variable, gradient) for variable, gradient in group.boundaries)
    if group.of_parts:
        reductions = tuple(
            _of_any_rank(graph.split.held.get(reduction.variable), reduction) for reduction in reductions
        )
    if group.of_parts and len(graph.split.groups) == 1:
        return GradientGroup(group.name, group.stage, group.of_parts, reductions, ())
    ready = [readiness(gradient) for _, gradient in group.boundaries]
    dense = [i for i, reduction in enumerate(reductions) if not reduction.sparse]
    scattered = {i for i in dense if graph.zero is not None and graph.zero.scatters(group.boundaries[i][1])}
    plan = fusion.plan_buckets(
        [_bytes(reductions[i]) for i in dense],
        [reductions[i].dtype + (" in parts" if i in scattered else "") for i in dense],
        sorted(range(len(dense)), key=lambda position: (ready[dense[position]], position)),
        config.communication.max_splits,
    )
    moved = [tuple(dense[i] for i in bucket.tensors) for bucket in plan.buckets]
    moved += [(i,) for i, reduction in enumerate(reductions) if reduction.sparse]
    moved.sort(key=lambda members: (max(ready[i] for i in members), members))
    used = max(1, min(config.communication.num_communicators, len(moved)))
    prefix = "{}/{}".format(plan_name, group.name)
    transfers = tuple(
        Transfer(
            "{}/{}".format(prefix, k % used), "{}/gradients{}".format(group.name, k), members, members[0] in scattered
        )
        for k, members in enumerate(moved)
    )
    return GradientGroup(group.name, group.stage, group.of_parts, reductions, transfers)


def _plan_outputs(plan_name: str, graph: Graph, stages: Sequence[Stage]) -> List[Output]:
    outputs: List[Output] = []
    for key, scope, merge in _OUTPUT_KEYS:
        for tensor in graph.get_collection(key):
            tensor = graph.shown(tensor if graph.split is None else graph.split.output(tensor))
            communicator = "{}/outputs{}".format(plan_name, len(outputs)) if scope == "global" else ""
            outputs.append(Output(tensor.name, stage_of_op(tensor.op, stages), scope, merge, communicator))
    collected = {output.tensor for output in outputs}
    for call in graph.gradient_calls:
        for y in call.ys:
            # The objective: a mean over the samples, so its value over all local replicas is the mean of theirs.
            in_branch = tf_compat.control_flow_context_of(y.op) is not None
            is_scalar = y.shape.ndims == 0 and y.dtype.is_floating
            if y.name not in collected and is_scalar and call.boundaries and not in_branch:
                outputs.append(Output(y.name, stage_of_op(y.op, stages), "local", "mean", ""))
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


def _of_any_rank(held: Any, reduction: Reduction) -> Reduction:
    """The gradient of the largest part of a variable, or of what is no part: the plan is the same for all ranks."""
    if held is None:
        return reduction
    shape = list(held.full_shape)
    shape[held.layout.dim] = max(held.layout.sizes)
    return reduction._replace(shape=tuple([None] + shape[1:] if reduction.sparse else shape))


def _bytes(reduction: Reduction) -> Optional[int]:
    if reduction.shape is None or None in reduction.shape:
        return None
    elements = 1
    for size in reduction.shape:
        elements *= size or 0
    return elements * tf.as_dtype(reduction.dtype).size
