"""The ops that make variables equal on all replicas: rank 0's values to every process, replica 0's to the local ones.

    rank 0: v ---+                                    broadcast: once per session, before the first training step,
                 +--> EplBroadcast --> assign v       and after an initializer or a restore ran again
    others: -----+        |
                          +--> copy --> EPL_REPLICA_1/v, EPL_REPLICA_2/v, ...

They are only built here; epl.runtime.session runs them.
"""

from typing import List, Optional

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.parallel.pass_manager import Pass
from epl.parallel.rewrite import PLAN_SCOPE, Rewrite, VariableSync

_SYNC_SCOPE = PLAN_SCOPE + "/variables/"
# The key that ranks compare: it is what a message shows when one rank copies variables and another is in a step.
BROADCAST_KEY = "initial values of the variables (first training step of a session, or after an initializer or restore)"


def run_broadcast(rewrite: Rewrite) -> None:
    """Adds the broadcast of the global variables from rank 0 to replica 0 of every process."""
    view = rewrite.view
    assert view is not None
    if len(set(rewrite.plan.owners)) == 1 or not rewrite.plan.groups:
        return
    variables = [
        node
        for node in _variables(rewrite, view)
        if view.nodes[node].name in rewrite.global_variables and view.nodes[node].name not in rewrite.held
    ]
    with rewrite.building("variables/broadcast"):
        values = []
        for node in variables:
            with tf.device(view.nodes[node].device or None):
                values.append(_value(rewrite, view, node))
        communicator = rewrite.process_communicator()
        received = communicator.broadcast(values, rewrite.process_rank, BROADCAST_KEY)
        for node, value in zip(variables, received):
            with tf.device(view.nodes[node].device or None):
                rewrite.broadcasts.append(_assign(rewrite, view, node, value).name)


def initialization_nodes(rewrite: Rewrite, view: GraphView) -> List[tf.NodeDef]:
    """NodeDefs that tell whether each variable holds a value; fills `rewrite.syncs`."""
    nodes = []
    for node in _variables(rewrite, view):
        proto = view.nodes[node]
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


def copy_nodes(rewrite: Rewrite, view: GraphView, prefixes: List[str]) -> List[tf.NodeDef]:
    """NodeDefs that copy each variable from replica 0 to the others; fills the copies of `rewrite.syncs`."""
    nodes = []
    for sync in rewrite.syncs:
        if view.index[sync.variable] not in rewrite.cloned or sync.variable in rewrite.held:
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


def _variables(rewrite: Rewrite, view: GraphView) -> List[int]:
    """The variables that replicas have copies of, and those that a checkpoint holds; sums of gradients differ."""
    own = frozenset().union(*[accumulation.storage for accumulation in rewrite.graph.accumulations])
    return [
        node
        for node in view.of_types(op_types.VARIABLES)
        if view.nodes[node].name not in own
        and (node in rewrite.cloned or view.nodes[node].name in rewrite.global_variables)
    ]


def _shape(view: GraphView, node: int) -> Optional[List[int]]:
    shape = tf.TensorShape(view.nodes[node].attr["shape"].shape)
    return shape.as_list() if shape.is_fully_defined() else None


def _value(rewrite: Rewrite, view: GraphView, node: int) -> tf.Tensor:
    """What this process gives to the broadcast: the value on worker 0, any buffer of the shape elsewhere."""
    tensor = rewrite.tf_graph.get_operation_by_name(view.nodes[node].name).outputs[0]
    dtype = tf.as_dtype(view.nodes[node].attr["dtype"].type)
    shape = _shape(view, node)
    if rewrite.process_rank and shape is not None:
        return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=dtype == tf.bool)
    if view.types[node] in op_types.REF_VARIABLES:
        return tf.identity(tensor)
    return tf.raw_ops.ReadVariableOp(resource=tensor, dtype=dtype)


def _assign(rewrite: Rewrite, view: GraphView, node: int, value: tf.Tensor) -> tf.Operation:
    tensor = rewrite.tf_graph.get_operation_by_name(view.nodes[node].name).outputs[0]
    if view.types[node] in op_types.REF_VARIABLES:
        return tf.raw_ops.Assign(ref=tensor, value=value, validate_shape=False, use_locking=True).op
    return tf.raw_ops.AssignVariableOp(resource=tensor, value=value)


PASS = Pass("broadcast_variables", run_broadcast, frozenset(["selection"]), frozenset(["broadcast"]), bitwise=True)
