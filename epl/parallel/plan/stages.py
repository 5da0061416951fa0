"""The stages of a model: TaskGraphs that run on their own device, and the stage of each op.

    TaskGraph 0   replica 0: device 0    replica 1: device 2      stage 0
    TaskGraph 1   replica 0: device 1    replica 1: device 3      stage 1

TaskGraphs that all share their devices (the layout "all") are one stage: that is data parallelism.
"""

from typing import Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.cluster.device_layouts import VirtualDevice
from epl.ir import node_wire, op_types
from epl.ir.colocation import taskgraph_index
from epl.ir.control_flow import data_order
from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR, Phase, TaskGraph
from epl.ir.view import GraphView
from epl.parallel.plan.dedicated_devices import has_dedicated_devices, rank_devices
from epl.parallel.plan.plan import BatchPart, Stage, worker_of
from epl.parallel.plan.unequal_scopes import planned_taskgraphs, unequal_devices, unequal_scopes
from epl.parallel.plan.update_stages import stages_of_updates
from epl.utils.errors import LayoutError, PlanError

_APPLY = node_wire.string(Phase.APPLY.encode())
# Ops that make a handle for an object on their own device.
_LOCAL_HANDLES = frozenset(["StackV2", "TensorArrayV3"])


def plan_stages(graph: Graph, cluster: Cluster) -> Tuple[Tuple[Stage, ...], Tuple[int, ...]]:
    """The stages of an annotated model, and by replica the process that owns it.

    Raises:
      LayoutError: the devices of the job do not fit the TaskGraphs.
      PlanError: the TaskGraphs have different numbers of replicas, or worker 0 owns none.
    """
    taskgraphs = graph.taskgraphs
    annotated, virtual = stage_devices(taskgraphs, cluster)
    if len({device.all_devices for device in virtual}) == 1:
        members = [tuple(taskgraph.index for taskgraph in taskgraphs)]
        devices = [virtual[0].all_devices]  # every device carries a replica
    else:
        members = [tuple(taskgraph.index for taskgraph in stage) for stage in annotated]
        devices = [device.all_devices for device in virtual]
    counts = [len(names) for names in devices]
    if len(set(counts)) > 1:
        raise PlanError(
            "The TaskGraphs have {} devices, one for each model replica: every TaskGraph needs as many. Change the "
            "layout of the cluster.".format(" and ".join(map(str, counts)))
        )
    order = rank_order(devices[0])
    owners = tuple(worker_of(devices[0][replica]) for replica in order)
    stages = tuple(
        Stage(
            indices,
            str(taskgraphs[indices[0]].outer or taskgraphs[indices[0]].strategy),
            tuple(names[replica] for replica in order),
        )
        for indices, names in zip(members, devices)
    )
    if owners[0] != 0:
        raise PlanError(
            "Stage 0 has no device of worker 0: the layout puts it on {}. Worker 0 builds the graph and writes "
            "checkpoints: give stage 0 one of its devices.".format(", ".join(stages[0].devices))
        )
    return stages, owners


def rank_order(devices: Sequence[str]) -> List[int]:
    """The replicas in the order of their ranks, given their devices of stage 0: process after process."""
    return sorted(range(len(devices)), key=lambda replica: (worker_of(devices[replica]), replica))


def plan_batch_parts(graph: Graph, cluster: Cluster, one_for_process: bool = False) -> Tuple[BatchPart, ...]:
    """By rank, the rows of a batch that it has; () if each replica reads its own batches.

    Those of the n devices of `epl.replicate(n)` that are in one process share one batch:

        replicate(4) on 2 workers x 2 devices    rank     0  1    2  3
                                                 reader   0  0    2  2
                                                 part     0  1    0  1   of 2

    If scopes have different n, the largest counts.

    Args:
      graph: the annotated model.
      cluster: the devices.
      one_for_process: whether all replicas of a process share one batch, as with uneven rows.

    Raises:
      LayoutError: the devices of the job are not a multiple of n.
      PlanError: the scopes have numbers that do not go together.
    """
    if not one_for_process and devices_of_replica(graph.taskgraphs, cluster) == 1:
        return ()
    groups = _ranks_of_batches(graph, cluster)
    if one_for_process:
        by_worker: Dict[int, List[int]] = {}
        for (_, worker), ranks in groups.items():
            by_worker.setdefault(worker, []).extend(ranks)
        members = list(by_worker.values())
    else:
        members = list(groups.values())
        if all(len(ranks) == 1 for ranks in members):
            return ()
    parts = {
        rank: BatchPart(min(ranks), index, len(ranks))
        for ranks in members
        for index, rank in enumerate(sorted(ranks))
    }  # fmt: skip
    return tuple(parts[rank] for rank in range(len(parts)))


def batches_of_step(graph: Graph, cluster: Cluster) -> int:
    """How many batches the processes of the job read together in a step in which all replicas have as many rows."""
    return len(_ranks_of_batches(graph, cluster))


