"""Makes the program of a step from a graph: types of tensors, times of ops, devices and roles.

Copies of ops (replicas, micro batches) have the types of others, so shapes are inferred only once for all. Loops run
once; the tensors that they push on stacks and write into TensorArrays count once per iteration.
"""

import os
from typing import Callable, Collection, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.ir.walks import topological_order
from epl.parallel.costs import kernels
from epl.parallel.costs import loops as costs_loops
from epl.parallel.costs import shapes as costs_shapes
from epl.parallel.costs.folding import Folding
from epl.parallel.costs.forward_nodes import keeps_order
from epl.parallel.costs.op_times import times_on
from epl.parallel.costs.ops import op_cost
from epl.parallel.costs.shapes import TensorType, Types, num_bytes
from epl.planner.machine.op_kinds import Kind
from epl.planner.simulator.program import SimulatedOp, SimulatedOutput, SimulatedProgram
from epl.profiler.estimate import grappler
from epl.profiler.estimate.matched_collectives import collectives_of

TRANSFER = "communication"  # role of tensors from another device

# Ops that bring values into the graph that the caller or the input pipeline holds.
_SOURCES = op_types.DATA_SOURCES | op_types.PLACEHOLDERS
_PERSISTENT = op_types.VARIABLES | {"Const"}
# (op type) -> (the input that grows, the input that is added to it)
_STORES = {"StackPushV2": (0, 1), "TensorArrayWriteV3": (0, 2), "TensorArrayScatterV3": (0, 2),
           "TensorArraySplitV3": (0, 1)}  # fmt: skip


class EstimatedDevices(NamedTuple):
    """Where ops run.

    Attributes:
      names: names of the devices.
      processes: the process of each device.
      of_node: returns the number of the device of a node.
      threads: threads that run ops of the CPU devices of a process at the same time.
    """

    names: Tuple[str, ...]
    processes: Tuple[str, ...]
    of_node: Callable[[int], int]
    threads: int


class EstimatedStep(NamedTuple):
    """The nodes and feeds of a run.

    Attributes:
      nodes: all nodes that run, as nodes of the view.
      fetched: the nodes whose outputs are fetched.
      fed: name of a fed tensor -> shape of the value.
    """

    nodes: Set[int]
    fetched: FrozenSet[int]
    fed: Mapping[str, Sequence[int]]


class StepProgram(NamedTuple):
    """A step as a program.

    Attributes:
      program: the program.
      order: the node of the view for each op; -1 for a transfer.
      types: types of the outputs of the nodes.
      idle: the nodes of the step that TensorFlow does not compute, as no op takes what they make.
      notes: assumptions.
    """

    program: SimulatedProgram
    order: List[int]
    types: Types
    idle: FrozenSet[int]
    notes: Tuple[str, ...]


def make_program(
    tf_graph: tf.Graph,
    view: GraphView,
    step: EstimatedStep,
    devices: EstimatedDevices,
    copies: Mapping[int, int],
    same_as: Mapping[int, int],
    role_of: Callable[[int], str],
    device_type: str,
) -> StepProgram:
    """The program of a step.

    Args:
      tf_graph: the graph.
      view: of it.
      step: the run.
      devices: its devices.
      copies: node that is a copy -> its original.
      same_as: node that is a copy -> a node whose tensors are as large.
      role_of: returns the role of the outputs of a node.
      device_type: "CPU" or "GPU": whose costs apply.
    """
    types, notes = _types(tf_graph, view, step, same_as, copies)
    frames = costs_loops.loop_frames(view)
    ends = _loop_ends(view, step.nodes, frames)
    order = _run_order(view, step.nodes, ends)
    folded = grappler.folded_nodes(tf_graph, view, types, order)
    idle, unshown = grappler.idle_nodes(tf_graph, view, types, step.fetched, order, folded)
    repeated = grappler.repeated_waits(view, order, unshown)
    builder = _Builder(view, step, devices, types, device_type, repeated, unshown, frames, ends)
    for node in order:
        if node in idle or node in folded:
            builder.add_waiting(node)
        else:
            builder.add(node, role_of(node), same_as.get(node, node))
    program = SimulatedProgram(
        builder.ops,
        *_pools(devices),
        fetched=tuple(builder.number[node] for node in sorted(step.fetched) if node in builder.number),
        collectives=tuple(tuple(builder.number[node] for node in ranks) for ranks in collectives_of(view, order)),
    )
    return StepProgram(program, builder.order, types, frozenset(idle), tuple(notes + builder.notes))


def _pools(devices: EstimatedDevices) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """The threads that run the ops of each device: those of its process; on a GPU one stream."""
    keys = [name if _is_gpu(name) else process for name, process in zip(devices.names, devices.processes)]
    pools = list(dict.fromkeys(keys))
    threads = [1 if _is_gpu(key) else devices.threads for key in pools]
    return tuple(pools.index(key) for key in keys), tuple(threads)


def _is_gpu(device: str) -> bool:
    return "GPU" in device.upper()


