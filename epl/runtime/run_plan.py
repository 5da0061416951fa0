"""What one Session.run means under a plan: which ops of the other replicas run with it, what is fetched instead.

A run is planned once for each set of fetches and feeds, from what the fetches need of replica 0:

    fetches ----> ancestors in replica 0 ----> collectives and writes among them ----> their copies run too
       |
       +--------> merged outputs and the objective are fetched in place of replica 0's value; next to them, or next to
                  gradients, so are scalars that are known of all rows

In a pipeline, the micro batches of replica 0 are part of it; what is written once per micro batch runs for all of them.
The barriers of the schedule order training steps alone: in other runs they are fed, which takes them out. So are those
between groups of updates, in runs that do not update all of their variables.
"""

from typing import (
    AbstractSet,
    Dict,
    FrozenSet,
    Hashable,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.colocation import phase_of
from epl.ir.dataflow import data_descendants
from epl.ir.graph import first_tensor
from epl.ir.taskgraph import Phase
from epl.parallel.replication import run_kinds
from epl.parallel.replication.metric_variables import MetricFeeds
from epl.parallel.replication.replica_rows import (
    MIXES,
    WRITES,
    ReplicaRows,
    RowFinding,
    fetched,
    fetched_late,
    from_batches,
    is_one_replica,
    parts_of,
)
from epl.parallel.replication.whole_scalars import is_number
from epl.parallel.rewriting.context import RewriteContext, Sibling
from epl.parallel.rewriting.data_waits import outputs_taken
from epl.parallel.sharded_variables import part_writes
from epl.parallel.sharded_variables.fetching import ShardFetches
from epl.parallel.sharded_variables.variables import InitializedValue, initialized_values
from epl.utils.errors import FeedError


class Written(NamedTuple):
    """What a run without gradients writes to global variables, which all replicas have.

    Attributes:
      values: what the writes take.
      differs_between_replicas: whether they take what is drawn at random, or comes from a Python function.
      differs_between_processes: whether they take that, or what is fed, and write a variable that a training step
        needs.
    """

    values: Tuple[tf.Tensor, ...]
    differs_between_replicas: bool
    differs_between_processes: bool


class RunPlan(NamedTuple):
    """A Session.run as it is really run.

    Attributes:
      fetches: tensors, one for each that was asked for, in the same order.
      targets: ops to run besides.
      uses_replicas: whether other local replicas take part.
      is_collective: whether it needs the other
        processes.
      trains: whether it computes the gradients of a training step.
      writes_replica_0_alone: whether it changes variables that the other replicas hold copies of (initializers,
        restore).
      writes_process_alone: whether such variables are global: other processes hold them, too.
      written: what it writes without gradients.
      initializes: names of the variables that have a value after the run, as it assigns one.
      part_writes: name of a variable in parts -> how the run writes it without gradients; see `part_writes.py`.
      copies_first: whether other local replicas take part and need the values of replica 0 before the run.
      only_stages: whether all that the replicas do is to fill or empty staging areas, for which they may have to
        wait.
      shares_feeds: whether feeds are shared out among the copies of
        placeholders.
      repeats_feeds: whether all copies get what is fed: ranks that hold parts compute together, for the first one's
        rows;
        and replicas that write variables without gradients write the same.
      differentiates: whether it repeats feeds, and computes with gradients.
      has_whole_batch: whether replica 0 runs alone, and is to have all rows of a batch that replicas divide.
      counts_rows: whether it reads the data whose rows are the weights of replicas.
      barriers: to be fed, as the run is no step of their training, does not make all updates of their order, or adds
        to metrics in replica 0 alone; and what tells the other replicas that it alone is to add.
      unneeded: names of the fed tensors that nothing in the run takes.
      first: whole values of variables in parts, to be had before the run, as it changes variables: parts that are read
        while others are updated would be of two steps. What is fetched, and what the run is to be fed.
      choices: of the values of variables in parts, in which the run is to be fed those that there are.
      own_rows: what in it depends on which rows a replica has.
    """

    fetches: Tuple[tf.Tensor, ...]
    targets: Tuple[tf.Operation, ...]
    uses_replicas: bool
    is_collective: bool
    trains: bool
    writes_replica_0_alone: bool
    writes_process_alone: bool
    written: Written
    initializes: FrozenSet[str]
    part_writes: Mapping[str, int]
    copies_first: bool
    only_stages: bool
    shares_feeds: bool
    repeats_feeds: bool
    differentiates: bool
    has_whole_batch: bool
    counts_rows: bool
    barriers: Tuple[tf.Tensor, ...]
    unneeded: FrozenSet[str]
    first: Tuple[tf.Tensor, ...]
    choices: Tuple[InitializedValue, ...]
    own_rows: Tuple[RowFinding, ...]


class Asked(NamedTuple):
    """What a run asks of replica 0; nodes by their index in the view.

    Attributes:
      fetches, targets: what is asked for.
      ops: of those, without what is fed.
      fed: names of the tensors that have a value.
      idle: barriers that order nothing in this run, and weights of replicas that it does not count.
      needed: what `ops` need, not looking beyond `idle`.
      in_micro_batches: targets that every micro batch has a copy of.
      foreign: the variables that it changes in replica 0 alone; their names.
      late_writes: the writes among what it needs that were built after the rewriting.
    """

    fetches: Tuple[tf.Tensor, ...]
    targets: Tuple[tf.Operation, ...]
    ops: Tuple[tf.Operation, ...]
    fed: FrozenSet[str]
    idle: AbstractSet[int]
    needed: AbstractSet[int]
    in_micro_batches: AbstractSet[int]
    foreign: FrozenSet[str]
    late_writes: Sequence[tf.Operation]


class Reach(NamedTuple):
    """What of a run concerns further micro batches, replicas and processes; nodes by their index in the view.

    Attributes:
      needed: what the run needs of replica 0, in all micro batches.
      later: copies in further micro batches that run, too.
      touched: what has to run in other replicas as well.
      merged: by name of a fetched tensor, what is fetched in its place.
      outputs: collectives of merged outputs.
      merges_locally: whether values of the replicas of this process are merged.
    """

    needed: AbstractSet[int]
    later: AbstractSet[int]
    touched: AbstractSet[int]
    merged: Mapping[str, Sibling]
    outputs: AbstractSet[int]
    merges_locally: bool


_NO_REACH = Reach(frozenset(), frozenset(), frozenset(), {}, frozenset(), False)


class RunPlanner:
    """Plans runs of one rewritten graph.

    It is one class because each question about a run is answered from the same sets of nodes, found once per graph.
    """

    def __init__(self, rewrite: RewriteContext) -> None:
        view = rewrite.view
        assert view is not None
        self._rewrite = rewrite
        self._view = view
        self._cache: Dict[Tuple[Hashable, ...], RunPlan] = {}
        self._collectives = {view.index[name] for name in rewrite.collectives}
        self._of_all_rows = {view.index[name] for name in rewrite.of_all_rows}
        self._by_hand = set() if rewrite.by_hand is None else {view.index[rewrite.by_hand.op.name]}
        self._gradients = {view.index[name] for gate in rewrite.gates for name in gate.gradients}
        self._foreign = {view.index[name] for name in rewrite.foreign_writes}
        self._sources = set(view.of_types(op_types.DATA_SOURCES) + view.user_placeholders())
        later = {rewrite.micro_prefix(copy) for copy in range(1, rewrite.plan.num_micro_batch)}
        of_later = {prefix + name for prefix in later for name in rewrite.micro_batched}
        # The first micro batch reads whenever another one does.
        self._readers = {n for n in view.of_types(op_types.DATA_SOURCES) if view.nodes[n].name not in of_later}
        self._global_writes = {
            node
            for node in rewrite.writes
            if any(view.nodes[v].name in rewrite.global_variables for v in view.variable_inputs(node))
        }
        self._staging = set(view.of_types(op_types.STAGING)) & rewrite.cloned
        loops = view.of_types(["NextIteration", "RefNextIteration"])
        # Ops of a loop need each other, round and round.
        self._looping = view.ancestors(loops) & view.descendants(loops) if loops else set()
        self._boundaries = [
            {view.index[first_tensor(gradient).op.name] for _, gradient in training.boundaries}
            for training in rewrite.trainings
        ]
        self._all_boundaries: Set[int] = set().union(*self._boundaries)
        self._barriers = [{view.index[_op_name(name)] for name in names} for names in rewrite.barriers]
        self._orders = [
            ({view.index[_op_name(name)] for name in order.barriers}, {view.index[w] for w in order.writes})
            for order in rewrite.orders
        ]
        self._all_barriers: Set[int] = set().union(*self._barriers, *[barriers for barriers, _ in self._orders])
        self._unused_gathers = {view.index[_op_name(name)]: name for name in rewrite.unused_gathers}
        self._fetches = rewrite.graph.state_of(ShardFetches)
        self._counted = {view.index[name] for name in rewrite.counted}
        self._weights = {view.index[weight.op.name] for weight in rewrite.weights[:1]} if self._counted else set()
        self._rows_shown = rewrite.graph.state_of(ReplicaRows) or ReplicaRows()
        # Writes of the mean of all replicas, which runs without gradients make from the rows of each.
        unaveraged = self._rows_shown.unaveraged if rewrite.plan.workers > 1 else ()
        self._averaged = {view.index[op] for one in unaveraged for op in one.ops}
        sharded = rewrite.sharded
        self._metrics = rewrite.graph.state_of(MetricFeeds) or MetricFeeds({}, {}, "")
        self._choices = [] if sharded is None else initialized_values(sharded)
        self._restored = data_descendants(view, view.of_types(op_types.CHECKPOINT_READS), set())
        self._shard_initializers = set() if sharded is None else {view.index[name] for name in sharded.initializers()}
        self._updates = rewrite.writes - self._shard_initializers
        updated = view.descendants(self._gradients, self._all_barriers.__contains__) & self._updates
        self._trained_with = view.ancestors(self._gradients | updated)
        self._later_writes = {view.index[_op_name(name)] for name in rewrite.later_writes}
        self._variables = {view.nodes[node].name for node in rewrite.cloned if view.types[node] in op_types.VARIABLES}

    def plan_run(
        self,
        fetches: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        fed: Iterable[tf.Tensor],
        known: Iterable[tf.Tensor] = (),
    ) -> RunPlan:
        """The plan for what was asked.

        Args:
          fetches: tensors asked for.
          targets: ops asked for.
          fed: tensors with a value that the user feeds.
          known: tensors with a value that the session knows, and feeds besides.
        """
        fed_names = frozenset(tensor.name for tensor in fed)
        known_names = frozenset(tensor.name for tensor in known)
        key = (tuple(t.name for t in fetches), tuple(op.name for op in targets), fed_names, known_names)
        plan = self._cache.get(key)
        if plan is None:
            plan = self._cache[key] = self._work_out(fetches, targets, fed_names, known_names)
        return plan

    def _work_out(
        self,
        fetches: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        by_user: FrozenSet[str],
        known: FrozenSet[str],
    ) -> RunPlan:
        """From what is asked for to what replicas do, and to what is fed."""
        asked = self._asked(fetches, targets, by_user | known)
        of_replica_0 = self._shows_scalars_alone(asked)
        if of_replica_0:
            asked = self._without_merges(asked)
        by_hand = self._writes_by_hand(asked)
        if by_hand or self._only_shows(asked):  # every replica has all rows that it is to take
            asked = asked._replace(idle=asked.idle | self._by_hand, needed=asked.needed - self._of_all_rows)
        repeats_feeds = bool(by_hand) or self._has_all_that_is_fed(asked, by_user)
        if repeats_feeds:
            asked = self._without_merges(asked)
        merges = not (repeats_feeds or of_replica_0)
        reach = self._reach(asked, merges=merges, in_all_micro_batches=not by_hand)
        if self._is_of_replica_0(asked, reach, by_user):
            asked, reach = self._plain(asked), _NO_REACH._replace(needed=reach.needed)
        elif reach.outputs or reach.later:
            asked = asked._replace(idle=asked.idle - self._barriers_of(asked, reach.outputs | reach.later))
        return self._planned(asked, reach, by_hand, by_user, repeats_feeds)

    def _asked(
        self,
        fetches: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        fed: FrozenSet[str],
        idle: Optional[AbstractSet[int]] = None,
    ) -> Asked:
        """What a run asks of replica 0; what is fed is not asked for."""
        ops = [tensor.op for tensor in fetches if tensor.name not in fed] + list(targets)
        if idle is None:
            idle = self._idle_barriers(ops, fed) | self._weights
        needed, late_writes = self._needed(ops, fed, idle)
        foreign = {t.op.name for op in late_writes for t in op.inputs}
        foreign.update(self._view.nodes[v].name for n in needed & self._foreign for v in self._view.variable_inputs(n))
        foreign &= self._variables
        later = {self._view.index[op.name] for op in targets if op.name in self._rewrite.micro_batched}
        return Asked(
            tuple(fetches), tuple(targets), tuple(ops), fed, idle, needed, later, frozenset(foreign), late_writes
        )

    def _has_all_that_is_fed(self, asked: Asked, by_user: FrozenSet[str]) -> bool:
        """Whether ranks that hold shards compute together what one device would, of all rows that are fed."""
        return (
            self._rewrite.sharded is not None
            and not asked.needed & (self._gradients | self._rewrite.writes)
            and self._is_fed_inference(asked.needed, by_user)
            and not self._merges_globally(asked)
        )

    def _without_merges(self, asked: Asked) -> Asked:
        """The same of replica 0, or its first micro batch, which has all that is fed: nothing is merged."""
        plain = self._plain(asked)
        return self._asked(plain.fetches, plain.targets, plain.fed, plain.idle)

    def _shows_scalars_alone(self, asked: Asked) -> bool:
        """Whether a run without gradients asks for scalars that a step shows of all rows, and merges nothing else.

        They are those of replica 0 then, which draws no more than one batch.
        """
        rewrite = self._rewrite
        if asked.needed & (self._gradients | self._all_boundaries):
            return False
        names = {t.name for t in asked.fetches if t.name in rewrite.merged and t.name not in asked.fed}
        names.update(name for node, name in rewrite.summarized.items() if node in asked.needed)
        return bool(names) and names <= self._rows_shown.of_rows

    def _plain(self, asked: Asked) -> Asked:
        """The same without summaries of merged values, and without what waits for further micro batches."""
        return asked._replace(
            fetches=tuple(self._plain_summary(t.op).outputs[t.value_index] for t in asked.fetches),
            targets=tuple(self._plain_summary(op) for op in asked.targets),
            idle=asked.idle | (asked.needed & self._later_writes),
        )

    def _reach(self, asked: Asked, merges: bool, in_all_micro_batches: bool) -> Reach:
        """What of the run concerns further micro batches, replicas and processes."""
        rewrite, view = self._rewrite, self._view
        later: Set[int] = set()
        if in_all_micro_batches:
            later = self._later_micro_batches((asked.needed & rewrite.writes) | asked.in_micro_batches)
        needed = asked.needed | view.ancestors(later, asked.idle.__contains__)
        if self._by_hand & asked.idle:
            needed -= self._of_all_rows
        merged = {t.name: rewrite.merged[t.name] for t in asked.fetches if t.name in rewrite.merged} if merges else {}
        merged = {name: sibling for name, sibling in merged.items() if name not in asked.fed}
        shown = {rewrite.merged[name] for node, name in rewrite.summarized.items() if node in needed}
        siblings = shown.union(merged.values())
        outputs = {view.index[sibling.op] for sibling in siblings if sibling.op}
        if needed & self._gradients:
            outputs |= self._outputs_of_a_training_step(needed, asked.idle)
        touched = needed & (self._collectives | rewrite.writes | self._staging)
        touched |= {view.index[op.name] for op in asked.targets if view.index.get(op.name) in rewrite.cloned}
        return Reach(needed, later, touched | outputs, merged, outputs, any(not sibling.op for sibling in siblings))

    def _is_of_replica_0(self, asked: Asked, reach: Reach, by_user: FrozenSet[str]) -> bool:
        """Whether replica 0 by itself gives what is asked for: it has all data, and changes nothing of others."""
        together = self._collectives | self._global_writes | self._staging
        # Gradients are of all that is fed, and so is what is asked for next to them.
        if reach.touched & together or reach.needed & self._all_boundaries:
            return False
        has_all_data = self._is_fed_inference(reach.needed, by_user) or self._divides_one_batch()
        return has_all_data and self._can_show_plain(asked)

    def _planned(
        self, asked: Asked, reach: Reach, by_hand: Set[int], by_user: FrozenSet[str], repeats_feeds: bool
    ) -> RunPlan:
        rewrite, view = self._rewrite, self._view
        needed = reach.needed
        last = self._last_of(reach.touched, asked.idle)
        extra = self._copies(last)
        if extra:  # TensorFlow may leave out on replica 0 what it finds that no value of the run depends on
            extra += [rewrite.operation(view.nodes[node].name) for node in sorted(last & self._collectives)]
        extra += [rewrite.operation(view.nodes[node].name) for node in sorted(reach.outputs | reach.later)]
        extra += self._tells_kind(reach)
        uses_replicas = rewrite.local_replicas > 1 and (bool(reach.touched) or reach.merges_locally)
        is_collective = bool(reach.touched & self._collectives)
        in_micro_batches = reach.touched or reach.merges_locally or needed & self._all_boundaries
        shares_feeds = uses_replicas or is_collective or bool(rewrite.micro_batched and in_micro_batches)
        idle = (asked.idle - self._weights) & view.ancestors(
            needed | reach.touched | reach.later, asked.idle.__contains__
        )
        return RunPlan(
            fetches=tuple(reach.merged[t.name].tensor if t.name in reach.merged else t for t in asked.fetches),
            targets=asked.targets + tuple(extra),
            uses_replicas=uses_replicas,
            is_collective=is_collective,
            trains=bool(needed & self._gradients),
            writes_replica_0_alone=bool(asked.foreign),
            writes_process_alone=bool(asked.foreign & rewrite.global_variables),
            written=self._written(by_hand, by_user),
            initializes=self._initializes(needed, asked.fed),
            part_writes=self._part_writes(asked),
            copies_first=uses_replicas and self._copies_first(needed, reach.touched),
            only_stages=bool(needed & self._staging) and not reach.touched & (self._collectives | rewrite.writes),
            shares_feeds=shares_feeds and not repeats_feeds,
            repeats_feeds=repeats_feeds,
            differentiates=repeats_feeds and _takes_gradients(asked.ops),
            has_whole_batch=rewrite.batch_count is not None and not uses_replicas,
            counts_rows=self._counted <= needed,
            barriers=self._barrier_tensors(idle) + self._metric_feeds(needed, uses_replicas, repeats_feeds),
            unneeded=frozenset(name for name in asked.fed if view.index.get(_op_name(name), -1) not in needed | {-1}),
            first=self._first(asked.fetches, needed) if needed & self._updates else (),
            choices=tuple(choice for choice in self._choices if self._chooses(choice, needed, asked.fed)),
            own_rows=() if repeats_feeds else self._own_rows(needed, asked.fetches),
        )

    def _metric_feeds(self, needed: AbstractSet[int], uses_replicas: bool, has_all_rows: bool) -> Tuple[tf.Tensor, ...]:
        """What is fed as replica 0 alone adds to metrics: it runs alone, or every replica has all rows."""
        metrics = self._metrics
        adds = [name for name in metrics.barriers if self._view.index[name] in needed]
        names: List[str] = [] if uses_replicas else [name for add in adds for name in metrics.barriers[add]]
        if adds and uses_replicas and has_all_rows:
            names = [metrics.all_rows]
        return tuple(self._rewrite.tf_graph.get_tensor_by_name(name) for name in names)

    def _tells_kind(self, reach: Reach) -> List[tf.Operation]:
        """What tells a run that merges global outputs, without gradients, from a training step of another worker."""
        if not reach.outputs & self._collectives or reach.needed & (self._gradients | self._all_boundaries):
            return []
        names = self._rewrite.run_kinds.get(run_kinds.OUTPUTS, ())
        return [self._rewrite.operation(name) for name in names]

    def _own_rows(self, needed: AbstractSet[int], fetches: Sequence[tf.Tensor]) -> Tuple[RowFinding, ...]:
        """What of a run depends on which rows a replica has: what it writes, takes gradients of, and shows."""
        found = self._rows_shown
        differentiates = bool(needed & (self._gradients | self._all_boundaries))
        in_run = tuple(
            one
            for one in found.findings
            if (one.kind == MIXES and differentiates)
            or (one.kind == WRITES or differentiates)
            and any(self._view.index.get(op) in needed for op in one.ops)
        )
        if not differentiates:
            writes = set() if needed & self._of_all_rows else needed & self._averaged
            return in_run + tuple(
                one for one in found.unaveraged if any(self._view.index[op] in writes for op in one.ops)
            )
        own = fetched(found, fetches, self._rewrite.plan.workers)
        parts = self._rewrite.local_replicas * self._rewrite.plan.num_micro_batch
        shown = {} if self._fetches is None else self._fetches.shown()
        late = self._late_scalars([one for one in fetches if not (one in shown and is_one_replica(self._rewrite.plan))])
        return in_run + tuple(own + [fetched_late(found, one, parts, shown.get(one)) for one in late])

    def _late_scalars(self, fetches: Sequence[tf.Tensor]) -> List[tf.Tensor]:
        """The numbers that were built after the rewriting from the batch of a replica or a micro batch."""
        late = [one for one in fetches if one.op.name not in self._view.index and is_number(one)]
        if not late or parts_of(self._rewrite.plan) == 1:
            return []
        of_batch = from_batches(self._rows_shown, self._rewrite.tf_graph, self._view)
        return [tensor for tensor in late if self._is_built_from(tensor, of_batch)]

    def _is_built_from(self, late: tf.Tensor, nodes: AbstractSet[int]) -> bool:
        """Whether a tensor that was built after the rewriting is computed from nodes of the view."""
        stack, seen = [late], set()
        while stack:
            op = stack.pop().op
            if self._view.index.get(op.name) in nodes:
                return True
            if op not in seen and op.name not in self._view.index:
                seen.add(op)
                stack += op.inputs
        return False

    def _writes_by_hand(self, asked: Asked) -> Set[int]:
        """The writes of global variables of a run without gradients that reads no data; none if it is no such run.

        Raises:
          FeedError: it merges global outputs, for which what is fed is cut, and the writes take what is fed.
        """
        view, needed = self._view, asked.needed
        writes = self._global_writes & self._updates & needed
        if not writes or needed & (self._gradients | self._all_boundaries) or self._reads_data(needed, asked.fed):
            return set()
        if not self._merges_globally(asked):
            return writes
        taken = self._taken(writes, asked.fed)
        if not taken:
            return set()
        raise FeedError(
            "{!r} is fed to a run that writes a variable without gradients ({!r}), for which every replica gets all of "
            "it, and that merges a global output, for which each gets its own rows. Run the update by itself.".format(
                taken[0], view.nodes[min(writes)].name
            )
        )

    def _only_shows(self, asked: Asked) -> bool:
        """Whether a run takes statistics, and neither trains nor merges: it needs none but this worker.

        It may write what each replica has for itself, such as metrics, and moving averages, each from its own rows.
        """
        changes = self._gradients | self._all_boundaries | (self._global_writes - self._averaged)
        return (
            bool(asked.needed & self._of_all_rows) and not asked.needed & changes and not self._merges_globally(asked)
        )

    def _written(self, writes: AbstractSet[int], fed: FrozenSet[str]) -> Written:
        """What `writes` without gradients write, given the names of what is fed."""
        view = self._view
        needed = view.ancestors(writes)
        own = any(view.types[n] in op_types.PYTHON or "seed2" in view.nodes[n].attr for n in needed)
        written = {variable for node in writes for variable in view.variable_inputs(node)}
        values = [t for node in sorted(writes) for t in self._rewrite.operation(view.nodes[node].name).inputs]
        differs = (own or bool(self._taken(writes, fed))) and not written.isdisjoint(self._trained_with)
        return Written(tuple(values), own, differs)

    def _initializes(self, needed: AbstractSet[int], fed: FrozenSet[str]) -> FrozenSet[str]:
        """The variables that a run assigns a value to in any case."""
        view = self._view
        fed_ops = {_op_name(name) for name in fed}
        assigns = (n for n in needed if view.types[n] in op_types.PLAIN_ASSIGNS and view.nodes[n].name not in fed_ops)
        targets = [view.producers[node][0] for node in assigns]
        return frozenset(view.nodes[node].name for node in targets if view.types[node] in op_types.VARIABLES)

    def _part_writes(self, asked: Asked) -> Dict[str, int]:
        """How a run without gradients writes variables in parts, by name."""
        rewrite, view = self._rewrite, self._view
        if rewrite.part_writes is None or asked.needed & self._gradients:
            return {}
        found: Dict[str, int] = {}
        for node in sorted(asked.needed):
            if view.types[node] in op_types.WRITES:
                restored, initial = node in self._restored, node in self._shard_initializers
                names = [view.nodes[variable].name for variable in view.variable_inputs(node)]
                found.update(dict.fromkeys(names, part_writes.kind_of_write(restored, initial)))
        for op in asked.late_writes:
            found[op.inputs[0].op.name] = part_writes.kind_of_write(_is_restored(op), False)
        return {name: kind for name, kind in found.items() if name in rewrite.held}

    def _copies_first(self, needed: AbstractSet[int], touched: AbstractSet[int]) -> bool:
        """Whether the replicas that run `touched` do more than give their shards initial values."""
        return not touched <= self._shard_initializers or any(map(self._reads_variable, needed))

    def _reads_variable(self, node: int) -> bool:
        """Whether an op takes a variable for anything but to assign a value to it."""
        variables = self._view.variable_inputs(node)
        is_assign = self._view.types[node] in op_types.PLAIN_ASSIGNS
        return bool(variables) and not (is_assign and variables == self._view.producers[node][:1])

    def _taken(self, nodes: AbstractSet[int], fed: FrozenSet[str]) -> List[str]:
        """Those of `fed` that nodes need."""
        needed = self._view.ancestors(nodes)
        return sorted(name for name in fed if self._view.index.get(_op_name(name)) in needed)

    def _chooses(self, choice: InitializedValue, needed: AbstractSet[int], fed: FrozenSet[str]) -> bool:
        """Whether a run begins something with a variable to which it does not give its initial value itself."""
        index = self._view.index
        asks = any(index[flag.op.name] in needed and flag.name not in fed for flag in choice.flags)
        return asks and index[choice.initializer] not in needed

    def _first(self, fetches: Sequence[tf.Tensor], needed: AbstractSet[int]) -> Tuple[tf.Tensor, ...]:
        rewrite = self._rewrite
        reads = () if self._fetches is None else self._fetches.reads
        wholes = [self._unused_gathers[node] for node in sorted(needed & self._unused_gathers.keys())]
        found = [t for t in fetches if t in reads] + [rewrite.tf_graph.get_tensor_by_name(name) for name in wholes]
        return tuple(dict.fromkeys(found))

    def _idle_barriers(self, ops: Sequence[tf.Operation], fed: FrozenSet[str]) -> Set[int]:
        """The barriers of the trainings of which `ops` are no step, and of the updates that they do not all make."""
        if not self._all_barriers:
            return set()
        needed, _ = self._needed(ops, fed, self._all_barriers)
        idle = [barriers for barriers, boundaries in zip(self._barriers, self._boundaries) if not needed & boundaries]
        idle += [barriers for barriers, writes in self._orders if not writes <= needed]
        return set().union(*idle)

    def _barriers_of(self, asked: Asked, unasked: AbstractSet[int]) -> Set[int]:
        """The barriers that order what a run does unasked: it merges outputs, and runs copies in later micro batches.

        With them fed, ranks would run the collectives of these beside others of the communicator, in any order.
        """
        needed, _ = self._needed(asked.ops, asked.fed, self._all_barriers)
        needed = needed | self._view.ancestors(unasked, self._all_barriers.__contains__)
        return set().union(*[barriers for barriers, writes in self._orders if writes <= needed])

    def _barrier_tensors(self, nodes: AbstractSet[int]) -> Tuple[tf.Tensor, ...]:
        rewrite = self._rewrite
        return tuple(
            rewrite.tf_graph.get_tensor_by_name(rewrite.prefix(replica) + self._view.nodes[node].name + ":0")
            for replica in range(rewrite.local_replicas)
            for node in sorted(nodes)
            if not replica or node in rewrite.cloned
        )

    def _later_micro_batches(self, nodes: AbstractSet[int]) -> Set[int]:
        """The copies of ops of micro batch 0 in the further micro batches of replica 0."""
        rewrite, view = self._rewrite, self._view
        return {
            view.index[rewrite.micro_prefix(copy) + view.nodes[node].name]
            for node in nodes
            if view.nodes[node].name in rewrite.micro_batched
            for copy in range(1, rewrite.plan.num_micro_batch)
        }

    def _needed(
        self, ops: Sequence[tf.Operation], fed: FrozenSet[str], idle: AbstractSet[int]
    ) -> Tuple[Set[int], List[tf.Operation]]:
        """What `ops` need of replica 0, not looking beyond `idle`; and the writes that were built after the rewriting.

        Ops that the user created after the rewriting are followed op by op until they meet ops that are in the view.
        """
        view = self._view
        known = set()
        late_writes = []
        seen = set()
        stack = list(ops)
        while stack:
            op = stack.pop()
            index = view.index.get(op.name)
            if op in seen or (self._is_fed(op, fed) and not (index is not None and op.type in op_types.PLACEHOLDERS)):
                continue
            seen.add(op)
            if index is not None:
                known.add(index)
                continue
            if op.type in op_types.WRITES:
                late_writes.append(op)
            stack.extend(t.op for t in op.inputs)
            stack.extend(op.control_inputs)
        stop = {view.index[_op_name(name)] for name in fed if _op_name(name) in view.index}
        needed = view.ancestors(known, (stop | idle).__contains__) - (stop & self._unused_gathers.keys())
        return needed, late_writes

    @staticmethod
    def _is_fed(op: tf.Operation, fed: FrozenSet[str]) -> bool:
        return bool(op.outputs) and all(t.name in fed for t in op.outputs)

    def _outputs_of_a_training_step(self, needed: AbstractSet[int], idle: AbstractSet[int]) -> Set[int]:
        """Global outputs that a training step merges, fetched or not.

        A summary hook of one process fetches them in some steps, and a merge needs every process. Those are left out
        that would draw other data or need other placeholders than the gradients do.
        """
        view = self._view
        sources = view.ancestors(needed & self._gradients, idle.__contains__) & self._sources
        outputs = set()
        for sibling in self._rewrite.merged.values():
            if sibling.op:
                node = view.index[sibling.op]
                if view.ancestors([node], idle.__contains__) & self._sources <= sources:
                    outputs.add(node)
        return outputs

    def _is_fed_inference(self, needed: AbstractSet[int], fed: FrozenSet[str]) -> bool:
        """Whether all data of the run is fed: replica 0 then computes values and metrics on all of it."""
        return bool(fed) and not self._reads_data(needed, fed)

    def _reads_data(self, needed: AbstractSet[int], fed: FrozenSet[str]) -> bool:
        """Whether a run reads data, or divides it, which it does to a batch that is fed in its place, too."""
        read = needed & self._readers
        if self._rewrite.batch_count is not None:
            return bool(read)
        return any(not self._is_taken_from(fed, node, needed) for node in read)

    def _is_taken_from(self, fed: FrozenSet[str], node: int, takers: AbstractSet[int]) -> bool:
        """Whether all that `takers` take of a data source is fed."""
        op = self._rewrite.operation(self._view.nodes[node].name)
        taken = outputs_taken(self._view, node, takers)
        return bool(taken) and all(op.outputs[position].name in fed for position in taken)

    def _divides_one_batch(self) -> bool:
        """Whether replicas divide a batch, so that replica 0 by itself can have what they have together."""
        return self._rewrite.batch_count is not None and self._rewrite.plan.num_micro_batch == 1

    def _merges_globally(self, asked: Asked) -> bool:
        """Whether outputs of all processes are asked for: what is fed is shared out then, as in data parallelism."""
        rewrite = self._rewrite
        names = {t.name for t in asked.fetches if t.name in rewrite.merged and t.name not in asked.fed}
        names.update(name for node, name in rewrite.summarized.items() if node in asked.needed)
        return any(rewrite.merged[name].op for name in names)

    def _can_show_plain(self, asked: Asked) -> bool:
        """Whether no summary of merged values is needed once those that are asked for show replica 0's."""
        if not self._rewrite.summarized:
            return True
        needed, _ = self._needed([self._plain_summary(op) for op in asked.ops], asked.fed, asked.idle)
        return needed.isdisjoint(self._rewrite.summarized)

    def _plain_summary(self, op: tf.Operation) -> tf.Operation:
        plain = self._rewrite.plain_summaries.get(op.name)
        return op if plain is None else self._rewrite.operation(plain)

    def _last_of(self, nodes: AbstractSet[int], idle: AbstractSet[int]) -> Set[int]:
        """Those of `nodes` that no other of them needs, not looking beyond `idle`: running these runs all."""
        view = self._view
        before = view.ancestors({p for node in nodes for p in view.producers[node]}, idle.__contains__)
        return set(nodes - before) | (self._looping & nodes)

    def _copies(self, nodes: AbstractSet[int]) -> List[tf.Operation]:
        rewrite = self._rewrite
        return [
            rewrite.tf_graph.get_operation_by_name(rewrite.prefix(replica) + self._view.nodes[node].name)
            for replica in range(1, rewrite.local_replicas)
            for node in sorted(nodes)
            if node in rewrite.cloned
        ]


def _takes_gradients(ops: Sequence[tf.Operation]) -> bool:
    """Whether ops compute with gradients; they may wait for collectives that a backward pass has as well."""
    stack, seen = list(ops), set(ops)
    while stack:
        op = stack.pop()
        if phase_of(op) == Phase.BACKWARD:
            return True
        new = {tensor.op for tensor in op.inputs} - seen
        seen |= new
        stack.extend(new)
    return False


def _is_restored(write: tf.Operation) -> bool:
    """Whether an op writes what is read from a checkpoint."""
    stack, seen = [tensor.op for tensor in write.inputs[1:]], set()
    while stack:
        op = stack.pop()
        if op.type in op_types.CHECKPOINT_READS:
            return True
        if op not in seen:
            seen.add(op)
            stack.extend(tensor.op for tensor in op.inputs)
    return False


def _op_name(tensor_name: str) -> str:
    return tensor_name.partition(":")[0]
