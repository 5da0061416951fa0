"""The memory estimate of a step: per device the bytes that are always there, and those of ops at the worst moment.

    weights, slots        variables, by their shapes: they stay
    gradients ... updates bytes of ops at the moment at which a device holds most, by role: `simulation.py`

Each device has its own worst moment. The estimate reads the rewritten graph, whose ops and edges contain micro batches,
the order of the schedule, recomputation and collectives.
"""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.graph import Graph
from epl.ir.taskgraph import HOST_ATTR, PHASE_ATTR, Phase
from epl.ir.view import GraphView, variable_bytes
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.planner.machine.collective_algorithms import NCCL_PACK_BYTES
from epl.planner.simulator.engine import simulate
from epl.planner.simulator.memory import Peak
from epl.planner.simulator.program import SimulatedProgram
from epl.profiler.estimate.program import TRANSFER, EstimatedDevices, EstimatedStep, StepProgram, make_program

GRADIENTS, ACTIVATIONS, UPDATES = "gradients", "activations", "updates"
HOST = " (host)"  # follows the name of a device: its host memory, used by `offload.level`
_APPLY = Phase.APPLY.encode()


class DeviceMemory(NamedTuple):
    """What a device holds at the worst moment of a step, in bytes.

    Attributes:
      device: its name.
      weights: trained variables.
      slots: all other variables: those of optimizers, statistics, sums of accumulated gradients.
      gradients: gradients of variables, until they are applied; also clipped, summed and reduced ones.
      activations: all other tensors of the forward and the backward pass.
      communication: tensors of collectives and of transfers between devices.
      updates: tensors of update rules, without the gradients.
      peak: the sum of all these.
      peak_op: name of the op that starts then.
    """

    device: str
    weights: int
    slots: int
    gradients: int
    activations: int
    communication: int
    updates: int
    peak: int
    peak_op: str


class MemoryDifference(NamedTuple):
    """A change of the configuration that lowers the largest peak.

    Attributes:
      config: the key and its value.
      peak: bytes of the device that holds most after the change.
      time: time added to a step, as a fraction of the time of its ops.
      why: the effect of the change, in words.
    """

    config: str
    peak: int
    time: float
    why: str


class MemoryEstimate(NamedTuple):
    """What a step needs on each device of this process.

    Attributes:
      devices: a row for each device.
      changes: changes that would lower the largest peak, the cheapest first; `what_if.py` finds them.
      notes: assumptions.
    """

    devices: Tuple[DeviceMemory, ...]
    changes: Tuple[MemoryDifference, ...]
    notes: Tuple[str, ...]


class StepGraph:
    """A graph as it runs, read once: the device and the role of each node.

    Attributes:
      families: node -> its copy, for each further micro batch, replica, and micro batch of a replica.
      same_as: copy -> the node that it is a copy of.
      alike: copy -> a node whose tensors are as large: that which it is a copy of, or a copy in another replica.
    """

    def __init__(self, tf_graph: tf.Graph) -> None:
        """Reads a graph, which was rewritten or needs no rewriting."""
        graph = Graph.of(tf_graph)
        self.tf_graph = tf_graph
        self.rewrite: Optional[RewriteContext] = None if graph is None else graph.rewritten
        self.view = GraphView(tf_graph)
        by_replica = _families(self.view, self.rewrite)
        self.families = [family for families in by_replica for family in families]
        self.same_as = {copy: node for family in self.families for node, copy in family.items()}
        self.alike = _alike(self.view, by_replica)
        self.calls = [] if graph is None else list(graph.gradient_calls)
        self.gradients: Set[int] = set()  # nodes that compute the gradients of the backward passes
        self._graph = graph
        self._roles = self._find_roles()
        sharded = None if graph is None else graph.state_of(ShardedVariables)
        self._shard_of = sharded.shard_of if sharded is not None else lambda name: name
        trained = tf_graph.get_collection_ref(tf.GraphKeys.TRAINABLE_VARIABLES)
        self._trained = {self._shard_of(variable.op.name) for variable in trained}

    def nodes_of(self, ops: Sequence[str], fed: Mapping[str, Sequence[int]]) -> Set[int]:
        """The nodes that a run of some ops needs, given its feeds."""
        index = self.view.index
        stop = {index[name.partition(":")[0]] for name in fed if name.partition(":")[0] in index}
        return self.view.ancestors([index[name] for name in ops], stop.__contains__)

    def original(self, node: int) -> int:
        """The node that a node is a copy of, or itself."""
        return self.same_as.get(node, node)

    def role_of(self, node: int) -> str:
        """The role of the outputs of a node."""
        return self._roles.get(self.original(node), ACTIVATIONS)

    def is_trained(self, variable: int) -> bool:
        """Whether a variable is trained."""
        return self.view.nodes[self.original(variable)].name in self._trained

    def is_used(self, variable: int) -> bool:
        """Whether a variable ever has a value: one that a shard replaces never gets any."""
        name = self.view.nodes[self.original(variable)].name
        return self._shard_of(name) == name

    def _find_roles(self) -> Dict[int, str]:
        """The roles of the nodes that are neither copies nor activations."""
        view = self.view
        graph = self._graph
        roles: Dict[int, str] = {}
        if graph is not None:
            bounds = boundary_nodes(view, [*graph.gradient_calls, *graph.apply_calls])
            for node in view.descendants(bounds) | self._built_before(bounds):
                roles[node] = GRADIENTS
        for node, phase in enumerate(view.of_attrs(lambda attrs: attrs[PHASE_ATTR].s)):
            if phase == _APPLY and view.types[node] not in op_types.VARIABLES:
                roles[node] = UPDATES
        for node in view.of_types(COLLECTIVE_OP_TYPES):
            roles[node] = TRANSFER
        return roles

    def _built_before(self, bounds: Set[int]) -> Set[int]:
        """The nodes that compute the gradients of a backward pass, and those that the plan added after them: sums,
        casts,
        reductions."""
        view = self.view
        built = self.rewrite.built if self.rewrite is not None else set()
        found = set()
        stack = list(bounds)
        while stack:
            node = stack.pop()
            for producer in [p for p in view.producers[node] if view.takes_data(node, p)]:
                producer = self.original(producer)
                if producer not in found and view.types[producer] not in op_types.VARIABLES:
                    found.add(producer)
                    if view.nodes[producer].name in built:
                        stack.append(producer)
                    else:
                        self.gradients.add(producer)
        return found


