"""`debug.check_replicas`: which variables all replicas must hold with equal bits, and the tensors that show them.

    gradients of each replica --> all-reduce --> update of w        w is equal on all replicas
    rows of each replica -------> mean --------> moving average     each replica has its own: left out

epl.runtime.replica_check reads and compares them.
"""

from typing import Dict, List, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import batch_sources, data_descendants
from epl.ir.view import GraphView
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat
from epl.utils.errors import PlanError


class ReplicaValues:
    """What is compared: `Graph.state_of`.

    Attributes:
      tensors: name of a variable -> names of the tensors with its value, by local replica.
    """

    def __init__(self) -> None:
        self.tensors: Dict[str, List[str]] = {}


def run(rewrite: RewriteContext) -> None:
    """Keeps the `ReplicaValues` of the graph; adds the reads of resource variables."""
    if not rewrite.config.debug.check_replicas or rewrite.world_size == 1:
        return
    if rewrite.spans_processes:
        raise PlanError(
            "debug.check_replicas is set, and the stages of a replica are in several processes: a process sees only "
            "some of its variables. Leave the key out; or give each worker as many devices as there are stages."
        )
    view = rewrite.view
    assert view is not None
    own = _of_each_replica(rewrite, view)
    found = rewrite.graph.keep(ReplicaValues, ReplicaValues())
    for sync in rewrite.syncs:
        node = view.index[sync.variable]
        dtype = tf.as_dtype(view.nodes[node].attr["dtype"].type)
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool
        if sync.is_global and is_number and node in rewrite.cloned and node not in own:
            if sync.variable not in rewrite.held:
                found.tensors[sync.variable] = _values(rewrite, view, node)


def _of_each_replica(rewrite: RewriteContext, view: GraphView) -> Set[int]:
    """The variables that a step writes from what a replica alone has: its rows, its random numbers."""
    collectives = {view.index[name] for name in rewrite.collectives}
    stateful = {one for one in set(view.types) if tf_compat.is_stateful(rewrite.tf_graph, one)}
    sources = batch_sources(view, stateful - {view.types[node] for node in collectives})
    variables: Set[int] = set()
    while True:
        moving = data_descendants(view, sources | variables, collectives)
        written = {variable for write in moving & rewrite.writes for variable in view.variable_inputs(write)}
        if written <= variables:
            return variables
        variables |= written


def _values(rewrite: RewriteContext, view: GraphView, node: int) -> List[str]:
    values = []
    for replica in range(rewrite.local_replicas):
        variable = rewrite.operation(rewrite.prefix(replica) + view.nodes[node].name)
        if variable.type in op_types.REF_VARIABLES:
            values.append(variable.outputs[0].name)
            continue
        with rewrite.building("replica_values"), tf.device(variable.device or None):
            dtype = tf.as_dtype(variable.get_attr("dtype"))
            values.append(tf.raw_ops.ReadVariableOp(resource=variable.outputs[0], dtype=dtype).name)
    return values


PASS = Pass(
    "check_replicas",
    run,
    "debug.check_replicas",
    requires=names("cloned collectives syncs writes"),
    after=names("clone_replicas"),
)
