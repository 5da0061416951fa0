"""What EPL made of a model: its TaskGraphs, schedule, communication, memory and features, as a value.

    plan of the graph ------------------------------------> devices, schedule, features
    a run of the training op, prepared as for the memory
    estimate (`memory_estimate.py`): nodes, shapes, devices
        user's ops, by TaskGraph and phase ---------------> ops, FLOPs
        collectives of replica 0 -------------------------> calls, bytes
        tensors that replica 0 takes from another device -> bytes

Nothing is run. `explanation_report.py` shows it as tables.
"""

from typing import AbstractSet, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir import op_types
from epl.ir.colocation import taskgraph_index
from epl.ir.dataflow import data_inputs
from epl.ir.gradient_boundary import tensors_of
from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR, Phase, TaskGraph
from epl.ir.view import GraphView
from epl.ops.communicator import Communicator
from epl.ops.communicator_groups import SubCommunicators
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel import transformation
from epl.parallel.costs.costs import node_costs
from epl.parallel.costs.shapes import num_bytes
from epl.parallel.plan import explain as plan_line
from epl.parallel.plan.communicators import all_communicators
from epl.parallel.plan.plan import Plan
from epl.parallel.plan.stages import stage_of_taskgraph
from epl.parallel.plan.unequal_scopes import FirstOfGroup, planned_taskgraphs
from epl.parallel.replication.replica_rows import WRITES, ReplicaRows, RowFinding
from epl.parallel.rewriting.context import RewriteContext
from epl.profiler.estimate.estimate import MemoryEstimate, estimate
from epl.profiler.memory_estimate import PreparedRun, prepare_run
from epl.profiler.origins import GraphOrigins, find_origins
from epl.utils.errors import AnnotationError

_PHASES = {Phase.BACKWARD.encode(): Phase.BACKWARD, Phase.APPLY.encode(): Phase.APPLY}
# Kind of a collective -> what a rank sends of the full tensor, given the number of ranks. By a ring, which sends least.
_SENT: Dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
}


class TaskGraphFacts(NamedTuple):
    """A TaskGraph on one replica.

    Attributes:
      index: its number.
      strategy: its annotation.
      stage: its stage.
      devices: its devices in the job, by replica.
      ops: number of the model's ops in a step, those of one micro batch.
      parameters, bytes: number of the trained parameters, and their size; of full variables.
      flops: phase -> floating point operations of a step, all micro batches, loops as often as they run; without
        gradients of inputs that nobody takes. In a split, those of one device.
    """

    index: int  # type: ignore[assignment]  # hides a method of tuple
    strategy: str
    stage: int
    devices: Tuple[str, ...]
    ops: int
    parameters: int
    bytes: int
    flops: Dict[str, float]


class CollectiveFacts(NamedTuple):
    """The collectives of a kind on one communicator that a step runs on replica 0.

    Attributes:
      kind: "all_reduce", for example.
      communicator: its name.
      ranks: number of its ranks.
      calls: number of the collectives.
      bytes: size of the full tensors: what is reduced, or what is there after a gather.
      sent: bytes that a rank sends, by a ring.
    """

    kind: str
    communicator: str
    ranks: int
    calls: int
    bytes: int
    sent: float


class TransferFacts(NamedTuple):
    """The tensors that one device of replica 0 takes from another one in a step.

    Attributes:
      source, target: the devices, as the session names them.
      tensors, bytes: how many, and their size.
    """

    source: str
    target: str
    tensors: int
    bytes: int


class Explanation(NamedTuple):
    """What EPL made of a model.

    Attributes:
      title: the plan in one line.
      plan: the plan.
      taskgraphs, collectives, transfers: see there.
      memory: the memory of a step on the devices of this process.
      origins: what the ops of the graph follow from, and the lines that made them.
      own_rows: what in the step depends on which rows a replica has.
    """

    title: str
    plan: Plan
    taskgraphs: Tuple[TaskGraphFacts, ...]
    collectives: Tuple[CollectiveFacts, ...]
    transfers: Tuple[TransferFacts, ...]
    memory: MemoryEstimate
    origins: GraphOrigins
    own_rows: Tuple[RowFinding, ...] = ()


