"""Refuses ops that a script builds after the first run, and that would compute with the shard of one rank."""

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.sharded_variables.variables import only_saves
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils import tf_compat
from epl.utils.errors import PlanError


def refuse_late_users(graph: Graph, registry: ShardedVariables, after: int) -> None:
    """Refuses ops of the script that have a number above `after`.

    The script may fetch a variable, ask for its state, assign to it and save it.

    Raises:
      PlanError: an op computes with a shard.
    """
    added = () if graph.rewritten is None else graph.rewritten.added
    for op in tf_compat.ops_since(graph.tf_graph, after):
        if op in graph.own_ops or op.name in added or op.type in op_types.STATE_QUERIES or only_saves(op):
            continue
        for position, tensor in enumerate(op.inputs):
            name = registry.shard_read(tensor)
            is_variable = name is not None and tensor.op.name == name
            is_fine = op.type in op_types.READS or (op.type in op_types.PLAIN_ASSIGNS and position == 0)
            if name is not None and not (is_variable and is_fine):
                info = registry.variables[name]
                refuse_late(op, info.full_name, info.owner)


def refuse_late(op: tf.Operation, variable: str, setting: str) -> None:
    """Raises PlanError for an op that uses a variable and was built after the first run."""
    raise PlanError(
        "{!r} ({}) takes {!r} and was built after the first Session.run. With {} each device has a part of it: build "
        "what computes with it before the first run, fetch the variable, or assign it a whole value.".format(
            op.name, op.type, variable, setting
        )
    )
