"""The ops that make variables equal on all replicas: rank 0's values to every process, replica 0's to the local ones.

    rank 0: v ---+                                    broadcast: once per session, before the first training step,
                 +--> EplBroadcast --> assign v       and after an initializer or a restore ran again
    others: -----+        |
                          +--> copy --> EPL_REPLICA_1/v, EPL_REPLICA_2/v, ...

This module only builds them; epl.runtime.session runs them.
"""

from typing import List

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.ops.communicator import Communicator
from epl.parallel.plan.communicators import PARTS
from epl.parallel.plan.plan import section, split_groups
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.sections import OffloadSection
from epl.parallel.rewriting.context import PLAN_SCOPE, RewriteContext, VariableSync
from epl.parallel.rewriting.pass_manager import Pass, names

_SYNC_SCOPE = PLAN_SCOPE + "/variables/"
# The key that ranks compare: messages contain it when one rank broadcasts variables while another runs a step.
BROADCAST_KEY = "initial values of the variables (first training step of a session, or after an initializer or restore)"


def run_broadcast(rewrite: RewriteContext) -> None:
    """Adds the broadcasts: full variables from rank 0 to replica 0 of every process, shards from the first group."""
    view = rewrite.view
    assert view is not None
    if not rewrite.plan.groups:
        return
    sent = set() if rewrite.earlier is None else {sync.variable for sync in rewrite.earlier.syncs if sync.is_global}
    names = rewrite.global_variables - sent
    variables = [node for node in _variables(rewrite, view) if view.nodes[node].name in names]
    ranks = replica_groups(rewrite.graph)
    parts = [node for node in variables if ranks is not None and ranks.has_shard(view.nodes[node].name)]
    if len(set(rewrite.plan.owners)) > 1 and variables:
        whole = [node for node in variables if view.nodes[node].name not in rewrite.held]
        device = rewrite.host_of(0) if section(rewrite.plan, OffloadSection) is not None else rewrite.device(0)
        with rewrite.building("variables/broadcast"), tf.device(device):
            communicator = rewrite.process_communicator()
            _broadcast(rewrite, view, whole, "", communicator, rewrite.process_rank)
    if parts and len(split_groups(rewrite.plan)) > 1:
        _broadcast_parts(rewrite, view, parts)


def _broadcast_parts(rewrite: RewriteContext, view: GraphView, parts: List[int]) -> None:
    """Adds the broadcast of shards from the ranks of the first group of a split to those of the other groups."""
    holders = rewrite.holders_of_shards(rewrite.plan.name + PARTS)
    for copy in range(rewrite.local_replicas):
        rank = rewrite.base_rank + copy
        with rewrite.building("variables/broadcast_parts"), tf.device(rewrite.device(0, copy)):
            _broadcast(rewrite, view, parts, rewrite.prefix(copy), holders.at(rank), holders.place(rank).rank)


def _broadcast(
    rewrite: RewriteContext, view: GraphView, nodes: List[int], prefix: str, communicator: Communicator, rank: int
) -> None:
    """Adds the broadcast of the variables of one replica, given its prefix; fills `rewrite.broadcasts`."""
    variables = [rewrite.operation(prefix + view.nodes[node].name) for node in nodes]
    values = []
    for variable in variables:
        with tf.device(variable.device or None):
            values.append(_value(variable, rank))
    received = communicator.broadcast(values, rank, BROADCAST_KEY)
    for variable, value in zip(variables, received):
        with tf.device(variable.device or None):
            rewrite.broadcasts.append(_assign(variable, value).name)


