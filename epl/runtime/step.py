"""What one Session.run means under a plan: which ops of the other replicas run with it, what is fetched instead.

A Step is worked out once for each set of fetches and feeds, from what the fetches need of replica 0:

    fetches ----> ancestors in replica 0 ----> collectives and writes among them ----> their copies run too
       |
       +--------> merged outputs and the objective are fetched in place of replica 0's value

In a pipeline, the micro batches of replica 0 are part of it; what is written once per micro batch runs for all of them.
The barriers of the schedule order training steps alone: in other runs they are fed, which takes them out. So are those
between groups of updates, in runs that do not update all of their variables.
"""

from typing import Dict, FrozenSet, Hashable, Iterable, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.colocation import phase_of
from epl.ir.graph import first_tensor
from epl.ir.taskgraph import Phase
from epl.parallel.rewriting.context import Rewrite
from epl.parallel.rewriting.data_waits import outputs_taken
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


class Step(NamedTuple):
    """A Session.run as it is really run.

    Attributes:
      fetches: tensors, one for each that was asked for, in the same order.
      targets: ops to run besides.
      uses_replicas: whether other local replicas take part.
      is_collective: whether it needs the other
        processes.
      writes_replica_0_alone: whether it changes variables that the other replicas hold copies of (initializers,
        restore).
      written: what it writes without gradients.
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
      barriers: to be fed, as the run is no step of their training, or does not make all updates of their order.
      unneeded: names of the fed tensors that nothing in the run takes.
      first: whole values of variables in parts, to be had before the run, as it changes variables: parts that are read
        while others are updated would be of two steps. What is fetched, and what the run is to be fed.
      choices: of the values of variables in parts, in which the run is to be fed those that there are.
    """

    fetches: Tuple[tf.Tensor, ...]
    targets: Tuple[tf.Operation, ...]
    uses_replicas: bool
    is_collective: bool
    writes_replica_0_alone: bool
    written: Written
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


