"""Makes the plan from the annotated model, the configuration and the cluster; refuses gradients it cannot aggregate.

It does not change the graph.
"""

import logging
from typing import List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.ir.gradient import Boundary, Gradient
from epl.ir.gradient_boundary import readiness
from epl.ir.graph import Graph, GraphKeys, first_tensor
from epl.ops import bucketing
from epl.parallel.plan.gradient_groups import BoundaryGroup
from epl.parallel.plan.plan import BatchPart, GradientGroup, Output, Plan, Reduction, Stage, Transfer
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.scattered_gradients import ScatteredGradients
from epl.parallel.plan.schedule import to_text
from epl.parallel.plan.schedule_generators import generate
from epl.parallel.plan.stages import device_of_stage, stage_of_op
from epl.parallel.sharding.sharded_variables import ShardedVariables, ShardInfo
from epl.utils import tf_compat
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")

_OUTPUT_KEYS = (
    (GraphKeys.GLOBAL_CONCAT_OBJECTS, "global", "concat"),
    (GraphKeys.GLOBAL_MEAN_OBJECTS, "global", "mean"),
    (GraphKeys.GLOBAL_SUM_OBJECTS, "global", "sum"),
    (GraphKeys.LOCAL_CONCAT_OBJECTS, "local", "concat"),
    (GraphKeys.LOCAL_MEAN_OBJECTS, "local", "mean"),
    (GraphKeys.LOCAL_SUM_OBJECTS, "local", "sum"),
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
    row_shares: Tuple[int, ...] = (),
) -> Plan:
    """The plan for `graph`, after all `refuse_` functions have accepted it.

    Args:
      name: prefix of communicator names, the same in every process.
      graph: the annotated model.
      stages, owners: the results of `plan_stages`.
      batch_parts: the result of `plan_batch_parts`.
      groups: the result of `find_groups`.
      config: the configuration.
      cluster: the devices.
      row_shares: the result of `plan_row_shares`.

    Raises:
      PlanError: a gradient that cannot be aggregated.
    """
    is_pipeline = len(stages) > 1
    micro_batches = config.pipeline.num_micro_batch if is_pipeline else 1
    schedule = generate(config.pipeline.strategy, device_of_stage(stages), micro_batches) if is_pipeline else None
    has_no_order = cluster.device_type == "GPU" or not tf_compat.CPU_ADDS_ROWS_IN_ORDER
    wanted = config.communication.ordered_sparse_sums
    in_order = wanted == "on" or (wanted == "auto" and has_no_order)
    planned = tuple(_plan_group(name, group, config, graph, in_order) for group in groups)
    if has_no_order and len(owners) > 1:
        _tell_of_drift(planned, in_order)
    return Plan(
        name=name,
        workers=cluster.worker_num,
        device_type=cluster.device_type,
        stages=stages,
        owners=owners,
        row_shares=row_shares,
        batch_rows=(),  # filled when the input pipeline was read
        batch_parts=batch_parts,
        num_micro_batch=micro_batches,
        schedule="" if schedule is None else to_text(schedule),
        reduce_method=config.communication.gradients_reduce_method,
        fp16_scale=config.communication.fp16_scale if config.communication.fp16 else None,
        features=(),  # filled when the rest is known
        groups=planned,
        outputs=tuple(_plan_outputs(name, graph, stages)),
    )


def _plan_group(plan_name: str, group: BoundaryGroup, config: Config, graph: Graph, in_order: bool) -> GradientGroup:
    reductions = tuple(_reduction(graph, one, in_order) for one in group.boundaries)
    if group.of_shards:
        sharded = graph.state_of(ShardedVariables)
        variables = {} if sharded is None else sharded.variables
        reductions = tuple(_of_any_rank(variables.get(one.variable), one) for one in reductions)
    ranks = replica_groups(graph)
    if group.of_shards and ranks is not None and len(ranks.groups) == 1:
        return GradientGroup(group.name, group.stage, group.of_shards, reductions, ())
    ready = [readiness(gradient) for _, gradient in group.boundaries]
    dense = [i for i, reduction in enumerate(reductions) if not reduction.sparse]
    shards = graph.state_of(ScatteredGradients)
    scattered = {i for i in dense if shards is not None and shards.scatters(group.boundaries[i][1])}
    plan = bucketing.plan_buckets(
        [_bytes(reductions[i]) for i in dense],
        [reductions[i].dtype + (" in parts" if i in scattered else "") for i in dense],
        sorted(range(len(dense)), key=lambda position: (ready[dense[position]], position)),
        config.communication.max_splits,
    )
    moved = [tuple(dense[i] for i in bucket.tensors) for bucket in plan.buckets]
    moved += [(i,) for i, reduction in enumerate(reductions) if reduction.sparse]
    moved.sort(key=lambda members: (max(ready[i] for i in members), members))
    used = max(1, min(config.communication.num_communicators, len(moved)))
    prefix = f"{plan_name}/{group.name}"
    transfers = tuple(
        Transfer("{}/{}".format(prefix, k % used), f"{group.name}/gradients{k}", members, members[0] in scattered)
        for k, members in enumerate(moved)
    )
    return GradientGroup(group.name, group.stage, group.of_shards, reductions, transfers)


