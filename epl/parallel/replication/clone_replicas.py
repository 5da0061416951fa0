"""Clones the selected ops for every further local replica, and adds ops that make their variables equal.

Each stage of a replica runs on its own device, except ops marked for the host, which run on the CPU of the same
process. Collectives of a copy have their own rank, random ops their own seed. Ops that the user pinned to the CPU, and
ops that use a shared resource, keep their device.
"""

import re
from typing import Container, Dict, List, Mapping, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import Edit, Leads, clone_nodes
from epl.ir.taskgraph import HOST_ATTR, REPLICA_0_ATTR
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.stages import stages_of_rewritten
from epl.parallel.replication import divide_batches, sync_variables
from epl.parallel.replication.metric_variables import MetricVariables
from epl.parallel.rewriting.context import RewriteContext, local_name
from epl.parallel.rewriting.function_seeds import OwnSeeds
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_CPU = re.compile(r"/(?:device:)?cpu\b", re.IGNORECASE)
_GPU = re.compile(r"/(?:device:)?gpu\b", re.IGNORECASE)
_OwnAttrs = Mapping[int, Sequence[Sequence[Tuple[str, tf.AttrValue]]]]  # as `rank_attributes` gives them


def run(rewrite: RewriteContext) -> None:
    """Places replica 0 on devices, varies its seeds, and clones it."""
    view = rewrite.view
    assert view is not None
    devices = pinned_devices(rewrite, view)
    stages = (
        stages_of_rewritten(view, rewrite.plan.stages, rewrite.stage_of)
        if len(rewrite.plan.stages) > 1
        else [0] * len(view)
    )
    for node, is_hosted in enumerate(view.of_attrs(lambda attrs: HOST_ATTR in attrs)):
        if is_hosted:
            stages[node] += len(rewrite.plan.stages)
            devices.pop(node, None)
    _place_replica_0(rewrite, view, devices, stages)
    devices.update(_with_metrics(rewrite, view, devices))
    seeds = OwnSeeds(view)
    sharded = rewrite.sharded
    own_parts = {} if sharded is None else sharded.rank_attributes(view, rewrite.cloned)
    _vary_seeds_of_replica_0(rewrite, view, seeds, own_parts)
    _resize_shards_of_replica_0(rewrite, view, own_parts)
    copied = rewrite.copied
    cloned = {node for node in rewrite.cloned if view.nodes[node].name not in copied} if copied else rewrite.cloned
    replicas = range(1, rewrite.local_replicas)
    nodes = sync_variables.initialization_nodes(rewrite, view)
    if not replicas:
        rewrite.weights = [] if rewrite.weight is None else [rewrite.weight]
        clone_nodes(rewrite.tf_graph, view, [], [], lambda copy, original: Edit(None, None), nodes)
        return
    targets = [_devices_of(rewrite, replica) for replica in replicas]
    first_rank = rewrite.base_rank + 1
    special = [
        node
        for node in cloned
        if node in devices or view.types[node] in COLLECTIVE_OP_TYPES or seeds.is_random(view.nodes[node])
    ]
    special += [node for node in own_parts if node in cloned]
    reads = frozenset(view.index[name] for name in rewrite.read_once)
    special += [node for node in reads if node in devices]
    edits = [
        {
            node: Edit(devices.get(node, target[stages[node]]), own_parts[node][first_rank + copy])
            if node in own_parts
            else _edit(rewrite, view, seeds, node, devices.get(node, target[stages[node]]), first_rank + copy)
            for node in special
        }
        for copy, target in enumerate(targets)
    ]
    for copy, target in enumerate(targets):
        for name, attrs in divide_batches.own_index(rewrite, first_rank + copy).items():
            edits[copy][view.index[name]] = Edit(target[stages[view.index[name]]], attrs)
    plain = [[Edit(device, None) for device in target] for target in targets]

    def edit(copy: int, original: int) -> Edit:
        return edits[copy].get(original) or plain[copy][stages[original]]

    prefixes = [rewrite.prefix(replica) for replica in replicas]
    nodes += sync_variables.copy_nodes(rewrite, view, prefixes)
    try:
        clone_nodes(
            rewrite.tf_graph,
            view,
            cloned | reads,
            prefixes,
            edit,
            nodes,
            seeds.take_library(),
            leads=Leads(reads, [reader - 1 for reader in rewrite.readers[1:]]),
            copied=copied,
        )
    except ValueError as error:
        if sharded is None or all(len(set(shapes)) == 1 for shapes in sharded.shapes.values()):
            raise
        raise PlanError(
            "Parts of a variable differ in size between the devices, and an update has the size of one of them as a "
            "constant (tf.zeros_like and tf.shape of a variable write one): {} Compute it from the gradient instead, "
            "as gradient * 0.0 is; or choose a size that the number of devices divides.".format(error)
        ) from error
    rewrite.added_functions |= seeds.functions
    if rewrite.weight is not None:
        copies = [prefix + rewrite.weight.name for prefix in prefixes]
        rewrite.weights = [rewrite.weight, *map(rewrite.tf_graph.get_tensor_by_name, copies)]


def _devices_of(rewrite: RewriteContext, replica: int) -> List[str]:
    """The device of each stage of a replica, then the host of each stage."""
    stages = range(len(rewrite.plan.stages))
    return [rewrite.device(stage, replica) for stage in stages] + [rewrite.host_of(stage, replica) for stage in stages]