class StepFinder:
    """Works out Steps for one rewritten graph."""

    def __init__(self, rewrite: Rewrite) -> None:
        view = rewrite.view
        assert view is not None
        self._rewrite = rewrite
        self._view = view
        self._cache: Dict[Tuple[Hashable, ...], Step] = {}
        self._collectives = {view.index[name] for name in rewrite.collectives}
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
        self._idle_wholes = {view.index[_op_name(name)]: name for name in rewrite.idle_wholes}
        self._fetches = rewrite.graph.state_of(ShardFetches)
        self._counted = {view.index[name] for name in rewrite.counted}
        self._weights = {view.index[weight.op.name] for weight in rewrite.weights[:1]} if self._counted else set()
        sharded = rewrite.sharded
        self._choices = [] if sharded is None else initialized_values(sharded)
        self._updates = rewrite.writes - {view.index[name] for name in self._initializers()}
        updated = view.descendants(self._gradients, self._all_barriers.__contains__) & self._updates
        self._trained_with = view.ancestors(self._gradients | updated)
        self._later_writes = {view.index[_op_name(name)] for name in rewrite.later_writes}
        self._variables = {view.nodes[node].name for node in rewrite.cloned if view.types[node] in op_types.VARIABLES}

    def find(
        self,
        fetches: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        fed: Iterable[tf.Tensor],
        known: Iterable[tf.Tensor] = (),
    ) -> Step:
        """The Step for what was asked.

        Args:
          fetches: tensors asked for.
          targets: ops asked for.
          fed: tensors with a value that the user feeds.
          known: tensors with a value that the session knows, and feeds besides.
        """
        fed_names = frozenset(tensor.name for tensor in fed)
        known_names = frozenset(tensor.name for tensor in known)
        key = (tuple(t.name for t in fetches), tuple(op.name for op in targets), fed_names, known_names)
        step = self._cache.get(key)
        if step is None:
            step = self._cache[key] = self._work_out(fetches, targets, fed_names, known_names)
        return step

    def _work_out(
        self,
        fetches: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        by_user: FrozenSet[str],
        known: FrozenSet[str],
    ) -> Step:
        fed = by_user | known
        rewrite, view = self._rewrite, self._view
        asked = [t.op for t in fetches if t.name not in fed] + list(targets)
        idle = self._idle_barriers(asked, fed) | self._weights
        needed, foreign = self._needed(asked, fed, idle)
        by_hand = self._writes_by_hand(fetches, needed, fed)
        repeats_feeds = bool(by_hand) or (
            rewrite.sharded is not None
            and not needed & (self._gradients | rewrite.writes)
            and self._is_fed_inference(needed, by_user)
            and not self._merges_globally(fetches, needed, fed)
        )
        if repeats_feeds:  # replica 0 has the values of all that is fed: nothing is merged
            fetches = [self._plain_summary(t.op).outputs[t.value_index] for t in fetches]
            targets = [self._plain_summary(op) for op in targets]
            asked = [t.op for t in fetches if t.name not in fed] + list(targets)
            if rewrite.micro_batched:  # so has the first micro batch
                idle = idle | (needed & self._later_writes)
            needed, foreign = self._needed(asked, fed, idle)
        asked_micro = {view.index[op.name] for op in targets if op.name in rewrite.micro_batched}
        later = set() if by_hand else self._later_micro_batches((needed & rewrite.writes) | asked_micro)
        needed |= view.ancestors(later, idle.__contains__)
        touched = needed & (self._collectives | rewrite.writes | self._staging)
        merged = {t.name: rewrite.merged[t.name] for t in fetches if t.name in rewrite.merged and t.name not in fed}
        if repeats_feeds:
            merged = {}
        shown = {rewrite.merged[name] for node, name in rewrite.summarized.items() if node in needed}
        is_training = bool(needed & self._gradients)
        outputs = {view.index[sibling.op] for sibling in shown.union(merged.values()) if sibling.op}
        if is_training:
            outputs |= self._outputs_of_a_training_step(needed, idle)
        touched |= outputs
        touched |= {view.index[op.name] for op in targets if view.index.get(op.name) in rewrite.cloned}
        local_merges = any(not sibling.op for sibling in shown.union(merged.values()))
        together = self._collectives | self._global_writes | self._staging
        # Gradients are of all that is fed, and so is what is asked for beside them.
        alone = not touched & together and not needed & self._all_boundaries
        has_all_data = self._is_fed_inference(needed, by_user) or self._divides_one_batch()
        if alone and has_all_data and self._can_show_plain(asked, fed, idle):
            fetches = [self._plain_summary(t.op).outputs[t.value_index] for t in fetches]
            targets = [self._plain_summary(op) for op in targets]
            touched = set()
            merged = {}
            later = set()
            local_merges = False
            idle = idle | (needed & self._later_writes)
        last = self._last_of(touched, idle)
        extra = self._copies(last)
        if extra:  # TensorFlow may leave out on replica 0 what it finds that no value of the run depends on
            extra += [rewrite.operation(view.nodes[node].name) for node in sorted(last & self._collectives)]
        extra += [rewrite.operation(view.nodes[node].name) for node in sorted(outputs | later)]
        uses_replicas = rewrite.local_replicas > 1 and (bool(touched) or local_merges)
        is_collective = bool(touched & self._collectives)
        return Step(
            fetches=tuple(merged[t.name].tensor if t.name in merged else t for t in fetches),
            targets=tuple(targets) + tuple(extra),
            uses_replicas=uses_replicas,
            is_collective=is_collective,
            writes_replica_0_alone=foreign,
            written=self._written(by_hand, by_user),
            only_stages=bool(needed & self._staging) and not touched & (self._collectives | rewrite.writes),
            shares_feeds=not repeats_feeds
            and (
                uses_replicas
                or is_collective
                or bool(rewrite.micro_batched and (touched or local_merges or needed & self._all_boundaries))
            ),
            repeats_feeds=repeats_feeds,
            differentiates=repeats_feeds and _takes_gradients(asked),
            has_whole_batch=rewrite.batch_count is not None and not uses_replicas,
            counts_rows=self._counted <= needed,
            barriers=self._barrier_tensors(
                (idle - self._weights) & view.ancestors(needed | touched | later, idle.__contains__)
            ),
            unneeded=frozenset(name for name in fed if view.index.get(_op_name(name), -1) not in needed | {-1}),
            first=self._first(fetches, needed) if needed & self._updates else (),
            choices=tuple(choice for choice in self._choices if self._chooses(choice, needed, fed)),
        )

    def _writes_by_hand(self, fetches: Sequence[tf.Tensor], needed: Set[int], fed: FrozenSet[str]) -> Set[int]:
        """The writes of global variables of a run without gradients that reads no data; none if it is no such run.

        Raises:
          FeedError: it merges global outputs, for which what is fed is cut, and the writes take what is fed.
        """
        view = self._view
        writes = needed & self._global_writes & self._updates
        if not writes or needed & (self._gradients | self._all_boundaries) or self._reads_data(needed, fed):
            return set()
        if not self._merges_globally(fetches, needed, fed):
            return writes
        taken = self._taken(writes, fed)
        if not taken:
            return set()
        raise FeedError(
            "{!r} is fed to a run that writes a variable without gradients ({!r}), for which every replica gets all of "
            "it, and that merges a global output, for which each gets its own rows. Run the update by itself.".format(
                taken[0], view.nodes[min(writes)].name
            )
        )

    def _written(self, writes: Set[int], fed: FrozenSet[str]) -> Written:
        """What `writes` without gradients write, given the names of what is fed."""
        view = self._view
        needed = view.ancestors(writes)
        own = any(view.types[n] in op_types.PYTHON or "seed2" in view.nodes[n].attr for n in needed)
        written = {variable for node in writes for variable in view.variable_inputs(node)}
        values = [t for node in sorted(writes) for t in self._rewrite.operation(view.nodes[node].name).inputs]
        differs = (own or bool(self._taken(writes, fed))) and not written.isdisjoint(self._trained_with)
        return Written(tuple(values), own, differs)

    def _taken(self, nodes: Set[int], fed: FrozenSet[str]) -> List[str]:
        """Those of `fed` that nodes need."""
        needed = self._view.ancestors(nodes)
        return sorted(name for name in fed if self._view.index.get(_op_name(name)) in needed)

    def _chooses(self, choice: InitializedValue, needed: Set[int], fed: FrozenSet[str]) -> bool:
        """Whether a run begins something with a variable to which it does not give its initial value itself."""
        index = self._view.index
        asks = any(index[flag.op.name] in needed and flag.name not in fed for flag in choice.flags)
        return asks and index[choice.initializer] not in needed

    def _initializers(self) -> Sequence[str]:
        sharded = self._rewrite.sharded
        return () if sharded is None else sharded.initializers()

    def _first(self, fetches: Sequence[tf.Tensor], needed: Set[int]) -> Tuple[tf.Tensor, ...]:
        rewrite = self._rewrite
        reads = () if self._fetches is None else self._fetches.reads
        wholes = [self._idle_wholes[node] for node in sorted(needed & self._idle_wholes.keys())]
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

    def _barrier_tensors(self, nodes: Set[int]) -> Tuple[tf.Tensor, ...]:
        rewrite = self._rewrite
        return tuple(
            rewrite.tf_graph.get_tensor_by_name(rewrite.prefix(replica) + self._view.nodes[node].name + ":0")
            for replica in range(rewrite.local_replicas)
            for node in sorted(nodes)
            if not replica or node in rewrite.cloned
        )

    def _later_micro_batches(self, nodes: Set[int]) -> Set[int]:
        """The copies of ops of micro batch 0 in the further micro batches of replica 0."""
        rewrite, view = self._rewrite, self._view
        return {
            view.index[rewrite.micro_prefix(copy) + view.nodes[node].name]
            for node in nodes
            if view.nodes[node].name in rewrite.micro_batched
            for copy in range(1, rewrite.plan.num_micro_batch)
        }

    def _needed(self, ops: Sequence[tf.Operation], fed: FrozenSet[str], idle: Set[int]) -> Tuple[Set[int], bool]:
        """What `ops` need of replica 0, not looking beyond `idle`; and whether that changes variables of it alone.

        Ops that the user created after the rewriting are followed op by op until they meet ops that are in the view.
        """
        view = self._view
        known = set()
        foreign = False
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
            if op.type in op_types.WRITES and any(t.op.name in self._variables for t in op.inputs):
                foreign = True
            stack.extend(t.op for t in op.inputs)
            stack.extend(op.control_inputs)
        stop = {view.index[_op_name(name)] for name in fed if _op_name(name) in view.index}
        needed = view.ancestors(known, (stop | idle).__contains__) - (stop & self._idle_wholes.keys())
        return needed, foreign or bool(needed & self._foreign)

    @staticmethod
    def _is_fed(op: tf.Operation, fed: FrozenSet[str]) -> bool:
        return bool(op.outputs) and all(t.name in fed for t in op.outputs)

    def _outputs_of_a_training_step(self, needed: Set[int], idle: Set[int]) -> Set[int]:
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

    def _is_fed_inference(self, needed: Set[int], fed: FrozenSet[str]) -> bool:
        """Whether all data of the run is fed: replica 0 then computes values and metrics on all of it."""
        return bool(fed) and not self._reads_data(needed, fed)

    def _reads_data(self, needed: Set[int], fed: FrozenSet[str]) -> bool:
        """Whether a run reads data, or divides it, which it does to a batch that is fed in its place, too."""
        read = needed & self._readers
        if self._rewrite.batch_count is not None:
            return bool(read)
        return any(not self._is_taken_from(fed, node, needed) for node in read)

    def _is_taken_from(self, fed: FrozenSet[str], node: int, takers: Set[int]) -> bool:
        """Whether all that `takers` take of a data source is fed."""
        op = self._rewrite.operation(self._view.nodes[node].name)
        taken = outputs_taken(self._view, node, takers)
        return bool(taken) and all(op.outputs[position].name in fed for position in taken)

    def _divides_one_batch(self) -> bool:
        """Whether replicas divide a batch, so that replica 0 by itself can have what they have together."""
        return self._rewrite.batch_count is not None and self._rewrite.plan.num_micro_batch == 1

    def _merges_globally(self, fetches: Sequence[tf.Tensor], needed: Set[int], fed: FrozenSet[str]) -> bool:
        """Whether outputs of all processes are asked for: what is fed is shared out then, as in data parallelism."""
        rewrite = self._rewrite
        names = {t.name for t in fetches if t.name in rewrite.merged and t.name not in fed}
        names.update(name for node, name in rewrite.summarized.items() if node in needed)
        return any(rewrite.merged[name].op for name in names)

    def _can_show_plain(self, asked: Sequence[tf.Operation], fed: FrozenSet[str], idle: Set[int]) -> bool:
        """Whether no summary of merged values is needed once those that are asked for show replica 0's."""
        if not self._rewrite.summarized:
            return True
        needed, _ = self._needed([self._plain_summary(op) for op in asked], fed, idle)
        return needed.isdisjoint(self._rewrite.summarized)

    def _plain_summary(self, op: tf.Operation) -> tf.Operation:
        plain = self._rewrite.plain_summaries.get(op.name)
        return op if plain is None else self._rewrite.operation(plain)

    def _last_of(self, nodes: Set[int], idle: Set[int]) -> Set[int]:
        """Those of `nodes` that no other of them needs, not looking beyond `idle`: running these runs all."""
        view = self._view
        before = view.ancestors({p for node in nodes for p in view.producers[node]}, idle.__contains__)
        return (nodes - before) | (nodes & self._looping)

    def _copies(self, nodes: Set[int]) -> List[tf.Operation]:
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


def _op_name(tensor_name: str) -> str:
    return tensor_name.partition(":")[0]
