"""Variables of which each rank holds a part, whatever cut them: what passes, sessions and Savers need to know of them.

Here: what is a part of what, what differs between the ranks of this process, the value that a user means by a part,
sums over parts in updates, and checkpoints. Who cuts variables, and what computes with the parts, is left to
`epl/parallel/split/model.py` (epl.split) and `epl/parallel/zero/model.py`.
"""

import contextlib
import itertools
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir import op_types
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.ops.communicator_groups import Place, SubCommunicators
from epl.ops.job import Job
from epl.ops.service import CommunicatorSpec
from epl.parallel.plan.agreement import process_server
from epl.parallel.plan.plan import Stage, worker_of
from epl.parallel.sharded_variables.checkpoints import Checkpoints
from epl.parallel.sharded_variables.computed_parts import ComputedParts
from epl.parallel.sharded_variables.savers import Held, Slice, slices_of, value_of
from epl.parallel.sharded_variables.slots import Made, adopt_slots, follow_initial_values, slot_layouts
from epl.parallel.sharded_variables.variables import SCOPE, Shard, choices_of, initializer_of, objects_of, wait_instead
from epl.parallel.sharding.placements import FULL, PARTIAL, Layout, shard
from epl.parallel.sharding.resharding import Exchange, Exchanges
from epl.parallel.sharding.sparse_rows import OWN_ROWS, OwnRows
from epl.parallel.sharding.updates import Updates, complete_updates, trace_updates
from epl.utils import tf_compat
from epl.utils.errors import FeedError

_Own = Callable[[Exchange, str, tf.Tensor], tf.Tensor]


class Shown(NamedTuple):
    """What a run gives for a tensor of the user.

    Attributes:
      tensor: that has the value.
      others: collectives of the other ranks of this process that it needs.
    """

    tensor: tf.Tensor
    others: Tuple[tf.Operation, ...]


class Choice(NamedTuple):
    """`initialized_value` of a variable in parts: its value, or the initial value if it has none yet.

    Attributes:
      flags: what chooses; left to itself, it chooses the initial value.
      reads: the value that is to be chosen.
      variable: has this value; for `Shards.shown`.
      part: name of the op of the part.
      initializer: name of the op that gives the part its initial value.
    """

    flags: Tuple[tf.Tensor, ...]
    reads: Tuple[tf.Tensor, ...]
    variable: tf.Tensor
    part: str
    initializer: str