def pinned_devices(rewrite: RewriteContext, view: GraphView) -> Dict[int, str]:
    """The device of ops that do not move with their replica; ops that do have no entry."""
    host = rewrite.host
    shared = {node: view.nodes[node].device or host for node in view.of_types(op_types.SHARED_STATE)}
    devices = {
        node: host
        for node, proto in enumerate(view.nodes)
        if proto.device and proto.name not in rewrite.built and _CPU.search(proto.device)
    }
    if shared:
        for node, producers in enumerate(view.producers):
            for producer in producers:
                if producer in shared:
                    devices[node] = (local_name(shared[producer]) if local_name(host) == host else "") or host
    if len(rewrite.plan.stages) > 1:
        devices.update(dict.fromkeys(_input_pipeline(rewrite, view, shared), host))
    if rewrite.spans_processes:
        devices.update(dict.fromkeys(view.of_types(op_types.OF_SCRIPT), host))
    return devices


def _with_metrics(rewrite: RewriteContext, view: GraphView, devices: Mapping[int, str]) -> Dict[int, str]:
    """The device of ops that take a metric variable of replica 0: that of the variable, for those of all replicas."""
    metrics = rewrite.graph.state_of(MetricVariables) or MetricVariables()
    variables = [view.index[name] for name in metrics.sums]
    first = rewrite.device(0)
    return {
        taker: devices.get(one, first)
        for one in variables
        for taker in view.consumers()[one]
        if view.takes_data(taker, one)
    }


def _input_pipeline(rewrite: RewriteContext, view: GraphView, shared: Dict[int, str]) -> Set[int]:
    """Shared state and the ops that fill it: all stay on the host, whatever stage they were annotated in."""
    if not shared:
        return set()
    fills = {node for node, producers in enumerate(view.producers) if any(p in shared for p in producers)}
    needed = view.ancestors(fills - rewrite.cloned, lambda node: node in rewrite.cloned)
    variables = set(view.of_types(op_types.VARIABLES))
    return (needed | set(shared)) - rewrite.cloned - variables


def _place_replica_0(rewrite: RewriteContext, view: GraphView, devices: Dict[int, str], stages: Sequence[int]) -> None:
    """Replaces the user's devices by the plan's: GPU ops go to the first local device, and job names are removed."""
    if len(rewrite.plan.stages) > 1:
        _place_stages(rewrite, view, devices, stages)
        return
    first, host = _devices_of(rewrite, 0)
    for node, proto in enumerate(view.nodes):
        if stages[node]:
            wanted = host
        elif proto.device and node not in devices:
            wanted = first if _GPU.search(proto.device) else local_name(proto.device)
        elif proto.device.startswith("/job:"):
            wanted = devices[node]
        else:
            continue
        if wanted != proto.device:
            tf_compat.set_device(rewrite.remember(rewrite.tf_graph.get_operation_by_name(proto.name)), wanted)
            proto.device = wanted


def _place_stages(rewrite: RewriteContext, view: GraphView, devices: Dict[int, str], stages: Sequence[int]) -> None:
    """Places every op of replica 0 on the device of its stage."""
    own = _devices_of(rewrite, 0)
    wanted = [devices.get(node) or own[stages[node]] for node in range(len(view))]
    for proto, device in zip(view.nodes, wanted):
        rewrite.user_devices[proto.name] = proto.device
        proto.device = device
    tf_compat.set_devices(rewrite.tf_graph, ((proto.name, proto.device) for proto in view.nodes))


def _vary_seeds_of_replica_0(rewrite: RewriteContext, view: GraphView, seeds: OwnSeeds, kept: Container[int]) -> None:
    """Gives each worker's replica 0 other seeds, and so other dropout masks; rank 0 keeps those of a single device."""
    if rewrite.base_rank == 0:
        return
    cloned = [node for node in rewrite.cloned if node not in kept and rewrite.is_new(node)]
    random = [view.nodes[node] for node in cloned if seeds.is_random(view.nodes[node])]
    edits = [(node, seeds.edit(node, rank=rewrite.base_rank)) for node in random]
    tf_compat.add_functions(rewrite.tf_graph, seeds.take_library())
    for node, own in edits:
        if own.op:
            raise PlanError(
                "{!r} calls the Defun {!r}, in which ops draw random numbers by a seed: each replica needs others, and "
                "an op that calls a Defun cannot be given another. Use tf.function.".format(node.name, node.op)
            )
        for key, value in own.attrs or ():
            tf_compat.set_attr(rewrite.remember(rewrite.operation(node.name)), key, value)
    rewrite.added_functions |= seeds.functions


def _resize_shards_of_replica_0(rewrite: RewriteContext, view: GraphView, own_parts: _OwnAttrs) -> None:
    """Gives empty shards of replica 0 their shape: the graph was built as if they had elements (`static_shape`)."""
    for node in view.of_types(op_types.VARIABLES):
        for key, value in own_parts[node][rewrite.base_rank] if node in own_parts else ():
            if key == "shape" and view.nodes[node].attr[key] != value:
                tf_compat.set_attr(rewrite.remember(rewrite.operation(view.nodes[node].name)), key, value)


def _edit(rewrite: RewriteContext, view: GraphView, seeds: OwnSeeds, node: int, device: str, rank: int) -> Edit:
    """The changes of a node's copy for `rank`: device, rank in a collective, seed of a random op, output of a print."""
    if REPLICA_0_ATTR in view.nodes[node].attr:
        return Edit(device, [("output_stream", tf.AttrValue(s=b"file:///dev/null"))])
    if view.types[node] in COLLECTIVE_OP_TYPES:
        communicator, own = rewrite.place_in(view.nodes[node].attr["communicator"].s.decode(), rank)
        return Edit(device, [("communicator", tf.AttrValue(s=communicator.encode())), ("rank", tf.AttrValue(i=own))])
    return seeds.edit(view.nodes[node], device, rank)


PASS = Pass(
    "clone_replicas",
    run,
    "replicas",
    provides=names("weights"),
    adds=names("syncs"),
    requires=names("weight cloned read_once stage_of batch_index batch_count collectives"),
)