def _types(
    tf_graph: tf.Graph, view: GraphView, step: EstimatedStep, same_as: Mapping[int, int], copies: Mapping[int, int]
) -> Tuple[Types, List[str]]:
    """Types of all nodes that run, and of their originals; `copies` as for `output_types` of `costs/shapes.py`."""
    needed = {same_as.get(node, node) for node in step.nodes}
    stack = list(needed)
    while stack:
        for producer in view.producers[stack.pop()]:
            producer = same_as.get(producer, producer)
            if producer not in needed:
                needed.add(producer)
                stack.append(producer)
    types, notes = costs_shapes.output_types(tf_graph, view, needed, step.fed, same_as, copies)
    unknown = costs_shapes.still_open(view, types)
    rows = max([shape[0] for shape in step.fed.values() if len(shape)] or [costs_shapes.UNKNOWN_DIMENSION])
    for node in needed:
        if any(output.shape is None or None in output.shape for output in types[node]):
            outputs = tf_graph.get_operation_by_name(view.nodes[copies.get(node, node)].name).outputs
            types[node] = [_closed(output, static.shape, rows) for output, static in zip(types[node], outputs)]
    notes = [note for note in notes if note not in unknown] + costs_shapes.still_open(view, types)
    types.update([(copy, types[node]) for copy, node in same_as.items() if node in types])
    return types, notes


def _loop_ends(view: GraphView, nodes: Set[int], frames: costs_loops.Frames) -> Dict[int, List[int]]:
    """Exit of a loop -> the back edges of the loop; only these put the body before the exit."""
    turns: Dict[Tuple[str, ...], List[int]] = {}
    for node in view.of_types(op_types.NEXT_ITERATIONS):
        if node in nodes and node in frames:
            turns.setdefault(frames[node], []).append(node)
    return {
        node: turns.get(frames[node], []) for node in view.of_types(op_types.EXITS) if node in nodes and node in frames
    }


def _run_order(view: GraphView, nodes: Set[int], ends: Mapping[int, Sequence[int]]) -> List[int]:
    """Each node after its producers, otherwise in the order of creation; passes may add producers created later."""
    back_edges = set(view.of_types(op_types.NEXT_ITERATIONS))
    waiting = {node: sum(p in nodes and p not in back_edges for p in view.producers[node]) for node in nodes}
    exits: Dict[int, List[int]] = {}
    for node, turns in ends.items():
        waiting[node] += len(turns)
        for turn in turns:
            exits.setdefault(turn, []).append(node)
    consumers = view.consumers()

    def released(node: int) -> List[int]:
        return [other for other in (exits.get(node, []) if node in back_edges else consumers[node]) if other in nodes]

    return topological_order(waiting, released)


def _closed(output: TensorType, static: tf.TensorShape, rows: int) -> TensorType:
    """Fills dimensions that inference leaves open from the graph; one that is open there, too, counts as the fed rows.

    This happens in loops, whose shapes TensorFlow infers only while they are built.
    """
    shape = output.shape
    if shape is None and static.ndims is not None:
        shape = tuple(static.as_list())
    if shape is None:
        return output
    known = static.as_list() if static.ndims == len(shape) else [None] * len(shape)
    return TensorType(tuple(_first(size, other, rows) for size, other in zip(shape, known)), output.dtype)


def _first(*sizes: Optional[int]) -> Optional[int]:
    return next((size for size in sizes if size is not None), None)


