"""Floating point operations of a traced step, op by op.

They are counted in the graphs as TensorFlow ran them, with the actual shapes: fused ops, loops and branches count as
they ran. The table of `epl/parallel/costs/ops.py` says what one run of an op costs.
"""

from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.costs.ops import op_cost
from epl.parallel.costs.shapes import TensorType, num_elements
from epl.planner.machine.op_kinds import Kind
from epl.profiler import step_stats
from epl.profiler.fused_ops import main_type, plain_type
from epl.profiler.roles import Role, RoleKind, Roles

# Fused ops whose nodes do not list what is fused into them -> ops per element of the output.
_UNLISTED = {"_FusedBatchNormEx": 1, "_FusedBatchNormGradEx": 1, "Conv2DWithBias": 1}
_SENDS = frozenset(["_Send", "_HostSend"])
_RECEIVES = frozenset(["_Recv", "_HostRecv"])
TRANSFERS = _SENDS | _RECEIVES  # between devices of a process, in the graph as TensorFlow runs it
_MATMULS = frozenset(["MatMul", "SparseMatMul", "BatchMatMul", "BatchMatMulV2"])
OF_MODEL = frozenset([RoleKind.FORWARD, RoleKind.BACKWARD, RoleKind.UPDATE, RoleKind.OTHER])
_UNKNOWN = TensorType(None, tf.float32)


class OpFlops(NamedTuple):
    """What one op of a step computed.

    Attributes:
      op, op_type, device: which op ran, and where; the type as `fused_ops.plain_type` says.
      role: its role in the step.
      runs: its executions; several in a loop.
      flops: of all its executions.
    """

    op: str
    op_type: str
    device: str
    role: Role
    runs: int
    flops: float


class StepFlops(NamedTuple):
    """What a step computed in the session of this process.

    Attributes:
      ops: those that compute anything, in the order of their names.
      scale: replicas of the job for each replica of this process.
      notes: ops that could not be counted exactly, for people.
    """

    ops: Tuple[OpFlops, ...]
    scale: float
    notes: Tuple[str, ...]


def of_model(flops: StepFlops, kinds: Iterable[str] = OF_MODEL) -> List[OpFlops]:
    """The ops of the user's model, each once: those of replica 0 and micro batch 0.

    Ops that the plan adds, such as recomputed activations, are not among them.
    """
    wanted = frozenset(kinds)
    return [
        one for one in flops.ops if not one.role.replica and not one.role.micro_batch and one.role.kind in wanted
    ]  # fmt: skip


def total(ops: Iterable[OpFlops]) -> float:
    """FLOPs of some ops."""
    return sum(one.flops for one in ops)


def count(metadata: tf.RunMetadata, tf_graph: tf.Graph) -> StepFlops:
    """Counts the FLOPs of a traced step.

    Args:
      metadata: of a run with a full trace and `output_partition_graphs`.
      tf_graph: the graph of the session.

    Raises:
      ValueError: the record lacks one of the two.
    """
    if not metadata.partition_graphs or not metadata.step_stats.dev_stats:
        raise ValueError(
            "The tf.RunMetadata has no {}: pass options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, "
            "output_partition_graphs=True) and run_metadata to Session.run.".format(
                "step_stats" if metadata.partition_graphs else "partition_graphs"
            )
        )
    step = _Step(metadata, tf_graph)
    roles = Roles(tf_graph)
    found = []
    unknown: Set[str] = set()
    calls: Set[str] = set()
    for name, (device, runs) in sorted(step.runs.items()):
        node = step.nodes.get(name)
        if node is None:
            continue
        kind, flops = step.cost(node)
        if kind == Kind.UNKNOWN:
            unknown.add(plain_type(node.op))
        if kind == Kind.CALL:
            calls.add(name)
        if flops:
            found.append(OpFlops(name, plain_type(node.op), device, roles.of(name, device), runs, flops * runs))
    return StepFlops(tuple(found), _scale(roles), tuple(_notes(unknown, calls)))


