"""The rewriting of one graph: the state that passes share, and that the session reads afterwards."""

import contextlib
import re
from typing import (
    TYPE_CHECKING,
    Any,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.cluster.topology import session_device
from epl.config.config import Config
from epl.env import Env
from epl.ir.gradient_boundary import Training
from epl.ir.graph import Graph, first_tensor
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR
from epl.ir.view import GraphView
from epl.ops.communicator import Communicator
from epl.ops.communicator_groups import SubCommunicators
from epl.parallel.plan.agreement import is_imagined
from epl.parallel.plan.communicators import PROCESSES, ranks_of_stage, shard_holders, transport_of
from epl.parallel.plan.gradient_groups import BoundaryGroup
from epl.parallel.plan.plan import GradientGroup, Plan, host_of_device, ranks_of, world_size
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.stages import span_processes
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils import tf_compat

if TYPE_CHECKING:
    from epl.parallel.rewriting.pass_manager import Pass

# Prefixes of the names of all ops that passes add. They are for people: no code reads facts from names.
PLAN_SCOPE = "EPL_PLAN"
REPLICA_PREFIX = "EPL_REPLICA_{}/"
MICRO_BATCH_PREFIX = "EPL_MICRO_BATCH_{}/"


class VariableSync(NamedTuple):
    """How one variable of replica 0 reaches the other replicas of this process; names of ops.

    Attributes:
      variable: the variable's op.
      is_initialized: tells whether the variable of replica 0 is initialized.
      copies: assignments of that value to the other local replicas.
      is_global: whether the other processes get it too.
    """

    variable: str
    is_initialized: str
    copies: List[str]
    is_global: bool


class GradientCheck(NamedTuple):
    """The comparison of a recomputed gradient with one that is computed without recomputation.

    Attributes:
      variable: name of the gradient's variable, for messages.
      gradient: name of the op that computes the gradient.
      difference: name of the tensor with the difference of the two, relative to the largest value.
      copies: names of the tensors that replace variables, to be fed with their values from before the step.
    """

    variable: str
    gradient: str
    difference: str
    copies: FrozenSet[str]


class Gate(NamedTuple):
    """The op that a training step waits for before it changes variables.

    Attributes:
      op: a collective of replica 0 that runs after every replica of the job has its data.
      gradients: names of the ops that every rank runs in such a step: the collectives of gradients; for gradients that
        are not reduced, the ops that compute them.
    """

    op: tf.Operation
    gradients: FrozenSet[str]


class Order(NamedTuple):
    """Ops that barriers order in the runs that make certain updates.

    Attributes:
      barriers: the tensors of the barriers; a barrier that is fed orders nothing in that run.
      writes: names of the ops that write the variables and their slots, or that run after the data of a step. A run
        without all of them feeds the barriers.
    """

    barriers: Tuple[str, ...]
    writes: FrozenSet[str]


class ScheduledGather(NamedTuple):
    """A gather of a weight for a block of its uses (ZeRO v2): name of the collective, number of the block."""

    op: str
    block: int


class PartWritesCheck(NamedTuple):
    """The comparison with worker 0 of how variables in parts got their values; see `part_writes.py`.

    Attributes:
      own: to be fed with the numbers of this process, one for each variable.
      of_worker_0: gives those of worker 0; a collective of all processes that own replicas.
      variables: names of the variables' ops.
      kept: those of which this process holds parts that it gets from no other process.
    """

    own: tf.Tensor
    of_worker_0: tf.Tensor
    variables: Tuple[str, ...]
    kept: FrozenSet[str]


class Sibling(NamedTuple):
    """A merged output: the tensor to fetch, and the collective op of replica 0 that computes it ("" if none)."""

    tensor: tf.Tensor
    op: str


class RewriteContext:
    """State of the rewriting of one graph.

    It is one class because passes hand values on to later passes, and the session reads them after the last pass; which
    pass may set and read which value is checked by `contracts.py`.

    Attributes:
      is_imagined: whether only a plan is made, and nothing runs.
      running: the pass that runs.
      graph, tf_graph, plan, config, cluster: the model, its graph, the plan, the settings and the devices.
      groups: the groups of gradient boundaries, in the order of `plan.groups`.
      trainings: the backward passes that compute these gradients.
      micro_batched: names of the ops that are copied for every micro batch of a pipeline.
      micro_merged: name of an op without copies for further micro batches -> the op whose copies replace them.
      folded: names of constants, and of ops computed from them, that further micro batches share as constants.
      over_micro_batches: tensor name -> its value merged over the micro batches of a replica.
      stage_of: op name -> stage, for the ops of replica 0 in a pipeline, without ops that passes added later.
      barriers: per training, the tensors of the barriers between its actions; a run may feed them.
      later_writes: tensors of barriers after writes or data of further micro batches; runs of micro batch 0 feed them.
      holders: name -> the communicators of the ranks that hold the same shard, one in each group of a split.
      orders: barriers for runs with certain updates: between groups of updates and the values that they share, before
        the last writes of a step, before gathers of weights.
      recomputations: the segments to recompute, with details that the section of the plan leaves out.
      recomputed: names of recomputed ops -> their copies, one for each call of tf.gradients.
      copies_per_use: name of an op that is computed from a sharded weight alone -> its copies for a block of uses (v2).
      gather_streams: the gathers for blocks of uses, in the order of each stream.
      unused_gathers: names of the tensors of gathered weights that no training step needs.
      gradient_checks: comparisons of recomputed gradients with plain ones, for the first step of a session.
      view: view of the graph after all ops of replica 0 were added and before it is cloned.
      cloned: indices in `view` of the ops that are cloned for every local replica.
      writes: indices of the cloned ops that write variables.
      divisions: the data sources whose batches are divided among replicas.
      batch_index, batch_count: the index of replica 0's part of a batch, and the number of parts; None if not divided.
      batch_checks: tensors of barriers before the cuts, after checks of the batch; fed if replica 0 has the full batch.
      rows_read: name of a data source whose batch is divided -> rows of replica 0's part, float64.
      read_once: names of the ops that read a batch for several replicas, with the ops that they need.
      data_shown: tensor name of an output of a data source -> an identity of it, to wait for.
      weight: the scalar tensor with the weight of replica 0's samples; None if there is one replica.
      weights: per local replica, the scalar tensor with the weight of its samples; fed when feeds are cut.
      counted: names of the data sources whose rows are the weight of replica 0 when nothing is fed.
      gates: one gate per group of gradients, or per accumulation; groups with one accumulation share the op.
      collectives: names of the collective ops of replica 0.
      by_hand: fed True in writes by hand, and in runs that only show values, which leave out the collectives
        `of_all_rows`; None if there are none.
      of_all_rows: names of the collectives that give writes the values of all rows, and batch norms their statistics.
      merged: tensor name -> its merged value, which is fetched instead.
      summarized: index in `view` of a summary op of a merged value -> name of the tensor that is merged.
      plain_summaries: name of an op that depends on such a summary -> its copy with the values of replica 0.
      syncs: the ops that make variables equal; `broadcasts` are the ops that assign rank 0's values.
      part_writes: compares how variables in parts got their values; None where no other process has parts.
      run_kinds: what a run without gradients does with all workers -> names of the collectives that tell it apart.
      built: names of the ops that passes created on replica 0.
      user_nodes: the original NodeDefs of changed ops of the user; `added` are the names of the added ops,
        `added_functions` those of the functions.
      user_devices: name -> the user's device, for ops that were placed by stage.
      foreign_writes: names of ops that write a replicated variable only in replica 0 (initializers, restore).
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        groups: Sequence[BoundaryGroup],
        trainings: Sequence[Training],
        config: Config,
        cluster: Cluster,
    ) -> None:
        self.running: Optional[Pass] = None
        self.is_imagined = is_imagined()
        self.earlier: Optional[RewriteContext] = None
        self.first_new = 0
        self.copied: FrozenSet[str] = frozenset()
        self.graph = graph
        self.tf_graph = graph.tf_graph
        self.plan = plan
        self.groups = list(groups)
        self.trainings = list(trainings)
        self.micro_batched: FrozenSet[str] = frozenset()
        self.micro_merged: Dict[str, str] = {}
        self.folded: FrozenSet[str] = frozenset()
        self.over_micro_batches: Dict[str, tf.Tensor] = {}
        self.stage_of: Dict[str, int] = {}
        self.barriers: List[List[str]] = [[] for _ in trainings]
        self.later_writes: List[str] = []
        self.config = config
        self.cluster = cluster
        self.communicators: Dict[str, Communicator] = {}
        self.holders: Dict[str, SubCommunicators] = {}
        self.orders: List[Order] = []
        self.recomputations: List[Any] = []
        self.recomputed: Dict[str, List[str]] = {}
        self.copies_per_use: Dict[str, List[str]] = {}
        self.gather_streams: List[List[ScheduledGather]] = []
        self.unused_gathers: List[str] = []
        self.gradient_checks: List[GradientCheck] = []
        self.view: Optional[GraphView] = None
        self.cloned: Set[int] = set()
        self.writes: Set[int] = set()
        self.divisions: Sequence[Any] = ()
        self.batch_index: Optional[tf.Tensor] = None
        self.batch_count: Optional[tf.Tensor] = None
        self.batch_checks: List[tf.Tensor] = []
        self.rows_read: Dict[str, tf.Tensor] = {}
        self.read_once: FrozenSet[str] = frozenset()
        self.data_shown: Dict[str, tf.Operation] = {}
        self.weight: Optional[tf.Tensor] = None
        self.weights: List[tf.Tensor] = []
        self.counted: FrozenSet[str] = frozenset()
        self.gates: List[Gate] = []
        self.collectives: Set[str] = set()
        self.by_hand: Optional[tf.Tensor] = None
        self.of_all_rows: FrozenSet[str] = frozenset()
        self.merged: Dict[str, Sibling] = {}
        self.summarized: Dict[int, str] = {}
        self.plain_summaries: Dict[str, str] = {}
        self.syncs: List[VariableSync] = []
        self.broadcasts: List[str] = []
        self.part_writes: Optional[PartWritesCheck] = None
        self.run_kinds: Dict[str, List[str]] = {}
        self.built: Set[str] = set()
        self.foreign_writes: Set[str] = set()
        self.user_nodes: Dict[str, tf.NodeDef] = {}
        self.user_devices: Dict[str, str] = {}
        self.added: FrozenSet[str] = frozenset()
        self.added_functions: Set[str] = set()
        # Op names of the variables that a checkpoint holds, and of those that are trained.
        keys = (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.TRAINABLE_VARIABLES, tf.GraphKeys.MODEL_VARIABLES)
        names = frozenset(v.op.name for key in keys for v in self.tf_graph.get_collection_ref(key))
        self.global_variables = frozenset(map(self.shard_of, names))

    def go_on_from(self, earlier: "RewriteContext") -> None:
        """Takes over what an earlier rewriting of this graph has built; its passes then add to that."""
        assert earlier.view is not None
        self.earlier = earlier
        self.first_new = len(earlier.view)
        self.copied = frozenset(earlier.view.names(earlier.cloned))
        self.view = self.new_view()
        self.communicators = earlier.communicators
        self.orders = list(earlier.orders)
        self.rows_read = dict(earlier.rows_read)
        self.data_shown = dict(earlier.data_shown)
        self.weight, self.weights, self.counted = earlier.weight, earlier.weights, earlier.counted
        self.gates = list(earlier.gates)
        self.collectives = set(earlier.collectives)
        self.by_hand, self.of_all_rows = earlier.by_hand, earlier.of_all_rows
        self.merged = dict(earlier.merged)
        self.plain_summaries = dict(earlier.plain_summaries)
        self.syncs = list(earlier.syncs)
        self.broadcasts = list(earlier.broadcasts)
        self.run_kinds = {kind: list(names) for kind, names in earlier.run_kinds.items()}
        self.built = set(earlier.built)
        self.added_functions = set(earlier.added_functions)

    def new_view(self) -> GraphView:
        """A view of the graph as it is now; after an earlier rewriting, without the copies that it has made."""
        if self.earlier is None or self.earlier.view is None:
            return GraphView(self.tf_graph)
        return GraphView(self.tf_graph, self.earlier.view, self.earlier.added.difference(self.earlier.view.index))

    def take_in_earlier(self) -> None:
        """Adds to what this rewriting has changed what the earlier one did; after the passes."""
        earlier = self.earlier
        assert earlier is not None
        self.added |= earlier.added
        self.user_nodes.update(earlier.user_nodes)
        self.user_devices.update(earlier.user_devices)
        self.earlier, self.first_new, self.copied = None, 0, frozenset()

    def is_new(self, node: int) -> bool:
        """Whether a node of the view was not there for an earlier rewriting."""
        return node >= self.first_new

    @property
    def new_groups(self) -> List[Tuple[GradientGroup, BoundaryGroup]]:
        """The groups of gradients that no earlier rewriting has aggregated."""
        done = 0 if self.earlier is None else len(self.earlier.groups)
        return list(zip(self.plan.groups, self.groups))[done:]

    @property
    def base_rank(self) -> int:
        """The rank of this process's replica 0."""
        return ranks_of(self.plan, self.cluster.worker_index)[0]

    @property
    def process_replicas(self) -> int:
        """Replicas that this process has."""
        return len(ranks_of(self.plan, self.cluster.worker_index))

    @property
    def local_replicas(self) -> int:
        """Replicas that are built in this process: all; where nothing runs, the first of replicas that are alike."""
        if not self.is_imagined:
            return self.process_replicas
        differ = self.plan.row_shares or any(getattr(one.strategy, "ratios", ()) for one in self.graph.taskgraphs)
        return self.process_replicas if differ else 1

    @property
    def world_size(self) -> int:
        """Replicas of the job."""
        return world_size(self.plan)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to rewrite: one replica of one stage."""
        return self.world_size == len(self.plan.stages) == 1

    @property
    def runs_as_it_is(self) -> bool:
        """Whether a Session.run of the user needs no changed fetches, feeds or targets."""
        return self.is_plain and not self.orders and not self.graph.replacements

    @property
    def sharded(self) -> Optional[ShardedVariables]:
        """The registry of the graph's sharded variables, if it has any."""
        return self.graph.state_of(ShardedVariables)

    @property
    def held(self) -> Container[str]:
        """Names of the sharded variables."""
        return () if self.sharded is None else self.sharded.variables

    def shard_of(self, variable: str) -> str:
        """The name of a variable's shard; for a variable that is not sharded, its own name."""
        return variable if self.sharded is None else self.sharded.shard_of(variable)

    @property
    def readers(self) -> List[int]:
        """By local replica, the local replica that reads its batch."""
        parts = self.plan.batch_parts[self.base_rank : self.base_rank + self.local_replicas]
        return [part.reader - self.base_rank for part in parts] or list(range(self.local_replicas))

    def prefix(self, replica: int) -> str:
        """Name prefix of the ops of a local replica; none for replica 0, the user's own graph."""
        return REPLICA_PREFIX.format(replica) if replica else ""

    def micro_prefix(self, micro_batch: int) -> str:
        """Name prefix of the ops of a micro batch, after that of the replica; none for micro batch 0."""
        return MICRO_BATCH_PREFIX.format(micro_batch) if micro_batch else ""

    def micro_prefixes_of(self, name: str) -> List[str]:
        """The name prefixes of an op's copies in the micro batches of replica 0; that of the op itself is first."""
        copies = self.plan.num_micro_batch if name in self.micro_batched else 1
        return [self.micro_prefix(copy) for copy in range(copies)]

    def in_micro_batch(self, name: str, micro_batch: int) -> str:
        """The name of the copy of an op in a micro batch."""
        return self.micro_prefix(micro_batch) + (self.micro_merged.get(name, name) if micro_batch else name)

    @property
    def spans_processes(self) -> bool:
        """Whether the stages of a replica are in several processes; one session then spans all their servers."""
        return span_processes(self.plan.stages, self.plan.owners)

    @property
    def host(self) -> str:
        """The CPU of this process, by its name in the session."""
        return self._in_session(self.cluster.current_worker_cpu())

    def device(self, stage: int, replica: int = 0) -> str:
        """The device of a stage of a local replica, by its name in the session of this process."""
        return self._in_session(self.plan.stages[stage].devices[self.base_rank + replica])

    def host_of(self, stage: int, replica: int = 0) -> str:
        """The CPU of the process that runs a stage of a local replica, by its name in the session of this process."""
        device = self.plan.stages[stage].devices[self.base_rank + replica]
        return self._in_session(host_of_device(device))

    def _in_session(self, device: str) -> str:
        return session_device(device, self.cluster.worker_index) if self.spans_processes else local_name(device)

    def communicator(self, name: str, stage: int = 0) -> Communicator:
        """The communicator of all replicas of a stage; blocks until every process has asked for it."""
        return self._open(name, ranks_of_stage(self.plan, stage))

    @property
    def process_rank(self) -> int:
        """The rank of this process among those that own replicas."""
        return sorted(set(self.plan.owners)).index(self.cluster.worker_index)

    def process_communicator(self, purpose: str = "") -> Communicator:
        """A communicator with one rank for each process that owns replicas; one for each purpose."""
        return self._open(self.plan.name + PROCESSES + purpose, sorted(set(self.plan.owners)))

    def holders_of_shards(self, name: str, stage: int = 0) -> SubCommunicators:
        """The communicators of the holders of shards, opened at first use; blocks until all processes ask for them."""
        if name not in self.holders:
            holders = shard_holders(self.plan, name, stage)
            if not holders.opened:
                holders.open(self.cluster.worker_index)
            self.holders[name] = holders
            Env.get().hold(self.tf_graph, holders, holders.close)
        return self.holders[name]

    def sub_communicators(self, name: str) -> Optional[SubCommunicators]:
        """The sub-communicators, of a split or of `holders`, in which replica 0 takes part in the one named `name`."""
        ranks = replica_groups(self.graph)
        groups = [] if ranks is None else ranks.sub_communicators
        of_base_rank = (one for one in [*groups, *self.holders.values()] if one.name_at(self.base_rank) == name)
        return next(of_base_rank, None)

    def place_in(self, communicator: str, rank: int) -> Tuple[str, int]:
        """The counterpart of replica 0's communicator for a rank: the name of its communicator, and its rank there."""
        groups = self.sub_communicators(communicator)
        return (communicator, rank) if groups is None else (groups.name_at(rank), groups.place(rank).rank)

    def _open(self, name: str, owners: Sequence[int]) -> Communicator:
        if name not in self.communicators:
            opened = Communicator(name, owners, transport_of(self.plan, name), opened=self.spans_processes)
            self.communicators[name] = opened
            Env.get().hold(self.tf_graph, opened, opened.close)
        return self.communicators[name]

    def operation(self, name: str) -> tf.Operation:
        """The op with this name."""
        return self.tf_graph.get_operation_by_name(name)

    def gradients(self) -> Set[str]:
        """Names of the ops of replica 0 that compute the gradients of a step."""
        names = {first_tensor(gradient).op.name for group in self.groups for _, gradient in group.boundaries}
        return names.union(*[gate.gradients for gate in self.gates])

    def needed_by(self, view: GraphView, nodes: Iterable[int], ends: Iterable[int] = ()) -> Set[int]:
        """The ancestors of nodes, not beyond `ends`, and not through barriers of the plan, which only order ops."""
        names = [*self.later_writes, *[name for of_training in self.barriers for name in of_training]]
        names += [name for order in self.orders for name in order.barriers]
        ops = [name.partition(":")[0] for name in names]
        barriers = {view.index[op] for op in ops if op in view.index}
        return view.ancestors(nodes, barriers.union(ends).__contains__)

    def in_replica(self, tensor: str) -> tf.Tensor:
        """The value of a tensor in replica 0: merged over its micro batches if it is an output of a pipeline."""
        merged = self.over_micro_batches.get(tensor)
        return self.tf_graph.get_tensor_by_name(tensor) if merged is None else merged

    def remember(self, op: tf.Operation) -> tf.Operation:
        """Keeps the NodeDef of an op before a pass changes it; returns the op."""
        if op.name not in self.user_nodes:
            self.user_nodes[op.name] = op.node_def
        return op

    def switch_by_hand(self) -> tf.Tensor:
        """`by_hand`, which is made when it is first asked for."""
        if self.by_hand is None:
            with self.building("by_hand"):
                self.by_hand = tf.placeholder_with_default(tf.constant(False), [], name="by_hand")
        return self.by_hand

    @contextlib.contextmanager
    def building(self, scope: str, stage: int = 0) -> Iterator[None]:
        """Ops created inside belong to the plan: they ignore the user's scopes and are on the device of `stage`."""
        tf_graph = self.tf_graph
        taskgraph = tf.AttrValue(i=self.plan.stages[stage].taskgraphs[0]) if len(self.plan.stages) > 1 else None
        marks = [
            (name, tf_compat.set_attr_scope(tf_graph, name, mark))
            for name, mark in ((TASKGRAPH_ATTR, taskgraph), (PHASE_ATTR, None))
        ]
        last_id = tf_compat.last_op_id(tf_graph)
        try:
            with tf_graph.as_default(), tf_graph.control_dependencies(None), tf.device(None):
                with tf.device(self.device(stage)), tf.name_scope(f"{PLAN_SCOPE}/{scope}/"):
                    yield
        finally:
            self.built.update(op.name for op in tf_compat.ops_since(tf_graph, last_id))
            for name, mark in marks:
                tf_compat.set_attr_scope(tf_graph, name, mark)


def local_name(device: str) -> str:
    """The name of a device in a local session: without job and task, so possibly empty."""
    return re.sub(r"/(?:job|replica|task):[^/]*", "", device)