class _Builder:
    """Appends the ops of a program, each after its producers."""

    def __init__(
        self,
        view: GraphView,
        step: EstimatedStep,
        devices: EstimatedDevices,
        types: Types,
        device_type: str,
        repeated: Collection[Tuple[int, int]],
        unshown: Collection[Tuple[int, int]],
        frames: costs_loops.Frames,
        ends: Mapping[int, Sequence[int]],
    ) -> None:
        self.ops: List[SimulatedOp] = []
        self.order: List[int] = []
        self.number: Dict[int, int] = {}
        self.notes: List[str] = []
        self._view = view
        self._repeated = repeated
        self._unshown = unshown
        self._ends = ends
        self._fed = {name.partition(":")[0] for name in step.fed}
        self._step = step
        self._devices = devices
        self._types = types
        self._times = times_on(device_type)
        self._on_gpu = device_type == "GPU"
        self._transfers: Dict[Tuple[int, int, int], int] = {}
        self._kernels: Dict[int, Tuple[float, bool, int, bool]] = {}
        self._folding = Folding(view, types)
        self._runs = self._loop_runs(frames)

    def _loop_runs(self, frames: costs_loops.Frames) -> Mapping[int, int]:
        view = self._view
        if not frames:
            return {}
        counts = costs_loops.trip_counts(view, self._folding, frames)
        names = sorted({frames[node][-1] for node in self._step.nodes if node in frames})
        self.notes += costs_loops.unbounded_notes(name for name in names if counts.get(name) is None)
        return costs_loops.runs(frames, counts, self._step.nodes)

    def add(self, node: int, role: str, same: int) -> None:
        """The op of a node, and the transfers that bring its inputs; `same` is a node that computes the same."""
        view, types = self._view, self._types
        op_type = view.types[node]
        device = self._devices.of_node(node)
        sources, after = self._inputs(node, device)
        after += tuple(self.number[turn] for turn in self._ends.get(node, ()))
        input_types = [types[p][output] for p, output in data_inputs(view, node)]
        outputs = types[node]
        if same not in self._kernels:
            self._kernels[same] = self._kernel(node, input_types, outputs)
        seconds, cheap, temporary, unmoved = self._kernels[same]
        persistent = view.nodes[node].name in self._fed or op_type in _PERSISTENT | _SOURCES
        if persistent and op_type not in _PERSISTENT and self._on_gpu:
            persistent = not _is_gpu(self._devices.names[device])
        made = []
        for index, output in enumerate(outputs):
            size = 0 if persistent else num_bytes(output)
            alias = -1
            if not persistent:
                alias = 0 if unmoved else kernels.aliased_input(op_type, index, input_types, outputs)
            in_place: Tuple[int, ...] = ()
            if size and alias < 0:
                in_place = tuple(
                    at
                    for at in kernels.in_place_inputs(op_type, index, len(sources))
                    if at < len(sources) and input_types[at].dtype == output.dtype
                )
            made.append(SimulatedOutput(size, alias, in_place, role, persistent))
        stores = (-1, 0)
        if op_type in _STORES:
            grown, added = _STORES[op_type]
            stores = (grown, self._runs.get(node, 1) * num_bytes(input_types[added]))
        self.number[node] = len(self.ops)
        self.order.append(node)
        self.ops.append(SimulatedOp(device, seconds, cheap, sources, after, tuple(made), temporary, stores))

    def add_waiting(self, node: int) -> None:
        """An op that only waits for its producers; its output, if any, is a constant."""
        after = self._numbers(node, self._view.producers[node])
        self.number[node] = len(self.ops)
        self.order.append(node)
        outputs = (SimulatedOutput(0, -1, (), "", True),) * len(self._types[node])
        self.ops.append(SimulatedOp(self._devices.of_node(node), 0.0, True, (), after, outputs, 0, (-1, 0)))

    def _kernel(
        self, node: int, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> Tuple[float, bool, int, bool]:
        """Seconds of an op, whether it is cheap to start, its temporary bytes, and whether it moves nothing."""
        found = self._view.nodes[node]
        cost = op_cost(found, inputs, outputs)
        temporary = kernels.temporary_bytes(found.op, inputs, outputs, self._on_gpu, os.cpu_count() or 1)
        unmoved = found.op == "Transpose" and keeps_order(self._view, self._folding, node)
        return self._times.seconds(cost), self._on_gpu or cost.kind == Kind.FREE, temporary, unmoved

    def _inputs(self, node: int, device: int) -> Tuple[Tuple[Tuple[int, int], ...], Tuple[int, ...]]:
        producers = data_inputs(self._view, node)
        sources = []
        for at, (producer, output) in enumerate(producers):
            number = self.number.get(producer, -1)  # the back edge of a loop comes from a later op
            if (node, at) in self._unshown:
                number = -1
            if number >= 0 and self._is_copied(self.ops[number].device, device, number, output):
                number, output = self._transfer(number, output, device), 0
            sources.append((number, output))
        return tuple(sources), self._numbers(node, self._view.producers[node][len(producers) :])

    def _numbers(self, node: int, producers: Sequence[int]) -> Tuple[int, ...]:
        """The ops of nodes that other ops only wait for; for a NoOp that joins few ops, these ops themselves.

        TensorFlow's optimizer removes a NoOp if that adds no edges.
        """
        found: List[int] = []
        for producer in producers:
            number = self.number.get(producer)
            if number is None or (node, producer) in self._repeated:
                continue
            before, joined = self.ops[number].after, False
            if self._view.types[producer] == "NoOp":
                waiting = sum(consumer in self._step.nodes for consumer in self._view.consumers()[producer])
                joined = len(before) * waiting <= len(before) + waiting
            found += before if joined else [number]
        return tuple(found)

    def _is_copied(self, source: int, target: int, number: int, output: int) -> bool:
        """Whether a tensor is copied on its way: CPU devices of one process share their memory."""
        if source == target or not self._type_bytes(number, output):
            return False
        names, processes = self._devices.names, self._devices.processes
        return _is_gpu(names[source]) or _is_gpu(names[target]) or processes[source] != processes[target]

    def _type_bytes(self, number: int, output: int) -> int:
        return num_bytes(self._types[self.order[number]][output]) if self.order[number] >= 0 else 0

    def _transfer(self, number: int, output: int, device: int) -> int:
        """The op that brings a tensor to a device; all ops that take the tensor there share it."""
        key = (number, output, device)
        if key not in self._transfers:
            size = self._type_bytes(number, output)
            made = SimulatedOutput(size, -1, (), TRANSFER, False)
            seconds = self._times.overhead + size / self._times.bandwidth
            self._transfers[key] = len(self.ops)
            self.order.append(-1)
            self.ops.append(SimulatedOp(device, seconds, True, ((number, output),), (), (made,), 0, (-1, 0)))
        return self._transfers[key]