class Shards:
    """The variables of one graph that are parts.

    The ranks may form several groups, each of which has all parts: replicas of each other in data parallelism.

    Attributes:
      groups: ranks of the job, by group.
      sub_communicators: of the groups, and of the ranks that hold the same part.
      exchange: moves data between the ranks of a group.
      held: variable op -> what it is a part of; slots are among them once apply_gradients has made them.
      shapes: variable op -> its attribute `shape` by rank, where sizes differ.
      seeds: random op -> its second seed by rank.
      ranks: of a group.
      reads: what a run gives for a variable -> collectives of the other ranks of this process that it needs.
      gathered: what runs give that needs collectives besides those of the plan.
      unopened: the communicators that are opened together with those of the plan: see `_make_ready`.
      setting: by which the user asks for parts.
      checkpoints: what Savers need to know.
    """

    setting = ""

    def __init__(
        self,
        graph: Graph,
        communicators: SubCommunicators,
        stages: Sequence[Stage],
        process: int,
        fp16_scale: Optional[int] = None,
    ) -> None:
        """Knows of no part yet. Opens communicators: may block until every process does.

        Args:
          graph: the annotated model.
          communicators: of the groups; their name begins those of others.
          stages: of the model.
          process: this one. What it builds is of no use if it owns no rank.
          fp16_scale: as that of Exchange.
        """
        self._graph = graph
        self._stages = tuple(stages)
        rank = communicators.owners.index(process) if process in communicators.owners else 0
        self.groups: Tuple[Tuple[int, ...], ...] = tuple(tuple(ranks) for ranks in communicators.groups)
        self.unopened: List[CommunicatorSpec] = []
        self._transport = communicators.transport
        self._name, self._rank, self._communicators = communicators.name, rank, communicators
        self.sub_communicators: List[SubCommunicators] = []
        self._in_branches: Dict[int, Exchanges] = {}  # by the id of a control-flow context
        self.exchange, self._between_groups = self._open(communicators, fp16_scale)
        self.ranks = self.exchange.ranks
        self.held: Dict[str, Held] = {}
        self.shapes: Dict[str, Tuple[Tuple[int, ...], ...]] = {}
        self.seeds: Dict[str, Tuple[int, ...]] = {}
        self._next_seeds: Optional[Iterator[int]] = None
        self._shards: List[Shard] = []
        self._instead: Dict[str, str] = {}  # op of a full variable -> op of its part
        self._new: Dict[tf.Tensor, tf.Tensor] = {}  # what user's programs still name -> what has its value
        self._parts: Dict[tf.Tensor, Layout] = {}
        self._row_shapes: Dict[tf.Tensor, Layout] = {}  # the shapes of sparse gradients
        self._row_layouts: Dict[tf.Tensor, Layout] = {}  # their values and indices, where each rank has rows of its own
        self._computed = ComputedParts({}, {}, {})
        self._slots: Dict[str, Layout] = {}
        self._slots_of_rows: Dict[str, Layout] = {}
        self._shown: Dict[tf.Tensor, Shown] = {}
        self._told: Dict[str, Shown] = {}  # by the name of a part: whether it has a value
        self.reads: Dict[tf.Tensor, Tuple[tf.Operation, ...]] = {}
        self.gathered: Set[tf.Tensor] = set()
        self._own: Set[tf.Operation] = set()  # ops that are not the user's
        self._traced_after = 0  # number of the last op that no update can be behind
        self.checkpoints = Checkpoints(graph, [self])

    def add_shard(self, made: Shard) -> None:
        """Takes note of a variable that has become a part."""
        name = made.variable.op.name
        self._shards.append(made)
        self._instead[made.old.op.name] = name
        self.held[name] = Held(made.name, made.full_shape, made.layout)
        self.shapes.update(made.shapes)
        self.seeds.update(made.seeds)
        self._new[made.old] = made.variable.op.outputs[0]
        self._new.update(made.reads)

    def next_seed(self) -> int:
        """For an initial value: a number that all processes have that build graphs, another one at each call."""
        if self._next_seeds is None:
            self._next_seeds = itertools.count(_agreed_seed())
        return next(self._next_seeds)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Ops that are made inside are not the user's: they compute with parts, or in place of his."""
        before = tf_compat.last_op_id(self._graph.tf_graph)
        yield
        self._own.update(tf_compat.ops_since(self._graph.tf_graph, before))

    def _communicators_of(self, name: str, stage: int = 0, transport: str = "") -> SubCommunicators:
        """Further ones of the groups, for what runs in a stage."""
        opened = self._communicators.opened
        return SubCommunicators(name, self.groups, self._processes(stage), transport or self._transport, opened)

    def _processes(self, stage: int) -> Sequence[int]:
        """By rank of the job, the process that runs a stage; that of the first one builds its graph."""
        return [worker_of(device) for device in self._stages[stage].devices]

    def _make_ready(self, communicators: SubCommunicators) -> None:
        """Opens communicators; may block until every process does the same.

        Processes that run no more than stages of others do not build graphs: where there are such, all communicators
        are opened when those of the plan are, or one by one behind that.
        """
        if not communicators.opened:
            communicators.open(communicators.owners[self._rank])
            Env.get().communicators.append(communicators)
        elif self._graph.plan is None:
            self.unopened += communicators.specs()
        else:
            Env.get().process_server.open(communicators.specs())

    def _open(self, communicators: SubCommunicators, fp16_scale: Optional[int] = None) -> Exchanges:
        """As `_make_ready`."""
        opened = [communicators]
        if len(self.groups) > 1:
            holders = list(zip(*self.groups))
            name, owners, transport = communicators.name, communicators.owners, communicators.transport
            opened.append(SubCommunicators(name + "/between_groups", holders, owners, transport, communicators.opened))
        exchanges = []
        for one in opened:
            self._make_ready(one)
            exchanges.append(Exchange(one.at(self._rank), one.place(self._rank).rank, "split", fp16_scale))
        self.sub_communicators += opened
        return exchanges[0], exchanges[1] if len(exchanges) > 1 else None

    def _in_branch(self, context: Any) -> Exchanges:
        if id(context) not in self._in_branches:
            name = f"{self._name}/branch{len(self._in_branches)}"
            self._in_branches[id(context)] = self._open(self._communicators_of(name))
        return self._in_branches[id(context)]

    # ---- What the user's program sees.

    def shown(self, tensor: tf.Tensor) -> Shown:
        """What has the value that the user means by a tensor: of what one device would have."""
        part = self._new.get(tensor, tensor)
        return self._made_once(self._shown, part, lambda: self._found(part))

    def _made_once(self, found: Dict[Any, Shown], key: Any, make: Callable[[], Shown]) -> Shown:
        """What `found` has for a key, made by the thread that asks for it first."""
        if key not in found:
            with self._graph.showing_lock:
                if key not in found:
                    found[key] = make()
        return found[key]

    def _found(self, tensor: tf.Tensor) -> Shown:
        graph = self._graph.tf_graph
        written = self.meant(tensor.op)
        if written is not tensor.op and written.outputs:
            layout = self.held[written.inputs[0].op.name].layout
            return self._gathered(
                tensor,
                lambda prefix: graph.get_tensor_by_name(prefix + written.name + ":0"),
                layout,
                stage=self._stage_of(written.name),
            )
        name = self.part_of(variable_of(tensor).name)
        if name not in self.held:
            return self._found_computed(tensor)
        layout = self.held[name].layout
        stage = self._stage_of(name)
        shown = self._gathered(tensor, lambda prefix: value_of(graph, prefix + name), layout, stage=stage)
        self.reads[shown.tensor] = shown.others
        return shown

    def _found_computed(self, tensor: tf.Tensor) -> Shown:
        """What is computed with gradients of parts; another tensor is what it is."""
        graph, rewrite, computed = self._graph.tf_graph, self._graph.plan, self._computed
        layout = computed.layout(tensor)
        if layout == FULL:
            with self._late_ops():
                return Shown(computed.whole_shape(tensor), ())
        first_rows = {
            rewrite.prefix(copy): computed.first_row(tensor, self.place(self._rank + copy).rank)
            for copy in range(rewrite.local_replicas)
        }

        def local(prefix: str) -> tf.Tensor:
            part = graph.get_tensor_by_name(prefix + tensor.name)
            return part + first_rows[prefix] if first_rows[prefix] else part

        return self._gathered(tensor, local, layout, stage=self._stage_of(tensor.op.name))

    def _stage_of(self, op: str) -> int:
        """The stage in which an op of that name runs."""
        return self._graph.plan.stage_of.get(op, 0)

    def _gathered(
        self,
        shown: tf.Tensor,
        local: Callable[[str], tf.Tensor],
        layout: Layout,
        own: Optional[_Own] = None,
        stage: int = 0,
    ) -> Shown:
        """A tensor whose parts lie on the ranks, whole.

        Made when it is asked for first, with a communicator of its own: it waits for no other collective. What the
        communicator waits for may be another process that writes a checkpoint, and needs this one's part of it first:
        the thread that answers must be able to read variables meanwhile.

        Args:
          shown: the tensor, for names: other processes may have shown others before.
          local: gives the part of the rank whose ops have a prefix.
          layout: of the parts.
          own: makes of the whole what the user means on a rank, given its exchange and the prefix of its ops.
          stage: where the parts are.
        """
        rewrite = self._graph.plan
        name = f"{self._name}/shown/{shown.name}"
        communicators = self._communicators_of(name, stage)
        self._make_ready(communicators)
        made: List[tf.Tensor] = []
        others: List[tf.Operation] = []
        with self._late_ops():
            for copy in range(rewrite.local_replicas):
                prefix = rewrite.prefix(copy)
                rank = self._rank + copy
                exchange = Exchange(communicators.at(rank), communicators.place(rank).rank, name)
                self._note_copied_rows(exchange, prefix)
                with tf.device(rewrite.device(stage, copy)), tf.name_scope(SCOPE + "/shown/"):
                    tensor = tf.identity(local(prefix))  # not the reference of a variable
                    whole = exchange.gather(tensor, layout) if layout.is_shard else tensor
                    whole = exchange.sum_partial(tensor) if layout == PARTIAL else whole
                    made.append(whole if own is None else own(exchange, prefix, whole))
                others += exchange.collectives if copy else []
        if exchange.collectives:
            self.gathered.add(made[0])
        return Shown(made[0], tuple(others))

    @contextlib.contextmanager
    def _late_ops(self) -> Iterator[None]:
        """Ops that are made inside are added behind the rewriting, by one thread at a time."""
        graph = self._graph.tf_graph
        with self._graph.late_lock, tf_compat.unfinalized(graph), graph.as_default(), tf.control_dependencies(None):
            yield

    def _note_copied_rows(self, exchange: Exchange, prefix: str) -> None:
        """Tells an exchange who has which rows of the batch, of the rank whose ops have a prefix."""

    def has_value(self, part: str, first: tf.Tensor) -> Shown:
        """Whether a variable in parts has a value, on all ranks alike.

        Args:
          part: name of the op of the part.
          first: whether that of the first rank of this process has one. Where it has no rows it always has.
        """
        layout = self.held[part].layout
        if not layout.leaves_out_ranks:
            return Shown(first, ())
        graph, holders = self._graph.tf_graph, [rank for rank, size in enumerate(layout.sizes or ()) if size]

        def local(prefix: str) -> tf.Tensor:
            variable = graph.get_operation_by_name(prefix + part).outputs[0]
            has_value = (
                tf.raw_ops.VarIsInitializedOp(resource=variable)
                if variable.dtype == tf.resource
                else tf.raw_ops.IsVariableInitialized(ref=variable)
            )
            return tf.cast(tf.reshape(has_value, [1]), tf.float32)

        def of_holders(exchange: Exchange, prefix: str, whole: tf.Tensor) -> tf.Tensor:
            return tf.reduce_all(tf.gather(whole, holders) > 0)

        def make() -> Shown:
            return self._gathered(first, local, shard(0, [1] * self.ranks), of_holders, self._stage_of(part))

        return self._made_once(self._told, part, make)

    def leads(self) -> Dict[tf.Tensor, Tuple[Tuple[int, ...], ...]]:
        """What is to be fed in a run that trains nothing: tensor -> value, by rank of the job."""
        return {}

    def refuse_copied_rows(self, fetches: Sequence[tf.Tensor], differentiates: bool) -> None:
        """Raises FeedError for what is not as of one device in a run that trains nothing.

        Args:
          fetches: as `shown` gave them.
          differentiates: whether the run needs gradients; it is not fed `leads` then.
        """

    def refuse_feed(self, tensor: tf.Tensor) -> None:
        """Raises FeedError for a tensor that nothing takes as it is."""
        if tensor in self._new or self.part_of(variable_of(tensor).name) in self.held:
            raise FeedError(
                "{!r} is fed, and each of {} devices has a part of it ({}): what takes it takes the parts. A variable "
                "gets a value by `op = v.assign(value)`, built before the first Session.run and run with the full "
                "value; in place of another tensor, build a placeholder into the model.".format(
                    tensor.name, self.ranks, self.setting
                )
            )

    def meant(self, op: tf.Operation) -> tf.Operation:
        """What does for the parts of a variable what an op of the user did for the variable."""
        for made in self._shards:
            op = made.replaced.get(op, op)
        return op

    # ---- Ranks of this process.

    def place(self, rank: int) -> Place:
        """The group of a rank of the job, and which part of everything it holds."""
        return self._communicators.place(rank)

    @property
    def collectives(self) -> List[tf.Operation]:
        """Those of the first rank."""
        return [op for pair in self._exchanges for one in pair if one is not None for op in one.collectives]

    @property
    def _exchanges(self) -> List[Exchanges]:
        return [(self.exchange, self._between_groups), *self._in_branches.values()]

    def outdated(self) -> Set[str]:
        """Names of the ops that user's programs still name, and in whose place others give a value."""
        return {tensor.op.name for tensor in self._new}

    def results(self) -> Set[str]:
        """Names of the ops that compute what the user may ask for."""
        return self._computed.ops()

    def replaced(self) -> List[str]:
        """Names of ops on variables that are parts now; nothing runs them any more."""
        return [op.name for made in self._shards for op in made.replaced]

    def part_of(self, name: str) -> str:
        """The variable op that stands for one of the user, if that is a part now; both by name."""
        return self._instead.get(name, name)

    def choices(self) -> List[Choice]:
        """Those that were built for variables before they became parts."""
        found = []
        for made in self._shards:
            flags, reads = choices_of(made.old)
            if flags:
                initializer = initializer_of(made.variable).name
                found.append(Choice(tuple(flags), tuple(reads), made.old, made.variable.op.name, initializer))
        return found

    def initializers(self) -> List[str]:
        """Names of the ops that give the parts their initial values: every rank runs its own."""
        operation = self._graph.tf_graph.get_operation_by_name
        ops = [variable.initializer for name in self.held for variable in objects_of(operation(name))]
        ops += [made.variable.initializer for made in self._shards]
        return sorted({getattr(op, "op", op).name for op in ops})

    def own_attrs(self, view: GraphView, cloned: Set[int]) -> Dict[int, List[List[Tuple[str, tf.AttrValue]]]]:
        """Node -> by rank of the job, the attributes in which a copy differs.

        Initial values are drawn with the same seeds by all.
        """
        needed = view.ancestors([view.index[name] for name in self.initializers()]) & cloned
        same: List[List[Tuple[str, tf.AttrValue]]] = [[] for _ in range(self.ranks)]
        attrs = {node: same for node in needed if "seed2" in view.nodes[node].attr}
        for name, owned in [item for exchange, _ in self._exchanges for item in exchange.owned.items()]:
            protos = [tf.make_tensor_proto(value, owned.dtype) for value in owned.values]
            attrs[view.index[name]] = [[("value", tf.AttrValue(tensor=proto))] for proto in protos]
        for name, shapes in self.shapes.items():
            values = [tf.AttrValue(shape=tf.TensorShape(shape).as_proto()) for shape in shapes]
            attrs[view.index[name]] = [[("shape", value)] for value in values]
        for name, seeds in self.seeds.items():
            attrs[view.index[name]] = [[("seed2", tf.AttrValue(i=seed))] for seed in seeds]
        parts = [self.place(rank).rank for rank in range(len(self._communicators.owners))]
        return {node: [by_part[part] for part in parts] for node, by_part in attrs.items()}

    # ---- Updates, checkpoints.

    def adopt_updates(self, made: Sequence[Made] = ()) -> None:
        """Makes the slots that an apply_gradients has made known as parts; `made` are the variables it has made."""
        likely = slot_layouts(made, self._shards)
        self._slots.update(likely.parts)
        self._slots_of_rows.update(likely.of_rows)
        slots = adopt_slots(self._updates().variables, self.exchange)
        self.held.update(slots.held)
        self.shapes.update(slots.shapes)
        self.seeds.update(slots.seeds)
        follow_initial_values()

    def finish(self) -> None:
        """What can be done only when the whole graph is built: before it is rewritten."""
        for made in self._shards:
            for before, after in made.replaced.items():  # ops that were built since then wait, too
                wait_instead(before, after)
        with self._graph.tf_graph.as_default():
            self.adopt_updates()  # a moving average is built behind apply_gradients
            updates = self._updates()
            self._new.update(complete_updates(updates, self.exchange, self._between_groups, self._in_branch))
        layouts = {self._new.get(tensor, tensor): layout for tensor, layout in updates.layouts.items()}
        self._computed = ComputedParts(layouts, self._row_layouts, self._row_shapes)

    def _note_rows(self, gradient: tf.IndexedSlices, layout: Layout) -> None:
        """Of a sparse gradient each rank has rows of its own, or its columns of all rows, as `layout` cuts them."""
        if gradient.dense_shape is not None:
            self._row_shapes[gradient.dense_shape] = layout
        if layout.dim > 0:
            self._parts[gradient.values] = layout
            return
        rows = (gradient.values, gradient.indices)
        self._parts.update(dict.fromkeys(rows, OWN_ROWS))
        self._row_layouts.update(dict.fromkeys(rows, layout))

    def _updates(self) -> Updates:
        variables = {**self._slots, **{name: held.layout for name, held in self.held.items()}}
        return trace_updates(
            self._graph.tf_graph,
            self._parts,
            variables,
            self.ranks,
            self._traced_after,
            self._own | self._graph.own_ops,
            self._graph.common_branches,
            OwnRows(self._row_shapes, self._slots_of_rows),
        )

    def slices(self, prefixes: Sequence[str]) -> Dict[str, List[Slice]]:
        """What the ranks of this process hold, see `slices_of`; `prefixes` are those of the copies of these ranks."""
        places = [(prefix, self.place(self._rank + copy).rank) for copy, prefix in enumerate(prefixes)]
        return slices_of(self.held, places, self._instead)

    def written(self, prefixes: Sequence[str]) -> List[Slice]:
        """Those of the slices that this process writes into checkpoints: each part is written by one rank."""
        slices = self.slices(prefixes)
        ranks = [self._rank + copy for copy in range(len(prefixes))]
        return [
            part for name in self.held for rank, part in zip(ranks, slices[name]) if rank in self._writers and part.spec
        ]

    @property
    def _writers(self) -> List[int]:
        """The ranks that write, by part."""
        return [min(holders) for holders in zip(*self.groups)]

    @property
    def writes_elsewhere(self) -> bool:
        """Whether other processes than the first one write parts."""
        return any(self._communicators.owners[rank] for rank in self._writers)

    @property
    def processes(self) -> List[int]:
        """Those that build graphs."""
        return sorted(set(self._communicators.owners))

    def follow_late(self) -> None:
        """Sees to what was built behind the first run; differs by what has cut the variables."""