_Family = Dict[int, int]  # node -> its copy


def _families(view: GraphView, rewrite: Optional[RewriteContext]) -> List[List[_Family]]:
    """By local replica: its copies, but for replica 0, then those of each further micro batch."""
    if rewrite is None or rewrite.view is None:
        return []
    index = view.index
    names = sorted(rewrite.micro_batched)
    prefixes = [rewrite.micro_prefix(number) for number in range(1, rewrite.plan.num_micro_batch)] if names else []
    further = [{index[name]: index[prefix + name] for name in names} for prefix in prefixes]
    copied = {copy for family in further for copy in family.values()}
    families = [further]
    cloned = [rewrite.view.nodes[node].name for node in sorted(rewrite.cloned)]
    for replica in range(1, rewrite.local_replicas):
        copies = {index[name]: index[rewrite.prefix(replica) + name] for name in cloned}
        own = [{node: copy for node, copy in copies.items() if node not in copied}]
        families.append(
            own + [{node: copies[copy] for node, copy in family.items() if copy in copies} for family in further]
        )
    return families


def _alike(view: GraphView, by_replica: Sequence[Sequence[_Family]]) -> Dict[int, int]:
    """Copy -> a node whose tensors are as large. Replicas whose variables differ in size, as shards may, are not."""
    variables = view.of_types(op_types.VARIABLES)
    first_of: Dict[Tuple[bytes, ...], _Family] = {}
    alike: Dict[int, int] = {}
    for replica, families in enumerate(by_replica):
        copies = families[0] if replica else {}
        sizes = tuple(view.nodes[copies.get(node, node)].attr["shape"].SerializeToString() for node in variables)
        first = first_of.setdefault(sizes, copies)
        for family in families:
            alike.update((copy, first.get(node, node)) for node, copy in family.items() if copy != first.get(node))
    return alike


def find_devices(graph: StepGraph, nodes: Set[int], threads: int) -> EstimatedDevices:
    """The devices of a graph, those of ops without one first; the host is one of its own where weights are kept there.

    Args:
      graph: the graph.
      nodes: what runs.
      threads: that run ops of the CPU devices of a process.
    """
    rewrite, view = graph.rewrite, graph.view
    default = tf.DeviceSpec.from_string("/device:CPU:0" if rewrite is None else rewrite.device(0) or rewrite.host)
    across = rewrite is not None and rewrite.spans_processes
    is_hosted = view.of_attrs(lambda attrs: HOST_ATTR in attrs)
    known: Dict[Tuple[str, bool], str] = {}
    for text, hosted in sorted({(view.nodes[node].device, is_hosted[node]) for node in nodes}):
        spec = default.make_merged_spec(tf.DeviceSpec.from_string(text))
        if not across:
            spec = tf.DeviceSpec(device_type=spec.device_type, device_index=spec.device_index)
        known[text, hosted] = spec.to_string() + (HOST if hosted else "")
    names = list(dict.fromkeys([known.get(("", False), default.to_string())] + list(known.values())))
    processes = [name.rpartition("/device:")[0] for name in names]
    number = {key: names.index(name) for key, name in known.items()}
    return EstimatedDevices(
        tuple(names), tuple(processes), lambda node: number[view.nodes[node].device, is_hosted[node]], threads
    )


