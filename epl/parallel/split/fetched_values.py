"""What a run gives for a tensor that is computed in a split, or with the gradients of its shards."""

from typing import Union

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel.sharded_variables.computed_parts import ComputedParts
from epl.parallel.sharded_variables.fetching import late_ops
from epl.parallel.sharding.group_communicators import GroupCommunicators
from epl.parallel.sharding.placements import REPLICATED, Placement, shard
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.shard_owner import ShardedTensor
from epl.parallel.split.batch_dims import batch_placement
from epl.parallel.split.program import Program, Value


def result_value(
    graph: Graph, program: Program, value: Value, local: tf.Tensor, placement: Placement
) -> Union[tf.Tensor, ShardedTensor]:
    """What has the value of a tensor that the split computes.

    Args:
      graph: of the split.
      program: of the split.
      value: of the user's tensor.
      local: what a rank has in its place.
      placement: of `local`.
    """
    if placement == batch_placement(value.info):
        return local
    tf_graph = graph.tf_graph

    def local_rows(resharder: Resharder, prefix: str, full: tf.Tensor) -> tf.Tensor:
        """The rows of the batch of a rank."""
        assert value.info.batch is not None
        entry = program.values[value.rows_of]
        full.set_shape([None] * len(value.info.shape or ()))  # what tf.Tensor.set_shape has said is not copied
        rows = resharder.row_counts(tf_graph.get_tensor_by_name(prefix + entry.tensor.name), entry.info.batch or 0)
        size = tf.shape(full, out_type=tf.int64)[value.info.batch]
        rows = rows * size // tf.maximum(resharder.total_rows(rows), 1)
        return resharder.cut(full, shard(value.info.batch), rows)

    return ShardedTensor(
        lambda prefix: tf_graph.get_tensor_by_name(prefix + local.name),
        placement,
        local.op.name,
        None if value.info.batch is None else local_rows,
    )


def computed_value(
    graph: Graph, computed: ComputedParts, group: GroupCommunicators, tensor: tf.Tensor
) -> Union[None, tf.Tensor, ShardedTensor]:
    """What has the value of a tensor that is computed with gradients of shards; None for another tensor."""
    tf_graph, rewrite = graph.tf_graph, graph.rewritten
    placement = computed.placement(tensor)
    if placement == REPLICATED:
        with late_ops(graph):
            full = computed.full_shape(tensor)
        return None if full is tensor else full
    assert rewrite is not None  # a run asks
    first_rows = {
        rewrite.prefix(copy): computed.first_row(tensor, group.place(group.rank + copy).rank)
        for copy in range(rewrite.local_replicas)
    }

    def local(prefix: str) -> tf.Tensor:
        part = tf_graph.get_tensor_by_name(prefix + tensor.name)
        return part + first_rows[prefix] if first_rows[prefix] else part

    return ShardedTensor(local, placement, tensor.op.name)
