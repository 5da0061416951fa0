"""What the backward pass of an op computes and keeps: the op is differentiated once, by itself, in a scratch graph.

    forward op, types ----> placeholders -> the op -> its gradient function -> backward ops, their costs
                                                                            `- tensors of the op that they read: kept

Equal ops (type, attributes, shapes, small constants) are differentiated once: a BERT of any depth has some hundred of
them. Only those gradients count that flow on to a variable.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import node_wire
from epl.ir.dataflow import SHAPE_OPS
from epl.parallel.costs.ops import OpRun, kind_of
from epl.parallel.costs.shapes import TensorType, is_assumed_rank
from epl.planner.machine.op_kinds import Kind
from epl.utils import tf_compat

Constant = Optional[Tuple[float, ...]]


class Signature(NamedTuple):
    """What tells an op from another, as far as costs go: equal ones have equal backward passes.

    Attributes:
      type: op type.
      attrs: its attributes, without those that begin with "_", in wire format, sorted.
      inputs, outputs: shapes and dtypes of its data inputs and outputs.
      constants: by input, the elements of a small constant of whole numbers; None for other inputs.
      wanted: by input, whether its gradient is needed.
      used: by output, whether a gradient comes to it.
      variables: by input, shape and dtype of the variable whose handle it is; None for other inputs. () if no input is
        a handle.
    """

    type: str
    attrs: Tuple[bytes, ...]
    inputs: Tuple[TensorType, ...]
    outputs: Tuple[TensorType, ...]
    constants: Tuple[Constant, ...]
    wanted: Tuple[bool, ...]
    used: Tuple[bool, ...]
    variables: Tuple[Optional[TensorType], ...] = ()


class Backward(NamedTuple):
    """The backward pass of one run of an op.

    Attributes:
      runs: the backward ops, those of each kind that takes time.
      kept_inputs, kept_outputs: positions of the tensors of the forward op that they read.
      is_known: whether the op could be differentiated by itself; else the forward op counts once more.
    """

    runs: Tuple[OpRun, ...]
    kept_inputs: Tuple[int, ...]
    kept_outputs: Tuple[int, ...]
    is_known: bool = True


NOTHING = Backward((), (), ())
# The gradient of each of these is another of them, and moves as many bytes; it needs the loop in which it runs.
_ARRAYS = frozenset(["TensorArrayGatherV3", "TensorArrayScatterV3", "TensorArrayConcatV3", "TensorArraySplitV3"])


def has_gradient(dtype: tf.DType) -> bool:
    """Whether gradients pass tensors of this dtype."""
    return dtype.base_dtype.is_floating or dtype.base_dtype.is_complex


def attributes_of(serialized: bytes) -> Tuple[bytes, ...]:
    """The attributes of a node that its gradient may depend on: `Signature.attrs`, from all of them."""
    entries = node_wire.split_attrs(serialized)
    return tuple(
        node_wire.field(node_wire.ATTR, node_wire.field(node_wire.KEY, key.encode()) + entries[key])
        for key in sorted(entries)
        if key[0] != "_"
    )


def differentiate(ops: Sequence[Signature]) -> Dict[Signature, Backward]:
    """The backward passes of ops; an op without gradient has `NOTHING`."""
    found = dict.fromkeys(ops, NOTHING)
    asked = [op for op in found if any(op.wanted) and any(op.used)]
    scratch = tf.Graph()
    with scratch.as_default():
        for number, op in enumerate(asked):
            found[op] = _differentiated(scratch, op, f"op{number}")
    return found


def _differentiated(scratch: tf.Graph, op: Signature, name: str) -> Backward:
    if op.type in _ARRAYS:
        return Backward((own_run(op),), (), ())
    try:
        forward = _build(scratch, op, name)
        gradient = tf_compat.gradient_function(forward)
        if gradient is None:
            return NOTHING
        with tf.name_scope(name + "_backward/"):
            seeds = [_seed(tensor, used) for tensor, used in zip(forward.outputs, op.used)]
            before = tf_compat.last_op_id(scratch)
            gradients = gradient(forward, *seeds)
        if any(
            is_assumed_rank(output.shape.ndims) for op in tf_compat.ops_since(scratch, before) for output in op.outputs
        ):
            raise ValueError("the rank of a tensor depends on data")
    except (
        Exception
    ):  # a gradient function that needs more of the graph than the op, or an op that does not stand alone
        return Backward((own_run(op),), (), (), is_known=False)
    listed = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    roots = [
        part
        for one, wanted in zip(listed, op.wanted)
        if wanted and one is not None
        for part in ([one.values, one.indices] if isinstance(one, tf.IndexedSlices) else [one])
    ]
    return _measured(forward, [tensor.op for tensor in roots], before)


def _measured(forward: tf.Operation, roots: Sequence[tf.Operation], before: int) -> Backward:
    """The backward pass of which the gradients are the `roots`; its ops are those after the op number `before`."""
    kept: Set[tf.Tensor] = set()
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for tensor in waiting.pop().inputs:
            if tensor.op not in seen and tf_compat.op_id(tensor.op) > before:
                seen.add(tensor.op)
                waiting.append(tensor.op)
    ordered = sorted((op for op in seen if tf_compat.op_id(op) > before), key=tf_compat.op_id)
    runs: List[OpRun] = []
    for op in ordered:
        if kind_of(op.type) != Kind.FREE and not _sums_nothing(op):
            inputs, outputs = (tuple(_type(tensor) for tensor in some) for some in (op.inputs, op.outputs))
            runs.append(OpRun(op.node_def, inputs, outputs))
        if op.type not in SHAPE_OPS:
            kept.update(op.inputs)
    return Backward(
        tuple(runs),
        tuple(i for i, tensor in enumerate(forward.inputs) if tensor in kept),
        tuple(i for i, tensor in enumerate(forward.outputs) if tensor in kept),
    )


def _sums_nothing(op: tf.Operation) -> bool:
    """Whether a gradient is summed over no axis, as its tensor was not broadcast: the kernel passes its input on.

    TensorFlow 1.15 has such sums where 2.x has none: in the gradients of batched matmuls and quotients.
    """
    if op.type != "Sum" or op.inputs[1].op.type != "BroadcastGradientArgs":
        return False
    results = [taker.outputs[0].shape for taker in op.outputs[0].consumers() if taker.type == "Reshape"]
    return bool(results) and results[0].num_elements() == op.inputs[0].shape.num_elements() is not None


def _build(scratch: tf.Graph, op: Signature, name: str) -> tf.Operation:
    """The op on placeholders, and on constants where its inputs are."""
    graph_def = tf.GraphDef()
    graph_def.versions.producer = scratch.graph_def_versions.producer
    node = node_of(op, name)
    for position, (given, constant) in enumerate(zip(op.inputs, op.constants)):
        source = graph_def.node.add(name=f"{name}_in{position}")
        source.attr["dtype"].type = given.dtype.base_dtype.as_datatype_enum
        if given.dtype.base_dtype == tf.resource:  # of a variable, as gradients of lookups expect it
            source.op = "VarHandleOp"
            variable = op.variables[position] if op.variables else None
            if variable is None:
                source.attr["dtype"].CopyFrom(node.attr["dtype"])
                source.attr["shape"].shape.unknown_rank = True
            else:
                source.attr["dtype"].type = variable.dtype.as_datatype_enum
                source.attr["shape"].shape.CopyFrom(tf.TensorShape(variable.shape).as_proto())
        elif constant is None:
            source.op = "Placeholder"
            source.attr["shape"].shape.CopyFrom(tf.TensorShape(given.shape).as_proto())
        else:
            source.op = "Const"
            value = tf.make_tensor_proto(constant, given.dtype.base_dtype, shape=given.shape)
            source.attr["value"].tensor.CopyFrom(value)
        node.input.append(source.name)
    graph_def.node.add().CopyFrom(node)
    tf_compat.import_nodes(scratch, graph_def.SerializeToString(), [one.name for one in graph_def.node], [], [])
    built = scratch.get_operation_by_name(name)
    for tensor, known in zip(built.outputs, op.outputs):
        tensor.set_shape(tf.TensorShape(known.shape))
    return built


def own_run(op: Signature) -> OpRun:
    """One run of an op."""
    return OpRun(node_of(op, "op"), op.inputs, op.outputs)


def node_of(op: Signature, name: str) -> tf.NodeDef:
    """The op as a node of that name, without inputs."""
    node = tf.NodeDef.FromString(b"".join(op.attrs))
    node.name, node.op = name, op.type
    return node


def _seed(tensor: tf.Tensor, used: bool) -> Optional[tf.Tensor]:
    """The gradient that comes to an output: zeros where none does, as TensorFlow has it; None for whole numbers."""
    if not has_gradient(tensor.dtype):
        return None
    return tf.placeholder(tensor.dtype.base_dtype, tensor.shape) if used else tf.zeros_like(tensor, optimize=False)


def _type(tensor: tf.Tensor) -> TensorType:
    shape = tensor.shape
    return TensorType(None if shape.ndims is None else tuple(shape.as_list()), tensor.dtype)


def addition(tensor: TensorType, count: int) -> OpRun:
    """The sum of the `count` gradients of a tensor that so many ops take."""
    return OpRun(tf.NodeDef(op="AddN"), (tensor,) * count, (tensor,))