class StepEstimate(NamedTuple):
    """A step as a program, and its devices: the input of an estimate."""

    made: StepProgram
    devices: EstimatedDevices


def prepare(graph: StepGraph, ops: Sequence[str], fed: Mapping[str, Sequence[int]], threads: int = 1) -> StepEstimate:
    """The program of a step.

    Args:
      graph: the rewritten graph.
      ops: names of the ops that run: fetches, and what runs with them.
      fed: name of a tensor that is fed -> shape of the value.
      threads: that run ops of the CPU devices of a process at the same time.
    """
    nodes = graph.nodes_of(ops, fed)
    devices = find_devices(graph, nodes, threads)
    fetched = frozenset(graph.view.index[name] for name in ops)
    device_type = "GPU" if any("GPU" in name for name in devices.names) else "CPU"
    step = EstimatedStep(nodes, fetched, fed)
    view, role_of = graph.view, graph.role_of
    made = make_program(graph.tf_graph, view, step, devices, graph.same_as, graph.alike, role_of, device_type)
    return StepEstimate(made, devices)


def estimate(graph: StepGraph, step: StepEstimate, program: Optional[SimulatedProgram] = None) -> MemoryEstimate:
    """The memory of a step on each device.

    Args:
      graph: the graph of the step.
      step: the result of `prepare`.
      program: a changed program of the step, to estimate the effect of a change.
    """
    made = step.made
    peaks = simulate(made.program if program is None else program, ACTIVATIONS).peaks
    persistent, packs = _variables(graph, step.devices), _packs(graph, step)
    rows = []
    for number, (name, peak) in enumerate(zip(step.devices.names, peaks)):
        at = _name_of(graph, made.order, peak.op)
        rows.append(_device_memory(name, persistent[number], packs[number], peak, at))
    return MemoryEstimate(tuple(rows), (), _of_others(graph.rewrite) + made.notes)


def _of_others(rewrite: Optional[RewriteContext]) -> Tuple[str, ...]:
    """What is said of the replicas that are not built."""
    if rewrite is None or rewrite.local_replicas == rewrite.process_replicas:
        return ()
    return (f"of the {rewrite.process_replicas} replicas of this worker, each needs about as much",)


def _variables(graph: StepGraph, devices: EstimatedDevices) -> List[List[int]]:
    """Per device, the bytes of the variables that are trained and of the others."""
    view = graph.view
    sizes = [[0, 0] for _ in devices.names]
    for node in filter(graph.is_used, view.of_types(op_types.VARIABLES)):
        try:
            device = devices.of_node(node)
        except KeyError:
            continue  # on a device on which nothing of the step runs
        sizes[device][0 if graph.is_trained(node) else 1] += variable_bytes(view, node) or 0
    return sizes


def _packs(graph: StepGraph, step: StepEstimate) -> List[int]:
    """Per device, the bytes in which the communicators of a GPU pack small tensors."""
    view = graph.view
    used: List[Set[bytes]] = [set() for _ in step.devices.names]
    for node in [node for node in step.made.order if node >= 0 and view.types[node] in COLLECTIVE_OP_TYPES]:
        device = step.devices.of_node(node)
        if "GPU" in step.devices.names[device]:
            used[device].add(view.nodes[node].attr["communicator"].s)
    return [len(communicators) * NCCL_PACK_BYTES for communicators in used]


def _device_memory(device: str, variables: Sequence[int], packs: int, peak: Peak, op: str) -> DeviceMemory:
    weights, slots = variables
    gradients, activations, communication, updates = (
        peak.by_role.get(role, 0) for role in (GRADIENTS, ACTIVATIONS, TRANSFER, UPDATES)
    )
    total = weights + slots + packs + peak.bytes
    return DeviceMemory(device, weights, slots, gradients, activations, communication + packs, updates, total, op)


def _name_of(graph: StepGraph, order: Sequence[int], op: int) -> str:
    if op < 0:
        return ""
    node = order[op] if op < len(order) else -1
    return "a copy" if node < 0 else graph.view.nodes[node].name
