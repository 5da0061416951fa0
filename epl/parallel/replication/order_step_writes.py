"""Moves step writes to the end of a step, and keeps a step without data from making them.

A step write is one that needs no data: a global step that the script counts itself, the decay of slots before a sparse
update. TensorFlow may run it at any time in the step. If it runs before a read of the variable, by a learning rate for
example, some stages or replicas use the value of the next step; and it runs even if the data has ended.

    step --> rate --> updates                 step --> rate --> updates --> barrier
      '----> + 1 --> assign            =>       '----> + 1 --> assign <-------'

A step write that updates need cannot come after them. It waits only for the data, or for the gate, which runs after all
replicas of the job have their data:

    data --> gradient --> add rows to m       data --> gradient --> add rows to m
       m * beta --> assign m ---^      =>       '----> barrier --> assign m ---^

A step that is fed has a gate, but no data to wait for. While one replica saves a checkpoint between two steps, no other
one writes what belongs to the next step.

Writes computed from the data of the gradients or from what is fed, of a metric for example, also wait for the gate.
They, and all others but updates, wait for what the step reads of their variables, if the script has no order between
read and write.

Runs without the data, or without all of the updates, feed the barriers: a write by itself needs neither.
"""

import logging
from typing import AbstractSet, Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

from epl.ir import op_types
from epl.ir.control_flow import depths_of, ends_of
from epl.ir.dataflow import data_descendants
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView
from epl.parallel.plan.gradient_groups import find_trainings
from epl.parallel.replication.batch_weights import current_view
from epl.parallel.replication.read_write_races import describe_race, find_races
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import Order, RewriteContext
from epl.parallel.rewriting.data_waits import ends_of_data
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils import tf_compat

logger = logging.getLogger("epl")

_APPLY = Phase.APPLY.encode()


class _Training(NamedTuple):
    """A training of the model; nodes of a view.

    Attributes:
      gradients: the nodes that compute the applied gradients.
      gate: the collective that runs after all replicas have their data; none in a job of one replica.
    """

    gradients: Set[int]
    gate: Set[int]


def run(rewrite: RewriteContext) -> None:
    """Adds barriers between the data, the updates and the step writes of each training."""
    view = rewrite.view = current_view(rewrite)
    trainings = _trainings(rewrite, view)
    gradients: Set[int] = set().union(*[training.gradients for training in trainings])
    writes = find_training_writes(rewrite.tf_graph, view, view.writes(), gradients)
    step_writes = _step_writes(rewrite, view, writes, gradients)
    _order_steps(rewrite, view, trainings, writes, step_writes, gradients)
    _order_reads(rewrite, view, trainings, writes, gradients)


def _order_steps(
    rewrite: RewriteContext,
    view: GraphView,
    trainings: Sequence[_Training],
    writes: Set[int],
    step_writes: Set[int],
    gradients: Set[int],
) -> None:
    """Lets step writes wait for updates, or for data; and writes of the data of a training for its gate."""
    sources = set(view.of_types(op_types.DATA_SOURCES))
    gates: Set[int] = set().union(*[training.gate for training in trainings])
    fed = set(view.user_placeholders())
    ungated = writes - view.descendants(gates) if gates and (sources or fed) else set()
    if not step_writes and not ungated and len(sources) < 2:
        return
    depths = depths_of(view)
    updates = [_updates(view, training, writes) for training in trainings]
    ends = [_ends(view, nodes, depths) for nodes in updates]
    needed = view.ancestors(set().union(*ends))
    late = {write for write in step_writes - needed if depths[write] == (0, 0)}
    for number, training in enumerate(trainings):
        scope = f"step_writes{number}"
        trained = view.ancestors(training.gradients)
        data = trained & sources
        ready = _ends(view, (node for node in data if depths[node][0] == 0), depths)
        if ready or training.gate:
            early = step_writes | (_of_some_data(view, writes, data) if rewrite.is_plain else set())
            early -= view.ancestors(data | training.gate)
            early = {write for write in early if depths[write][0] == 0}  # an op in a loop cannot wait for ops outside
            step = _step(view, training) or ready
            _wait(rewrite, view, early, training.gate or ready, step, scope + "/data", trained)
        if training.gate:
            beside = {w for w in ungated if depths[w][0] == 0 and _takes_only(view, w, sources, data, fed)}
            beside -= view.ancestors(training.gate)
            ungated -= beside
            _wait(rewrite, view, beside, training.gate, _step(view, training), scope + "/same_data")
        _wait(rewrite, view, late, ends[number], updates[number], scope + "/updates")