def explanation(fetches: Any = None, feed_dict: Optional[Dict[Any, Any]] = None) -> Explanation:
    """Explains a step of the annotated model in the default graph; runs nothing.

    Args, Raises: see `epl.explain`. Where `apply_gradients` was not called, `fetches` is by default the gradients.
    """
    tf_graph = tf.get_default_graph()
    graph = Graph.of(tf_graph)
    if graph is None or (graph.rewritten is None and not transformation.needs_transform(graph)):
        raise AnnotationError(
            "There is nothing to explain: the default graph has no annotated model with gradients. Call epl.explain() "
            "after epl.init(), an annotation such as epl.set_default_strategy(epl.replicate(1)), and minimize() or "
            "tf.gradients(), in the graph of the model."
        )
    run = prepare_run(_training_step(graph) if fetches is None else fetches, feed_dict)
    rewrite = graph.rewritten
    assert rewrite is not None
    nodes = run.graph.nodes_of(run.ops, run.fed)
    own = _of_replica_0(run.graph.view, rewrite, nodes)
    return Explanation(
        plan_line.summary(rewrite.plan, rewrite.cluster),
        rewrite.plan,
        _taskgraphs(run, rewrite, own),
        _collectives(run, rewrite, own),
        _transfers(run, own),
        estimate(run.graph, run.step),
        find_origins(rewrite.graph),
        _own_rows(graph, frozenset(run.graph.view.nodes[node].name for node in own)),
    )


def _own_rows(graph: Graph, names: AbstractSet[str]) -> Tuple[RowFinding, ...]:
    """What the named ops write, and what the loss and summaries take, that depends on which rows a replica has."""
    found = graph.state_of(ReplicaRows) or ReplicaRows()
    return tuple(one for one in found.findings if one.kind != WRITES or not names.isdisjoint(one.ops))


def _training_step(graph: Graph) -> List[Any]:
    """The training ops that optimizers made; the gradients if there are none."""
    train_ops = list(graph.tf_graph.get_collection_ref(tf.GraphKeys.TRAIN_OP))
    if train_ops:
        return train_ops
    return [
        tensor for call in graph.gradient_calls for _, gradient in call.boundaries for tensor in tensors_of(gradient)
    ]


def _of_replica_0(view: GraphView, rewrite: RewriteContext, nodes: AbstractSet[int]) -> List[int]:
    """The nodes of a run that the first replica of this process runs."""
    if rewrite.view is None or rewrite.local_replicas == 1:
        return sorted(nodes)
    return sorted(node for node in nodes if view.nodes[node].name in rewrite.view.index)


def _taskgraphs(run: PreparedRun, rewrite: RewriteContext, nodes: Sequence[int]) -> Tuple[TaskGraphFacts, ...]:
    view, plan = run.graph.view, rewrite.plan
    users = [node for node in nodes if view.nodes[node].name not in rewrite.added]
    costs = node_costs(run.graph.tf_graph, view, users, types=run.step.made.types, with_backward=False)
    taskgraph_of = view.of_attrs(lambda attrs: attrs[TASKGRAPH_ATTR].i if TASKGRAPH_ATTR in attrs else -1)
    phase_of = view.of_attrs(lambda attrs: _PHASES.get(attrs[PHASE_ATTR].s, Phase.FORWARD))
    ops: Dict[int, int] = {}
    flops: Dict[int, Dict[str, float]] = {}
    for node in users:
        phase = phase_of[node]
        updated = view.variable_inputs(node) if phase == Phase.APPLY else []
        taskgraph = taskgraph_of[updated[0] if updated else node]  # of updates: that of the variable
        times = plan.num_micro_batch if view.nodes[node].name in rewrite.micro_batched else 1
        ops[taskgraph] = ops.get(taskgraph, 0) + 1
        of_taskgraph = flops.setdefault(taskgraph, dict.fromkeys((Phase.FORWARD, Phase.BACKWARD, Phase.APPLY), 0.0))
        of_taskgraph[phase] += 0.0 if node in run.step.made.idle else times * costs.flops[node]
    parameters = _parameters(rewrite)
    stages = stage_of_taskgraph(plan.stages)
    return tuple(
        TaskGraphFacts(
            one.index,
            _annotation(one),
            stages[one.index],
            plan.stages[stages[one.index]].devices,
            ops.get(one.index, 0),
            *parameters.get(one.index, (0, 0)),
            flops=flops.get(one.index, {}),
        )
        for one in planned_taskgraphs(rewrite.graph.taskgraphs, rewrite.cluster)
        if one.index in stages
    )