def _ranks_of_batches(graph: Graph, cluster: Cluster) -> Dict[Tuple[int, int], List[int]]:
    """The ranks that share one batch where all have as many rows, by replica of `epl.replicate(n)` and process."""
    together = devices_of_replica(graph.taskgraphs, cluster)
    _, virtual = stage_devices(graph.taskgraphs, cluster)
    devices = virtual[0].all_devices
    if together > 1:
        _refuse_remainder(together, devices)
    members: Dict[Tuple[int, int], List[int]] = {}
    for rank, replica in enumerate(rank_order(devices)):
        members.setdefault((replica // together, worker_of(devices[replica])), []).append(rank)
    return members


def _refuse_remainder(together: int, devices: Sequence[str]) -> None:
    if len(devices) % together:
        raise LayoutError(
            "epl.replicate({}) puts one replica of the model on {} devices together, and the job has {} device(s): {}. "
            "Start a number of devices that is a multiple of {}, or write epl.replicate(n) with an n that divides "
            "{}.".format(together, together, len(devices), ", ".join(devices), together, len(devices))
        )


def devices_of_replica(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> int:
    """Number of ranks that share a batch: the n of `epl.replicate(n)`, the largest if scopes have different ones.

    Next to a split on devices of its own it is the number of ranks of the split, if the first scope has several
    devices.

    Raises:
      PlanError: the scopes have numbers that do not go together.
    """
    strategies = [one.outer or one.strategy for one in taskgraphs]
    replicated = [one for one in strategies if one.name_of_kind == "replicate"]
    if has_dedicated_devices(taskgraphs, cluster):
        split = next(one for one in strategies if one.name_of_kind == "split")
        return (split.device_count or 1) if replicated[0].device_count not in (None, 1) else 1
    unequal_scopes(taskgraphs, cluster)  # refuses numbers that do not go together
    return max([one.device_count or 1 for one in replicated], default=1)


def refuse_other_stages(graph: Graph, cluster: Cluster, stages: Sequence[Stage], setting: str) -> None:
    """Raises PlanError if scopes that were opened since variables were sharded have changed the devices of the stages.

    Args:
      graph: the annotated model.
      cluster: the devices.
      stages: the stages at that time.
      setting: the setting that asked for shards.
    """
    now, _ = plan_stages(graph, cluster)
    if [stage.devices for stage in now] != [stage.devices for stage in stages]:
        raise PlanError(
            "The model had {} stage(s) when its variables were cut into parts ({}), and has {} with the scopes that "
            "were opened since then, on other devices. Open all scopes of epl.replicate and epl.split before the first "
            "tf.gradients, minimize or apply_gradients.".format(len(stages), setting, len(now))
        )


def stage_devices(
    taskgraphs: Sequence[TaskGraph], cluster: Cluster
) -> Tuple[List[List[TaskGraph]], List[VirtualDevice]]:
    """The TaskGraphs of each stage, as they are annotated, and its devices.

    Raises:
      LayoutError: the devices of the job do not fit the TaskGraphs.
      PlanError, NotAvailableError: the devices do not fit a split that has devices of its own, or scopes of
        epl.replicate with different numbers of devices.
    """
    unequal = unequal_scopes(taskgraphs, cluster)
    if unequal is not None:
        annotated = _annotated_stages(planned_taskgraphs(taskgraphs, cluster))
        devices = unequal_devices(annotated, unequal, taskgraphs, cluster)
        _refuse_remainder(unequal.most, devices[0].all_devices)
        return annotated, devices
    if not has_dedicated_devices(taskgraphs, cluster):
        annotated = _annotated_stages(taskgraphs)
        try:
            return annotated, cluster.generate_virtual_devices(_device_counts(annotated))
        except LayoutError as error:
            if len(taskgraphs) == 1:
                raise
            raise LayoutError(
                "{} The TaskGraphs are {}: each scope begins one, and so does each call of epl.set_default_strategy "
                "after ops of the model. What belongs together is annotated once.".format(
                    error, ", ".join(str(one.strategy) for one in taskgraphs)
                )
            ) from None
    devices = rank_devices(taskgraphs, cluster)
    return ([list(taskgraphs)] if len(devices) == 1 else [[one] for one in taskgraphs]), devices


def _annotated_stages(taskgraphs: Sequence[TaskGraph]) -> List[List[TaskGraph]]:
    """The TaskGraphs of each stage, by the annotations: a split in a scope of replicate is in the stage of that scope.

    A split next to other TaskGraphs uses the devices of all: there is one stage then.
    """
    if any(one.strategy.name_of_kind == "split" and one.outer is None for one in taskgraphs):
        return [list(taskgraphs)]
    stages: Dict[int, List[TaskGraph]] = {}
    for taskgraph in taskgraphs:
        stages.setdefault(id(taskgraph.outer or taskgraph.strategy), []).append(taskgraph)
    return list(stages.values())


def _device_counts(stages: Sequence[Sequence[TaskGraph]]) -> List[int]:
    """Devices of one model replica, by stage. A split is over devices of several replicas."""
    strategies = [stage[0].outer or stage[0].strategy for stage in stages]
    return [1 if one.name_of_kind == "split" else one.device_count or 1 for one in strategies]


def span_processes(stages: Sequence[Stage], owners: Sequence[int]) -> bool:
    """Whether any replica has a stage in another process than the one that owns it."""
    return any(
        worker_of(device) != owner for stage in stages for owner, device in zip(owners, stage.devices)
    )  # fmt: skip


def device_of_stage(stages: Sequence[Stage]) -> List[int]:
    """Per stage, the device of a model replica that runs it, counted from 0; stages may share one.

    Raises:
      PlanError: the replicas share devices among their stages in different ways.
    """
    patterns = set()
    for replica in range(len(stages[0].devices)):
        places: Dict[str, int] = {}
        patterns.add(tuple(places.setdefault(stage.devices[replica], len(places)) for stage in stages))
    if len(patterns) > 1:
        raise PlanError(
            "The layout gives the stages of one replica their devices in another way than those of another ({}): all "
            "replicas must be alike.".format(", ".join(str(list(pattern)) for pattern in sorted(patterns)))
        )
    return list(patterns.pop())


def stage_of_taskgraph(stages: Sequence[Stage]) -> Dict[int, int]:
    """TaskGraph index -> stage."""
    return {taskgraph: number for number, stage in enumerate(stages) for taskgraph in stage.taskgraphs}


def stage_of_op(op: tf.Operation, stages: Sequence[Stage]) -> int:
    """The stage in which an op was annotated; ops before the first annotation are in stage 0."""
    index = taskgraph_index(op)
    return 0 if index is None else stage_of_taskgraph(stages).get(index, 0)


def stages_of_nodes(view: GraphView, stages: Sequence[Stage]) -> List[int]:
    """The stage of every node of a view.

    It is that of the annotation, except for ops that TensorFlow keeps on the device of another op: ops that are
    colocated with it, and ops that use a variable or the handle of a tensor array or a stack, also through ops that
    pass these on. Other ops of an optimizer are in the stage of the variable that they update.
    """
    indices = stage_of_taskgraph(stages)
    stage_of = {tf.AttrValue(i=index).SerializeToString(): stage for index, stage in indices.items()}
    places = view.of_attrs(lambda attrs: _place(attrs, stage_of))
    applying = {node for node, place in enumerate(places) if place.applies}
    updates: Dict[int, int] = {}
    result, free = _stages_held(view, places, updates)
    while True:  # the updates of variables, with new slots; then the updates of these
        more = stages_of_updates(view, result, free, applying, updates)
        if more == updates:
            return result
        updates = more
        result, free = _stages_held(view, places, updates)


def _stages_held(view: GraphView, places: Sequence["_Place"], updates: Mapping[int, int]) -> Tuple[List[int], Set[int]]:
    """The stage of every node; and the nodes not tied to another one: their stage is annotated, or in `updates`."""
    result = [-1] * len(view)
    free: Set[int] = set()
    holders: Dict[int, int] = {}  # node that is, or passes on, a variable or a handle -> stage
    for node in data_order(view):
        stage, group, _ = places[node]
        anchor = view.index.get(group, -1)
        held = [holders[p] for p in view.producers[node] if p in holders]
        if held:
            stage = held[0]
            if view.passes_on(node):
                holders[node] = stage
        elif anchor >= 0 and result[anchor] >= 0:
            stage = result[anchor]
        else:
            free.add(node)
            stage = updates.get(node, stage)
        if view.types[node] in op_types.VARIABLES or view.types[node] in _LOCAL_HANDLES:
            holders[node] = stage
        result[node] = stage
    return result, free


def stages_of_rewritten(view: GraphView, stages: Sequence[Stage], known: Mapping[str, int]) -> List[int]:
    """The stage of every node: for the user's ops and their copies from `known`, for the plan's ops from their mark."""
    stage_of = stage_of_taskgraph(stages)
    return [
        known[proto.name] if proto.name in known else stage_of.get(proto.attr[TASKGRAPH_ATTR].i, 0)
        for proto in view.nodes
    ]  # fmt: skip


class _Place(NamedTuple):
    """Facts about an op from its attributes.

    Attributes:
      stage: the stage of its annotation.
      group: name of the op that it is colocated with, or "".
      applies: whether apply_gradients created it.
    """

    stage: int
    group: str
    applies: bool


def _place(attrs: node_wire.Attributes, stage_of: Mapping[bytes, int]) -> _Place:
    stage = stage_of.get(attrs.serialized(TASKGRAPH_ATTR), 0)
    return _Place(stage, _group(attrs), attrs.serialized(PHASE_ATTR) == _APPLY)


def _group(attrs: node_wire.Attributes) -> str:
    for group in node_wire.read_strings(attrs.serialized("_class")):
        if group[:5] == b"loc:@":
            return group[5:].decode()
    return ""


def colocated_with(view: GraphView, node: int) -> int:
    """The node that another one is colocated with, or -1."""
    return view.index.get(_group(view.nodes[node].attr), -1)
