"""Metric variables (of tf.metrics and Keras), to which a step adds sums and counts of the rows of its batch.

    replica 0   rows --> count --.           .--> add --> total --.             .--> value
                                 +- barrier -+     |              +-- barrier --+
    replica 1   rows --> count --'           '--> add -----^------'             '--> value

All replicas of a process add to the variable of replica 0, in their order, once all of them have what they add: a run
in which one has no data adds nothing. What is computed after an addition waits for the last one, so every replica has
the value of the rows of all of them. A run of replica 0 alone, such as a fed evaluation, adds to the same variable and
feeds the barriers; in a write by hand, where each replica has all rows, the others add zeros.

A metric variable that is not only added to (a mean that is corrected by each batch, a list of all rows) stays one of
each replica, and is told: `replica_rows.py`. So does, untold, a count of runs, which no value takes next to a sum.
"""

from typing import AbstractSet, Dict, FrozenSet, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_descendants, data_inputs
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView
from epl.parallel.plan.replica_groups import is_one_part
from epl.parallel.replication.batch_weights import without_copied_row
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import RewriteContext, Sibling
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils import tf_compat

# Ops that add to a variable: the position of what they add.
_ADDS = {"AssignAdd": 1, "AssignAddVariableOp": 1, "ScatterAdd": 2, "ResourceScatterAdd": 2}
# Ops that take many variables of which no value is made.
_NO_VALUES = op_types.SUMMARIES | op_types.STATE_QUERIES | op_types.OF_SCRIPT - op_types.PYTHON


class MetricVariables(NamedTuple):
    """The metric variables of a graph; names of ops.

    Attributes:
      sums: the variables that are only added to, and set to values of no batch.
      adds: the ops that add to them.
      updated: the ops that compute values from them after an addition.
      others: the ops that write other metric variables in a step.
    """

    sums: FrozenSet[str] = frozenset()
    adds: FrozenSet[str] = frozenset()
    updated: FrozenSet[str] = frozenset()
    others: FrozenSet[str] = frozenset()


class MetricFeeds(NamedTuple):
    """What runs feed that do not add up over replicas: names of tensors, to be fed True.

    Attributes:
      barriers: name of an add -> its barriers, for runs of replica 0 alone.
      passed: name of an add -> the op that runs after the adds of all replicas.
      all_rows: for runs in which each replica has all rows; "" if there are no adds.
    """

    barriers: Dict[str, Tuple[str, str]]
    passed: Dict[str, str]
    all_rows: str


def find_in(rewrite: RewriteContext, view: GraphView) -> MetricVariables:
    """Finds the metric variables; none unless each replica has one stage, one micro batch, and rows of its own."""
    if not is_one_part(rewrite.graph, rewrite.plan):
        return MetricVariables()
    gradients = boundary_nodes(view, [call for call in rewrite.graph.gradient_calls if call.boundaries])
    writes = find_training_writes(rewrite.tf_graph, view, view.writes(), gradients)
    earlier = rewrite.graph.state_of(MetricVariables) or MetricVariables()
    named = {variable.op.name for variable in tf_compat.metric_variables(rewrite.tf_graph)}
    # An earlier rewriting may have given each replica its own of the others.
    named = {name for name in named if rewrite.is_new(view.index.get(name, -1)) or name in earlier.sums}
    named -= rewrite.global_variables
    found = find(rewrite.tf_graph, view, writes, named)
    left_out: FrozenSet[str] = frozenset()
    while True:
        counts = _counts_of_runs(view, found)
        read_within = _read_within_branches(rewrite.tf_graph, view, found)
        if not counts | read_within:
            return MetricVariables(*[before | now for before, now in zip(earlier, found)])
        named -= counts
        left_out |= read_within
        found = find(rewrite.tf_graph, view, writes, named, left_out)