def variable_of(tensor: tf.Tensor) -> tf.Operation:
    """The op that a tensor is read from, if it is the value of a variable; else its own."""
    return tensor.op.inputs[0].op if tensor.op.type in op_types.READS and tensor.op.inputs else tensor.op


def _agreed_seed() -> int:
    """A number that all processes have that build graphs, small enough to count on from it."""
    job, server = Job.current(), process_server()
    key, own = "seed of initial values", str(int.from_bytes(os.urandom(4), "little") % 2**30 + 1)
    if server is not None:  # processes that serve take part in its rounds alone
        return int(server.service.exchange(key, own)[0])
    assert job is not None
    return int(job.exchange(key, own.encode())[0])


def fetched(
    tf_graph: tf.Graph, fetches: Sequence[tf.Tensor], targets: Sequence[tf.Operation], feeds: Iterable[tf.Tensor]
) -> Tuple[List[tf.Tensor], List[tf.Operation]]:
    """What a run gives and does for what the user asks for.

    Raises:
      FeedError: what is fed is computed from parts.
    """
    graph = Graph.of(tf_graph)
    if graph is None or graph.shards is None:
        return list(fetches), list(targets)
    for tensor in feeds:
        graph.shards.refuse_feed(tensor)
    shown = [graph.shards.shown(tensor) for tensor in fetches]
    needed = [op for one in shown for op in one.others]
    return [one.tensor for one in shown], [graph.shards.meant(op) for op in targets] + needed
