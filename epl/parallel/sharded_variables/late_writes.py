"""Whole values that a script writes into sharded variables after the first run, as one that loads weights late does.

    v.assign(value)        value [10, 8] --+-- rows 0:5 --> "EPL_SPLIT/v"                  ranks of this process
                                           +-- rows 5:10 -> "EPL_REPLICA_1/EPL_SPLIT/v"
                                           `-- value, once all are written ------------->  what the script gets

The copies of the graph for the other ranks exist by then, so each rank's write is built here. Every process writes the
shards of its own ranks, as it does when it restores a checkpoint.
"""

from typing import Any

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.sharded_variables.initial_values import local_slice
from epl.parallel.sharding.resharding import hidden
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils.errors import PlanError


def write_whole(graph: Graph, shard: str, value: Any) -> tf.Tensor:
    """Builds the write of a whole value into all shards that this process holds.

    Args:
      graph: a graph that was rewritten.
      shard: name of the variable op of the first rank's shard.
      value: of the full variable.

    Returns:
      The value; a run that needs it has written the shards.

    Raises:
      PlanError: the value has another shape than the full variable.
    """
    rewrite, registry = graph.rewritten, graph.state_of(ShardedVariables)
    assert rewrite is not None and registry is not None
    info, group = registry.variables[shard], registry.owner_of(shard).group
    operation = graph.tf_graph.get_operation_by_name
    value = tf.convert_to_tensor(value, operation(shard).get_attr("dtype"))
    if not value.shape.is_compatible_with(info.full_shape):
        raise PlanError(
            "A value of the shape {} is assigned to {!r} after the first Session.run. Each of {} devices has a part of "
            "this variable ({}), and the value of the whole variable has the shape {}. Assign that.".format(
                value.shape, info.full_name, group.resharder.ranks, info.owner, list(info.full_shape)
            )
        )
    whole = tf.ensure_shape(value, info.full_shape)
    written = []
    for copy in range(rewrite.local_replicas):
        begin, size = local_slice(info.full_shape, info.placement, group.place(group.rank + copy).rank)
        variable = operation(rewrite.prefix(copy) + shard)
        with tf.device(variable.device):
            # A part of what is fed lies in the array of the caller. A resource variable would take it over, and
            # training change the array.
            part = tf.raw_ops.DeepCopy(x=tf.slice(whole, begin, size))
            # The static shape of an empty shard is another one.
            written.append(build_assign(variable, hidden(part, info.placement.dim)))
    with tf.control_dependencies(written):
        return tf.identity(whole)


def build_assign(variable: tf.Operation, value: tf.Tensor) -> tf.Operation:
    """An op that writes a value into a variable, on its device."""
    with tf.device(variable.device):
        if variable.type in op_types.REF_VARIABLES:
            return tf.raw_ops.Assign(ref=variable.outputs[0], value=value, use_locking=True).op
        return tf.raw_ops.AssignVariableOp(resource=variable.outputs[0], value=tf.identity(value))