def find(
    tf_graph: tf.Graph,
    view: GraphView,
    writes: AbstractSet[int],
    named: AbstractSet[str],
    left_out: AbstractSet[str] = frozenset(),
) -> MetricVariables:
    """Finds which metric variables are sums.

    Args:
      tf_graph: the graph.
      view: of it.
      writes: the ops that write variables in a step, not those that initialize them.
      named: names of the ops of the metric variables.
      left_out: of those, which are to be no sums.
    """
    metrics = {node for name, node in view.names(view.of_types(op_types.VARIABLES)).items() if name in named}
    written = {node: metrics.intersection(view.variable_inputs(node)) for node in writes}
    written = {node: variables for node, variables in written.items() if variables}
    no_values = set(view.of_types(_NO_VALUES))
    from_metrics = data_descendants(view, metrics, no_values)
    adding = {node for node in written if view.types[node] in _ADDS}
    others = {one for one in metrics if view.nodes[one].name in left_out}
    for node, variables in written.items():
        in_context = tf_compat.control_flow_context_of(tf_graph.get_operation_by_name(view.nodes[node].name))
        if node in adding:
            keeps = from_metrics.isdisjoint(view.producers[node][1 : _ADDS[view.types[node]] + 1])
        else:
            keeps = _resets(view, node, variables | from_metrics, adding)
        if in_context is not None or not keeps:
            others |= variables
    sums = metrics - others
    while True:  # a value takes sums alone, or none
        from_others = data_descendants(view, others, no_values)
        mixed = {one for one in sums if not from_others.isdisjoint(data_descendants(view, [one], no_values))}
        if not mixed:
            break
        others |= mixed
        sums -= mixed
    adds = {node for node in adding if written[node] <= sums}
    of_batch = data_descendants(view, _data(view), adds)
    updated = (data_descendants(view, sums, no_values) & view.descendants(adds)) - of_batch - sums
    return MetricVariables(
        frozenset(view.names(sums)),
        frozenset(view.names(adds)),
        frozenset(view.names(updated)),
        frozenset(view.names(node for node, variables in written.items() if variables & others)),
    )


def _data(view: GraphView) -> Set[int]:
    return set(view.of_types(op_types.DATA_SOURCES) + view.user_placeholders())


def _resets(view: GraphView, write: int, metrics: AbstractSet[int], adds: AbstractSet[int]) -> bool:
    """Whether a write sets a variable to what is of no batch, or is fed as it is, in no order with adds and reads."""
    if view.types[write] not in op_types.PLAIN_ASSIGNS or not adds.isdisjoint(view.descendants([write])):
        return False
    variable, value = view.producers[write][:2]
    before = view.ancestors([write]) - {write, variable}
    fed = {value}.intersection(view.of_types(op_types.PLACEHOLDERS))
    return before.isdisjoint(metrics) and (before - fed).isdisjoint(_data(view))


def _adds_of(view: GraphView, found: MetricVariables) -> Dict[int, List[int]]:
    """The sums, and the ops that add to them."""
    adds: Dict[int, List[int]] = {view.index[name]: [] for name in sorted(found.sums)}
    for name in sorted(found.adds):
        for variable in view.variable_inputs(view.index[name]):
            adds[variable].append(view.index[name])
    return adds


def _beside(view: GraphView, adds: Dict[int, List[int]]) -> Dict[int, Set[int]]:
    """For each op that adds what is of no batch: those that add what is, to variables that values take with its own."""
    of_batch = data_descendants(view, _data(view), set())
    plain = {add for some in adds.values() for add in some if _added(view, add) not in of_batch}
    if not plain:
        return {}
    no_values = set(view.of_types(_NO_VALUES))
    values = {variable: data_descendants(view, [variable], no_values) for variable in adds}
    return {
        add: {
            other
            for other_variable, some in adds.items()
            if not values[variable].isdisjoint(values[other_variable])
            for other in some
            if other not in plain
        }
        for variable, own in adds.items()
        for add in own
        if add in plain
    }


def _added(view: GraphView, add: int) -> int:
    return view.producers[add][_ADDS[view.types[add]]]


