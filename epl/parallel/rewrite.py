"""The rewriting of one graph: what passes share while it goes on, and what the session needs to know afterwards."""

import contextlib
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.cluster import Cluster
from epl.config import Config
from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR
from epl.ir.view import GraphView
from epl.ops.communicator import Communicator
from epl.parallel.plan import Plan, world_size
from epl.parallel.planner import BoundaryGroup
from epl.utils import tf_compat

# Every op that the passes add stands under one of these names; they are for people, nothing is read from them.
PLAN_SCOPE = "EPL_PLAN"
REPLICA_PREFIX = "EPL_REPLICA_{}/"

VariableSync = NamedTuple(
    "VariableSync", [("variable", str), ("is_initialized", str), ("copies", List[str]), ("is_global", bool)]
)
VariableSync.__doc__ = """How one variable of replica 0 reaches the other replicas of this process; names of ops.

Attributes:
  variable: the variable's op.
  is_initialized: gives whether replica 0 holds a value.
  copies: assignments of that value to the other local replicas.
  is_global: whether the other processes get it too.
"""

Sibling = NamedTuple("Sibling", [("tensor", tf.Tensor), ("op", str)])
Sibling.__doc__ = (
    """A merged output: what a fetch gives, and the collective op of replica 0 that makes it ("" if none)."""
)


class Rewrite(object):
    """State of the rewriting of one graph.

    Attributes:
      graph, tf_graph, plan, config, cluster: what is rewritten, how, for which devices.
      groups: where gradients are aggregated, in the order of `plan.groups`.
      view: the graph after everything was added to replica 0 and before it is cloned.
      cloned: indices in `view` of the ops that every local replica has a copy of.
      writes: those of them that write variables.
      weights: per local replica, the scalar tensor that weighs its samples; fed when feeds are cut unevenly.
      gates: per group, the op that runs once every replica of the job has its data.
      collectives: names of the collective ops of replica 0; `gradient_collectives` those of each group's gradients.
      merged: tensor name -> what is fetched in its place.
      summarized: index in `view` of a summary op that shows a merged value -> name of the tensor that is merged.
      syncs: how variables are made equal; `broadcasts` are the ops that take rank 0's values.
      built: names of the ops that passes created on replica 0.
      user_nodes: the ops of the user that were changed, as they were; `added` the names of the ops that were added.
      foreign_writes: names of ops that write a replicated variable in replica 0 alone (initializers, restore).
    """

    def __init__(
        self, graph: Graph, plan: Plan, groups: Sequence[BoundaryGroup], config: Config, cluster: Cluster
    ) -> None:
        self.graph = graph
        self.tf_graph = graph.tf_graph
        self.plan = plan
        self.groups = list(groups)
        self.config = config
        self.cluster = cluster
        self.communicators: Dict[str, Communicator] = {}
        self.view: Optional[GraphView] = None
        self.cloned: Set[int] = set()
        self.writes: Set[int] = set()
        self.weights: List[tf.Tensor] = []
        self.gates: List[tf.Operation] = []
        self.collectives: Set[str] = set()
        self.gradient_collectives: List[Set[str]] = []
        self.merged: Dict[str, Sibling] = {}
        self.summarized: Dict[int, str] = {}
        self.syncs: List[VariableSync] = []
        self.broadcasts: List[str] = []
        self.built: Set[str] = set()
        self.foreign_writes: Set[str] = set()
        self.user_nodes: Dict[str, tf.NodeDef] = {}
        self.added: FrozenSet[str] = frozenset()
        # Op names of the variables that a checkpoint holds, and of those that are trained.
        keys = (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.TRAINABLE_VARIABLES, tf.GraphKeys.MODEL_VARIABLES)
        self.global_variables = frozenset(v.op.name for key in keys for v in self.tf_graph.get_collection_ref(key))

    @property
    def base_rank(self) -> int:
        """The rank of this process's replica 0."""
        return self.cluster.worker_index * self.plan.devices_per_worker

    @property
    def local_replicas(self) -> int:
        """Replicas in this process."""
        return self.plan.devices_per_worker

    @property
    def world_size(self) -> int:
        """Replicas of the job."""
        return world_size(self.plan)

    def prefix(self, replica: int) -> str:
        """Name prefix of the ops of a local replica; none for replica 0, the user's own graph."""
        return REPLICA_PREFIX.format(replica) if replica else ""

    def communicator(self, name: str) -> Communicator:
        """The communicator of all replicas of that name; blocks until every process has asked for it."""
        return self._open(name, [rank // self.plan.devices_per_worker for rank in range(self.world_size)])

    def process_communicator(self) -> Communicator:
        """The communicator with one rank per process."""
        return self._open(self.plan.name + "/processes", list(range(self.plan.workers)))

    def _open(self, name: str, owners: List[int]) -> Communicator:
        if name not in self.communicators:
            transport = "nccl" if self.plan.device_type == "GPU" else "auto"
            self.communicators[name] = Communicator(name, owners, transport)
        return self.communicators[name]

    def remember(self, op: tf.Operation) -> tf.Operation:
        """Keeps how an op of the user was, before a pass changes it; returns the op."""
        if op.name not in self.user_nodes:
            self.user_nodes[op.name] = op.node_def
        return op

    @contextlib.contextmanager
    def building(self, scope: str, device: Optional[str] = None) -> Iterator[None]:
        """Ops created inside are the plan's, not in the user's scopes; `device`: the first local one if not given."""
        tf_graph = self.tf_graph
        marks = [(name, tf_compat.set_attr_scope(tf_graph, name, None)) for name in (TASKGRAPH_ATTR, PHASE_ATTR)]
        last_id = tf_compat.last_op_id(tf_graph)
        try:
            with tf_graph.as_default(), tf_graph.control_dependencies(None), tf.device(None):
                with tf.device(device or self.cluster.local_device(0)), tf.name_scope(
                    "{}/{}/".format(PLAN_SCOPE, scope)
                ):
                    yield
        finally:
            self.built.update(op.name for op in tf_compat.ops_since(tf_graph, last_id))
            for name, mark in marks:
                tf_compat.set_attr_scope(tf_graph, name, mark)