def initialization_nodes(rewrite: RewriteContext, view: GraphView) -> List[tf.NodeDef]:
    """NodeDefs that check whether each variable is initialized; fills `rewrite.syncs`."""
    nodes = []
    known = {sync.variable for sync in rewrite.syncs}  # in an earlier rewriting
    for node in _variables(rewrite, view):
        proto = view.nodes[node]
        if proto.name in known:
            continue
        is_ref = view.types[node] in op_types.REF_VARIABLES
        check = tf.NodeDef(
            name=_SYNC_SCOPE + "is_initialized/" + proto.name,
            op="IsVariableInitialized" if is_ref else "VarIsInitializedOp",
            input=[proto.name],
            device=proto.device,
        )
        if is_ref:
            check.attr["dtype"].CopyFrom(proto.attr["dtype"])
        nodes.append(check)
        rewrite.syncs.append(VariableSync(proto.name, check.name, [], proto.name in rewrite.global_variables))
    return nodes


def copy_nodes(rewrite: RewriteContext, view: GraphView, prefixes: List[str]) -> List[tf.NodeDef]:
    """NodeDefs that copy each variable from replica 0 to the others; fills the copies of `rewrite.syncs`."""
    nodes = []
    for sync in rewrite.syncs:
        if sync.copies or view.index[sync.variable] not in rewrite.cloned or sync.variable in rewrite.held:
            continue
        proto = view.nodes[view.index[sync.variable]]
        dtype = proto.attr["dtype"]
        is_ref = proto.op in op_types.REF_VARIABLES
        source = proto.name
        if not is_ref:
            read = tf.NodeDef(name=_SYNC_SCOPE + "read/" + proto.name, op="ReadVariableOp", input=[proto.name])
            read.device = proto.device
            read.attr["dtype"].CopyFrom(dtype)
            nodes.append(read)
            source = read.name
        for prefix in prefixes:
            copy = tf.NodeDef(
                name=_SYNC_SCOPE + "copy/" + prefix + proto.name,
                op="Assign" if is_ref else "AssignVariableOp",
                input=[prefix + proto.name, source],
            )
            copy.attr["T" if is_ref else "dtype"].CopyFrom(dtype)
            copy.attr["_class"].list.s.append(("loc:@" + prefix + proto.name).encode())
            if is_ref:
                copy.attr["validate_shape"].b = False
                copy.attr["use_locking"].b = True
            nodes.append(copy)
            sync.copies.append(copy.name)
    return nodes


def _variables(rewrite: RewriteContext, view: GraphView) -> List[int]:
    """The cloned variables, and those in checkpoints; not accumulated gradients, which differ between replicas."""
    own = rewrite.graph.local_variables
    return [
        node
        for node in view.of_types(op_types.VARIABLES)
        if view.nodes[node].name not in own
        and rewrite.shard_of(view.nodes[node].name)
        == view.nodes[node].name  # a full variable with a shard has no value
        and (node in rewrite.cloned or view.nodes[node].name in rewrite.global_variables)
    ]


def _value(variable: tf.Operation, rank: int) -> tf.Tensor:
    """A rank's input of the broadcast: the value on rank 0, an empty buffer of its shape elsewhere."""
    tensor, dtype = variable.outputs[0], tf.as_dtype(variable.get_attr("dtype"))
    shape = tf.TensorShape(variable.get_attr("shape"))
    if rank and shape.is_fully_defined():
        return tf.raw_ops.Empty(shape=shape.as_list(), dtype=dtype, init=dtype == tf.bool)
    if variable.type in op_types.REF_VARIABLES:
        return tf.identity(tensor)
    return tf.raw_ops.ReadVariableOp(resource=tensor, dtype=dtype)


def _assign(variable: tf.Operation, value: tf.Tensor) -> tf.Operation:
    tensor = variable.outputs[0]
    if variable.type in op_types.REF_VARIABLES:
        return tf.raw_ops.Assign(ref=tensor, value=value, validate_shape=False, use_locking=True).op
    return tf.raw_ops.AssignVariableOp(resource=tensor, value=value)


PASS = Pass(
    "broadcast_variables",
    run_broadcast,
    "replicas",
    provides=names("broadcasts"),
    requires=names("cloned"),
    after=names("clone_replicas"),
)