def _counts_of_runs(view: GraphView, found: MetricVariables) -> Set[str]:
    """Names of the variables to which what is of no batch is added, if no value takes them next to one of a batch."""
    adds = _adds_of(view, found)
    beside = _beside(view, adds)
    return {view.nodes[one].name for one, own in adds.items() if own and not any(beside.get(add, own) for add in own)}


def _read_within_branches(tf_graph: tf.Graph, view: GraphView, found: MetricVariables) -> Set[str]:
    """Names of the variables that a branch or a loop reads after an addition: nothing there can wait for all adds."""
    left_out = set()
    for variable, adds in _adds_of(view, found).items():
        for read in _reads_after(view, adds, _reads(view, variable, adds)):
            operation = tf_graph.get_operation_by_name(view.nodes[read].name)
            in_context = tf_compat.control_flow_context_of(operation) is not None
            if in_context or view.types[read] in op_types.REFERENCE_FLOW:
                left_out.add(view.nodes[variable].name)
    return left_out


def _reads(view: GraphView, variable: int, adds: Sequence[int]) -> Dict[int, List[int]]:
    """The ops that take the value of a variable, or its memory, and at which positions."""
    consumers = view.consumers()
    stack = [variable] + [add for add in adds if view.types[add] in op_types.REF_WRITES]
    showing = set(stack)
    found: Dict[int, List[int]] = {}
    while stack:
        node = stack.pop()
        for consumer in consumers[node]:
            changes = view.types[consumer] in op_types.WRITES | op_types.STATE_QUERIES  # their input 0 is no value
            at = [at for at, (one, _) in enumerate(data_inputs(view, consumer)) if one == node and (at or not changes)]
            if at:
                found.setdefault(consumer, []).extend(at)
            if at and view.types[consumer] == "Identity" and consumer not in showing:
                showing.add(consumer)
                stack.append(consumer)
    return found


def _reads_after(view: GraphView, adds: Sequence[int], reads: Dict[int, List[int]]) -> Dict[int, List[int]]:
    """Those of `reads` that need adds, and which."""
    found: Dict[int, List[int]] = {}
    for add in adds:
        for read in sorted(view.descendants([add]).intersection(reads) - {add}):
            found.setdefault(read, []).append(add)
    return found


def run(rewrite: RewriteContext) -> None:
    """Orders the additions of the replicas and what reads after them, and adds what takes replicas out."""
    found = rewrite.graph.state_of(MetricVariables)
    if found is None or rewrite.local_replicas == 1 or not found.adds:
        return
    before = rewrite.graph.state_of(MetricFeeds) or MetricFeeds({}, {}, "")
    rewrite.graph.keep(MetricFeeds, _Sums(rewrite, found, before).add_up())