def _plan_outputs(plan_name: str, graph: Graph, stages: Sequence[Stage]) -> List[Output]:
    outputs: List[Output] = []
    ranks = replica_groups(graph)
    for key, scope, merge in _OUTPUT_KEYS:
        for tensor in graph.get_collection(key):
            tensor = graph.restored(tensor if ranks is None else ranks.output(tensor))
            communicator = f"{plan_name}/outputs{len(outputs)}" if scope == "global" else ""
            outputs.append(Output(tensor.name, stage_of_op(tensor.op, stages), scope, merge, communicator))
    collected = {output.tensor for output in outputs}
    for call in graph.gradient_calls:
        for y in call.ys:
            # The objective is a mean over the samples, so the local replicas' values are merged by their mean.
            in_branch = tf_compat.control_flow_context_of(y.op) is not None
            is_scalar = y.shape.ndims == 0 and y.dtype.is_floating
            if y.name not in collected and is_scalar and call.boundaries and not in_branch:
                outputs.append(Output(y.name, stage_of_op(y.op, stages), "local", "mean", ""))
                collected.add(y.name)
    return outputs


def _tell_of_drift(groups: Sequence[GradientGroup], in_order: bool) -> None:
    variables = [one.variable for group in groups for one in group.reductions if one.sparse and not one.ordered]
    if variables:
        logger.warning(
            "Rows of sparse gradients that have one index are added up in any order here, so that the replicas of %s "
            "differ in their last bits after some steps. %s",
            ", ".join(variables),
            "They stay as they are because other ops than the optimizer take these gradients: leave out "
            "communication.clip_after_allreduce, or set communication.sparse_as_dense."
            if in_order
            else 'communication.ordered_sparse_sums is "off"; "on" keeps the replicas equal.',
        )


def _only_applied(graph: Graph, gradient: Gradient) -> bool:
    """Whether optimizers alone take this gradient: they add up rows that have one index, but TensorFlow's norm of a
    gradient, for example, counts each of them.

    A mean over micro steps that the script changes before it is applied leaves the branch of the last micro step.
    """
    applied = {first_tensor(one).op.name for call in graph.apply_calls for _, one in call.boundaries}
    own = first_tensor(gradient)
    if own.op.name in applied:
        return all(op.type != "Merge" for op in own.consumers())
    return all(op.name in applied for op in own.consumers())


def _reduction(graph: Graph, boundary: Boundary, in_order: bool) -> Reduction:
    variable, gradient = boundary
    sparse = isinstance(gradient, tf.IndexedSlices)
    value = first_tensor(gradient)
    if not value.dtype.is_floating:
        raise PlanError(
            "The gradient of variable {!r} has dtype {}: only floating gradients can be averaged over replicas.".format(
                variable, value.dtype.name
            )
        )
    shape = None if value.shape.ndims is None else tuple(value.shape.as_list())
    return Reduction(variable, value.dtype.name, shape, sparse, sparse and in_order and _only_applied(graph, gradient))


def _of_any_rank(shard: Optional[ShardInfo], reduction: Reduction) -> Reduction:
    """The gradient with the shape of the variable's largest shard, so that the plan is the same for all ranks."""
    if shard is None:
        return reduction
    shape: List[Optional[int]] = list(shard.full_shape)
    shape[shard.placement.dim] = max(shard.placement.sizes or ())
    return reduction._replace(shape=tuple([None] + shape[1:] if reduction.sparse else shape))


def _bytes(reduction: Reduction) -> Optional[int]:
    if reduction.shape is None or None in reduction.shape:
        return None
    elements = 1
    for size in reduction.shape:
        elements *= size or 0
    return elements * tf.as_dtype(reduction.dtype).size