class _Step:
    """The nodes that ran, how often, and the shapes of their outputs."""

    def __init__(self, metadata: tf.RunMetadata, tf_graph: tf.Graph) -> None:
        self._tf_graph = tf_graph
        self.nodes: Dict[str, tf.NodeDef] = {}
        self._sent: Dict[str, str] = {}
        for graph in metadata.partition_graphs:
            for node in graph.node:
                self.nodes[node.name] = node
                if node.op in _SENDS:
                    self._sent[node.attr["tensor_name"].s.decode()] = node.input[0]
        self._outputs: Dict[Tuple[str, int], TensorType] = {}
        self._num_outputs: Dict[str, int] = {}
        self.runs: Dict[str, Tuple[str, int]] = {}  # op -> (device, executions)
        for device, stats in step_stats.node_stats(metadata):
            if not stats.all_start_nanos:  # a kernel on a GPU, or a transfer: listed in addition to the op
                continue
            self.runs[stats.node_name] = (device, self.runs.get(stats.node_name, (device, 0))[1] + 1)
            for output in stats.output:
                self._outputs[stats.node_name, output.slot] = _tensor_type(output.tensor_description)
                count = self._num_outputs.get(stats.node_name, 0)
                self._num_outputs[stats.node_name] = max(count, output.slot + 1)

    def cost(self, node: tf.NodeDef) -> Tuple[str, float]:
        """The kind and the FLOPs of one run of a node."""
        plain = plain_type(node.op)
        main = main_type(plain)
        if node.op in COLLECTIVE_OP_TYPES or main[0] == "_":
            return Kind.FREE, 0.0
        inputs = [self._type(text) for text in node.input if text[0] != "^"]
        count = self._num_outputs.get(node.name, 0)
        outputs = [self._outputs.get((node.name, slot), _UNKNOWN) for slot in range(count)]
        extra = 0.0 if main == plain else _fused_flops(node, plain, inputs, outputs)
        if main != node.op:
            node = tf.NodeDef(name=node.name, op=main, attr=node.attr)
        if main in _MATMULS:
            inputs = _matmul_inputs(node, inputs)
        cost = op_cost(node, inputs, outputs)
        return cost.kind, cost.flops + extra

    def _type(self, text: str) -> TensorType:
        """The known type of an input: as in the step, otherwise as in the graph."""
        name, _, slot = text.partition(":")
        key = (name, int(slot or 0))
        if key in self._outputs:
            return self._outputs[key]
        node = self.nodes.get(name)
        if node is not None and node.op in _RECEIVES:
            tensor = node.attr["tensor_name"].s.decode()
            if tensor in self._sent:
                return self._type(self._sent[tensor])
            return self._static(tensor)  # fed: it has the name of the tensor
        return self._static("{}:{}".format(*key))

    def _static(self, tensor: str) -> TensorType:
        try:
            found = self._tf_graph.get_tensor_by_name(tensor if ":" in tensor else tensor + ":0")
        except (KeyError, ValueError):
            return _UNKNOWN
        return TensorType(None if found.shape.ndims is None else tuple(found.shape.as_list()), found.dtype.base_dtype)


def _tensor_type(description: Any) -> TensorType:
    return TensorType(tuple(dim.size for dim in description.shape.dim), tf.as_dtype(description.dtype).base_dtype)


def _fused_flops(node: tf.NodeDef, plain: str, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> float:
    """FLOPs of what is fused into the main op of a node: each counts once per element of the output."""
    if plain == "Conv2DBackpropFilterWithBias":  # the gradient of the bias: sums of the gradient of the output
        return num_elements(inputs[2].shape)
    count = len(node.attr["fused_ops"].list.s) if "fused_ops" in node.attr else _UNLISTED.get(plain, 0)
    return num_elements(outputs[0].shape) * count


def _matmul_inputs(node: tf.NodeDef, inputs: Sequence[TensorType]) -> List[TensorType]:
    """The inputs; if the first has no known summed dimension, it comes from the second."""
    first, second = inputs[0], inputs[1]
    if first.shape is not None and None not in first.shape:
        return list(inputs)
    if second.shape is None or len(second.shape) < 2:
        return list(inputs)
    summed = second.shape[-1 if _is_set(node, "transpose_b") or _is_set(node, "adj_y") else -2]
    return [TensorType((summed, summed), first.dtype), second]


def _is_set(node: tf.NodeDef, attr: str) -> bool:
    return attr in node.attr and node.attr[attr].b


def _scale(roles: Roles) -> float:
    rewrite = roles.rewrite
    return 1.0 if rewrite is None else rewrite.world_size / rewrite.local_replicas


def _notes(unknown: Set[str], calls: Set[str]) -> List[str]:
    notes = []
    if unknown:
        notes.append("op types without a cost of their own count 1 per element: {}".format(", ".join(sorted(unknown))))
    if calls:
        note = "{} ops call functions ({}, for example), whose bodies do not count"
        notes.append(note.format(len(calls), min(calls)))
    return notes