class _Sums:
    """The sums of a graph whose replicas are cloned."""

    def __init__(self, rewrite: RewriteContext, found: MetricVariables, before: MetricFeeds) -> None:
        assert rewrite.view is not None
        self._rewrite, self._view = rewrite, rewrite.view
        self._adds = _adds_of(self._view, found)
        self._reads = {one: _reads(self._view, one, adds) for one, adds in self._adds.items()}
        self._barriers, self._passed, self._all_rows = dict(before.barriers), dict(before.passed), before.all_rows

    def add_up(self) -> MetricFeeds:
        """Rewires adds and reads; returns what runs may feed."""
        rewrite, view = self._rewrite, self._view
        new = [add for adds in self._adds.values() for add in adds if rewrite.is_new(add)]
        with rewrite.building("metrics"):
            if not self._all_rows:
                self._all_rows = tf.placeholder_with_default(tf.constant(False), [], name="all_rows").name
            values = {add: self._values(add) for add in new}
            beside = _beside(view, self._adds)
            for variable, adds in self._adds.items():
                for add in sorted(set(adds).intersection(new)):
                    # A value may need the add: then its own replicas cannot wait for it.
                    others = beside.get(add, set()).intersection(new)
                    others = {one for one in others if add not in view.ancestors([_added(view, one)])}
                    waits = [value for one in sorted({add} | others) for value in values[one]]
                    self._order(add, waits + self._touching_before(variable, add))
            for variable, adds in self._adds.items():
                self._complete(variable, adds)
        return MetricFeeds(self._barriers, self._passed, self._all_rows)

    def _copies(self, node: int) -> List[tf.Operation]:
        """An op of replica 0 and its copies."""
        replicas = range(self._rewrite.local_replicas if node in self._rewrite.cloned else 1)
        return [self._rewrite.operation(self._rewrite.prefix(one) + self._view.nodes[node].name) for one in replicas]

    def _values(self, add: int) -> List[tf.Operation]:
        """What the replicas add: zeros where all rows are added by replica 0, or a row is that of another replica."""
        rewrite, at = self._rewrite, _ADDS[self._view.types[add]]
        found = []
        for replica, op in enumerate(self._copies(add)):
            value = op.inputs[at]
            with tf.device(value.device):
                kept = tf.identity(value)
                if replica:
                    all_rows = rewrite.tf_graph.get_tensor_by_name(self._all_rows)
                    kept *= tf.cast(tf.logical_not(all_rows), kept.dtype)
                kept = without_copied_row(rewrite, kept, replica)
            tf_compat.set_input(rewrite.remember(op), at, kept)
            found.append(kept.op)
        return found

    def _touching_before(self, variable: int, add: int) -> List[tf.Operation]:
        """What reads or changes the variable, in any replica, before an add does."""
        before = self._view.ancestors([add]) - {add}
        touching = before.intersection([*self._reads[variable], *self._adds[variable]])
        return [op for one in sorted(touching) for op in self._copies(one)]

    def _order(self, add: int, waits_for: Sequence[tf.Operation]) -> None:
        """Has the adds of the replicas wait for ops, and for each other."""
        fed, ready = build_barrier(waits_for)
        adds = self._copies(add)
        for before, op in zip([ready, *adds], adds):
            tf_compat.add_control_inputs(self._rewrite.remember(op), [before])
        fed_after, passed = build_barrier(adds[-1:])
        name = self._view.nodes[add].name
        self._barriers[name], self._passed[name] = (fed, fed_after), passed.name

    def _complete(self, variable: int, adds: Sequence[int]) -> None:
        """Has what reads a variable after adds wait for those of all replicas."""
        rewrite, view = self._rewrite, self._view
        is_ref = view.types[variable] in op_types.REF_VARIABLES
        for read, before in _reads_after(view, adds, self._reads[variable]).items():
            if not rewrite.is_new(read) and not any(map(rewrite.is_new, before)):
                continue
            value = self._value_after(variable, before) if is_ref else None
            for op in self._copies(read):
                rewrite.remember(op)
                if value is None:
                    tf_compat.add_control_inputs(op, self._after(before))
                else:
                    for at in self._reads[variable][read]:
                        tf_compat.set_input(op, at, value)
        for add in adds if is_ref else ():
            if rewrite.is_new(add):  # a fetch of what it returns
                (returned,) = rewrite.operation(view.nodes[add].name).outputs
                rewrite.merged[returned.name] = Sibling(self._value_after(variable, [add]), "")

    def _after(self, adds: Sequence[int]) -> List[tf.Operation]:
        return [self._rewrite.operation(self._passed[self._view.nodes[add].name]) for add in adds]

    def _value_after(self, variable: int, adds: Sequence[int]) -> tf.Tensor:
        """The value of a reference variable after adds; what takes it on another device would copy it before."""
        op = self._rewrite.operation(self._view.nodes[variable].name)
        own = [self._rewrite.operation(self._view.nodes[add].name) for add in adds]
        with op.graph.colocate_with(op, ignore_existing=True), tf.control_dependencies(own + self._after(adds)):
            return tf.identity(op.outputs[0])


PASS = Pass(
    "sum_metrics",
    run,
    "outputs",
    adds=names("merged"),
    requires=names("weights batch_index cloned"),
    after=names("broadcast_variables"),
)