def _order_reads(
    rewrite: RewriteContext, view: GraphView, trainings: Sequence[_Training], writes: Set[int], gradients: Set[int]
) -> None:
    """Lets writes wait for what the step reads of their variables, where the script leaves the order open; tells it."""
    others = {
        write
        for write in writes - view.descendants(gradients)
        if PHASE_ATTR not in view.nodes[write].attr and view.nodes[write].name not in rewrite.micro_batched
    }
    if not others:
        return
    depths = depths_of(view)
    others = {write for write in others if depths[write][0] == 0}  # an op in a loop cannot wait for ops outside
    told = []
    for number, training in enumerate(trainings):
        trained = view.ancestors(training.gradients)
        for race in find_races(view, others, trained):
            # Not where the end of a branch or a loop with the read needs the write, as another read may by now.
            reads = tuple(r for r in race.reads if race.write not in view.ancestors(_ends(view, [r], depths)))
            if not reads:
                continue
            race = race._replace(reads=reads)
            if view.types[race.variable] in op_types.REF_VARIABLES:
                told.append(describe_race(rewrite.tf_graph, view, race))
            ends = _ends(view, race.reads, depths)
            scope = f"step_writes{number}/reads{race.write}"
            _wait(rewrite, view, {race.write}, ends, _step(view, training) or training.gradients, scope)
    if told and rewrite.cluster.worker_index == min(rewrite.plan.owners):
        logger.warning(
            "The script has no order between reads and writes of a step: %s. TensorFlow runs either first, and the "
            "numbers differ from run to run; EPL lets what the step reads come first. tf.control_dependencies says it "
            "in the script.", "; ".join(dict.fromkeys(told)),
        )  # fmt: skip


def _trainings(rewrite: RewriteContext, view: GraphView) -> List[_Training]:
    """One training per gate; in a job of one replica, one per apply_gradients, or per update without it."""
    if not rewrite.gates:
        calls = rewrite.graph.apply_calls or find_trainings(rewrite.graph)
        return [_Training(boundary_nodes(view, [call]), set()) for call in calls]
    found = {gate.op.name: _Training(set(), {view.index[gate.op.name]}) for gate in rewrite.gates}
    for gate in rewrite.gates:  # groups with one accumulation share the op
        found[gate.op.name].gradients.update(view.index[name] for name in gate.gradients)
    return list(found.values())


def _updates(view: GraphView, training: _Training, writes: Set[int]) -> Set[int]:
    """The writes of the optimizer; without an optimizer, all writes of values computed from the gradients."""
    found = data_descendants(view, training.gradients, set()) & writes
    return {write for write in found if view.nodes[write].attr[PHASE_ATTR].s == _APPLY} or found


def _step_writes(rewrite: RewriteContext, view: GraphView, writes: Set[int], gradients: Set[int]) -> Set[int]:
    """The writes of a training step that need no batch and are not cloned for micro batches."""
    fed = set(view.user_placeholders()) & view.ancestors(gradients)
    with_data = view.descendants(gradients.union(fed, view.of_types(op_types.DATA_SOURCES)))
    copies = range(rewrite.plan.num_micro_batch)
    of_micro_batches = {rewrite.in_micro_batch(name, copy) for name in rewrite.micro_batched for copy in copies}
    return {write for write in writes - with_data if view.nodes[write].name not in of_micro_batches}


def _of_some_data(view: GraphView, writes: Set[int], data: Set[int]) -> Set[int]:
    """The writes that do not need all of `data`. Where there is a gate, they wait for it (see `select_ops`)."""
    return writes - writes.intersection(*[view.descendants([source]) for source in data])


def _step(view: GraphView, training: _Training) -> Set[int]:
    """The nodes that tell a run with gradients of a training: its gate, or all gradients if none is reduced."""
    if training.gate and training.gradients.isdisjoint(view.descendants(training.gate)):
        return training.gradients
    return training.gate


def _takes_only(view: GraphView, write: int, sources: Set[int], data: Set[int], fed: Set[int]) -> bool:
    """Whether a write depends on data or on what is fed, and on no other data than that of a training."""
    taken = view.ancestors([write]) & (sources | fed)
    return bool(taken) and taken - fed <= data


def _wait(
    rewrite: RewriteContext,
    view: GraphView,
    waiting: Set[int],
    ends: Set[int],
    needed: Set[int],
    scope: str,
    trained: AbstractSet[int] = frozenset(),
) -> None:
    """Lets writes wait for `ends`, in runs that include all of `needed`. Each stage of `ends` has one barrier.

    Instead of data sources among `ends`, the barrier waits for their consumers in `trained`.
    """
    waiting = {write for write in waiting if rewrite.is_new(write)}  # a session does not see changes of ops that it has
    names = frozenset(view.names(needed))
    by_stage: Dict[int, List[int]] = {}
    for end in sorted(ends if waiting else ()):
        by_stage.setdefault(rewrite.stage_of.get(view.nodes[end].name, 0), []).append(end)
    for stage, own in sorted(by_stage.items()):
        with rewrite.building(f"{scope}/stage{stage}", stage):
            name, barrier = build_barrier(ends_of_data(rewrite, view, own, trained))
        for write in sorted(waiting):
            tf_compat.add_control_inputs(rewrite.remember(rewrite.operation(view.nodes[write].name)), [barrier])
            view.producers[write].extend(own)  # the barrier is not in the view: edges past it
        rewrite.orders.append(Order((name,), names))


def _ends(view: GraphView, nodes: Iterable[int], depths: Sequence[Tuple[int, int]]) -> Set[int]:
    """The nodes that run after the given ones, or after their branches if these are not taken."""
    return {end for node in nodes for end in ends_of(view, node, depths)}


PASS = Pass(
    "order_step_writes",
    run,
    "replicas",
    adds=names("orders"),
    requires=names("gates micro_batched micro_merged stage_of"),
    after=names("order_scale_updates"),
    plain=True,
)