def _annotation(taskgraph: TaskGraph) -> str:
    """The annotation of a TaskGraph as a script has it, without names: `split(2) in replicate(1)`."""
    if isinstance(taskgraph.strategy, FirstOfGroup):
        return "replicate({}) on the first of each {}".format(
            taskgraph.strategy.annotated.device_count or 1, taskgraph.strategy.device_count
        )
    outer = [] if taskgraph.outer is None else [taskgraph.outer]
    return " in ".join(f"{one.name_of_kind}({one.device_count or 1})" for one in [taskgraph.strategy] + outer)


def _parameters(rewrite: RewriteContext) -> Dict[int, Tuple[int, int]]:
    """By TaskGraph, the number of trained parameters, and their bytes."""
    shards = {} if rewrite.sharded is None else rewrite.sharded.variables
    found: Dict[int, Tuple[int, int]] = {}
    for variable in rewrite.tf_graph.get_collection_ref(tf.GraphKeys.TRAINABLE_VARIABLES):
        name, index = variable.op.name, taskgraph_index(variable.op) or 0
        shape = tf.TensorShape(shards[name].full_shape) if name in shards else variable.shape
        count, (parameters, size) = shape.num_elements() or 0, found.get(index, (0, 0))
        found[index] = (parameters + count, size + count * variable.dtype.base_dtype.size)
    return found


def _collectives(run: PreparedRun, rewrite: RewriteContext, nodes: Sequence[int]) -> Tuple[CollectiveFacts, ...]:
    view, types = run.graph.view, run.step.made.types
    ranks_of = _ranks_by_communicator(rewrite)
    found: Dict[Tuple[str, str], CollectiveFacts] = {}
    for node in nodes:
        row = COLLECTIVE_OP_TYPES.get(view.types[node])
        if row is None:
            continue
        name = view.nodes[node].attr["communicator"].s.decode()
        ranks = ranks_of[name]
        taken = data_inputs(view, node)[row.first_tensor :]
        size = sum(num_bytes(types[producer][output]) for producer, output in taken)
        size *= ranks if row.kind == "all_gather" else 1
        before = found.get((row.kind, name), CollectiveFacts(row.kind, name, ranks, 0, 0, 0.0))
        found[row.kind, name] = before._replace(
            calls=before.calls + 1, bytes=before.bytes + size, sent=before.sent + size * _SENT[row.kind](ranks)
        )
    return tuple(found.values())


def _ranks_by_communicator(rewrite: RewriteContext) -> Dict[str, int]:
    """Name of a communicator -> the number of its ranks."""
    specs = all_communicators(rewrite.plan) + ([] if rewrite.sharded is None else rewrite.sharded.unopened)
    held = Env.get().held
    specs += [spec for one in held if isinstance(one, SubCommunicators) for spec in one.specs()]
    found = {spec.name: len(spec.rank_process) for spec in specs}
    found.update((one.name, one.world_size) for one in held if isinstance(one, Communicator))
    return found


def _transfers(run: PreparedRun, nodes: Sequence[int]) -> Tuple[TransferFacts, ...]:
    """What replica 0 moves between its devices; a tensor that several ops of a device take moves once."""
    view, types, devices = run.graph.view, run.step.made.types, run.step.devices
    moved = set()
    for node in nodes:
        target = devices.of_node(node)
        for producer, output in data_inputs(view, node):
            if view.types[producer] not in op_types.VARIABLES and devices.of_node(producer) != target:
                moved.add((producer, output, target))
    found: Dict[Tuple[int, int], TransferFacts] = {}
    for producer, output, target in sorted(moved):
        size = num_bytes(types[producer][output])
        source = devices.of_node(producer)
        if size:
            before = found.get((source, target), TransferFacts(devices.names[source], devices.names[target], 0, 0))
            found[source, target] = before._replace(tensors=before.tensors + 1, bytes=before.bytes + size)
    return tuple(found[key] for key in sorted(found))
