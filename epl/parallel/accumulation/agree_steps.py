"""With gradient accumulation, all replicas are in the same micro step, and each weighs its gradients by its rows.

In every run the gate moves three numbers: the rows of a replica, its position in the training step, and the square of
that. Gradients travel in the last micro step alone.

    rows, position, position^2 --> +-----------+ --> rows of all;  position, or 0 where replicas differ
                                   | allreduce |
                                   +-----------+
    gradient --> x own rows / mean rows --> added up --> ... last micro step: allreduce, each replica with equal weight

Own rows are those of the split group for gradients of parts, which its ranks compute together.

Positions differ after a run that failed on some replicas only. The training step then begins anew on all of them: none
takes the branch of the last micro step, with its collectives, without the others.
"""

from typing import Dict, Optional

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import has_open_rows
from epl.ir.graph import Graph
from epl.ops.communicator import Communicator
from epl.ops.weighing import weighed
from epl.parallel.accumulation.record import AccumulationRecord, accumulations_of
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.stages import stage_of_op
from epl.parallel.rewriting.context import RewriteContext
from epl.utils import tf_compat


def by_boundary(graph: Graph) -> Dict[str, AccumulationRecord]:
    """The accumulations of a graph, by the names of the boundaries after their sums."""
    return {name: one for one in accumulations_of(graph) for name in (*one.boundaries, *one.accumulated)}


def agree(
    rewrite: RewriteContext, communicator: Communicator, name: str, accumulation: AccumulationRecord, weight: tf.Tensor
) -> tf.Operation:
    """Adds the gate of an accumulation and gives its position and its gradients their new sources.

    Args:
      rewrite: the rewriting.
      communicator: of all replicas.
      name: begins the key of the collective.
      accumulation: the record.
      weight: the rows of this replica.

    Returns:
      The gate, which runs in every run, once every replica of the job has its data.
    """
    position = tf.cast(accumulation.position.op.inputs[0], tf.float64)
    own = tf.stack([weight, position, tf.square(position)])
    key = f"{name}/rows and position in {accumulation.steps} micro steps"
    everyone = communicator.all_reduce(own, rewrite.base_rank, key)
    rows, positions, squares = tf.unstack(everyone, 3)
    replicas = float(rewrite.world_size)
    # Equal numbers are those whose squares have the smallest sum.
    agreed = tf.raw_ops.Select(
        condition=tf.equal(replicas * squares, tf.square(positions)), x=positions / replicas, y=tf.zeros_like(rows)
    )
    _give_source(rewrite, accumulation.position, tf.cast(tf.round(agreed), tf.int64))
    if _rows_may_differ(rewrite):
        is_sum = rewrite.plan.reduce_method == "sum" and replica_groups(rewrite.graph) is None
        scale = tf.sign(weight) if is_sum else weight * replicas / rows
        for source in accumulation.sources:
            values = source.values if isinstance(source, tf.IndexedSlices) else source
            factor = _group_scale(rewrite, values, rows) if _is_complete(rewrite, values) else scale
            if factor is None:
                continue
            with tf_compat.control_flow_context(
                rewrite.tf_graph, tf_compat.control_flow_context_of(values.op)
            ), rewrite.tf_graph.colocate_with(values.op, ignore_existing=True):
                own_values = values.op.inputs[0]
                _give_source(rewrite, values, weighed(own_values, factor))
    return everyone.op


def share(rewrite: RewriteContext, ranks: int) -> float:
    """The weight of each of `ranks` in the all-reduce of sums that have their rows' weight already."""
    return 1.0 if rewrite.plan.reduce_method == "sum" else 1.0 / ranks


def _rows_may_differ(rewrite: RewriteContext) -> bool:
    """Whether anything is fed, or read in batches whose size is not built into the graph, the same for all workers."""
    ranks = replica_groups(rewrite.graph)
    if ranks is not None and ranks.resharder.batch_weights is None:
        return False
    several_graphs = rewrite.plan.workers > 1
    return any(
        op.type in op_types.PLACEHOLDERS
        or (
            op.type in op_types.DATA_SOURCES and (several_graphs or any(has_open_rows(tensor) for tensor in op.outputs))
        )
        for op in rewrite.tf_graph.get_operations()
    )


def _is_complete(rewrite: RewriteContext, gradient: tf.Tensor) -> bool:
    """Whether the ranks of a split group have a gradient together."""
    ranks = replica_groups(rewrite.graph)
    return ranks is not None and gradient.op.name in ranks.complete


def _group_scale(rewrite: RewriteContext, gradient: tf.Tensor, rows: tf.Tensor) -> Optional[tf.Tensor]:
    """What such a gradient is multiplied by, given the rows of all; None for the only group."""
    ranks = replica_groups(rewrite.graph)
    assert ranks is not None and ranks.resharder.batch_weights is not None  # else the gradient were not complete
    if len(ranks.groups) == 1:
        return None
    stage = stage_of_op(gradient.op, rewrite.plan.stages)
    return ranks.resharder.batch_weights.of_group_in(stage) * float(len(ranks.groups)) / rows


def _give_source(rewrite: RewriteContext, identity: tf.Tensor, source: tf.Tensor) -> None:
    tf_compat.set_input(rewrite.remember(identity.op), 0, source)
