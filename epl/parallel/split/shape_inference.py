"""Shapes of a region with open dimensions, by TensorFlow's shape inference with sizes in their place.

After an open dimension, reshapes with computed targets (those of tf.tensordot, for example) leave all dimensions
unknown. So the ops are imported into scratch graphs in which open dimensions have a size. An output dimension that is
the same for a small, a medium and a large size does not depend on it.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.costs.shapes import UNKNOWN_DIMENSION
from epl.parallel.sharding.rules.registry import Shape
from epl.parallel.split.region import Region
from epl.utils import tf_compat

# Small and large enough that an op that pads or clips a dimension gives different sizes.
_SIZES = (UNKNOWN_DIMENSION, 3, 1031)

_CONSTANT_ELEMENTS = 1024


class OpenShape(NamedTuple):
    """The shape of a tensor.

    Attributes:
      shape: with None for a size that depends on open dimensions.
      closed: the shape if open dimensions have the size UNKNOWN_DIMENSION.
    """

    shape: Optional[Shape]
    closed: Optional[Shape]


def open_shapes(region: Region) -> Dict[tf.Tensor, OpenShape]:
    """The shapes of the outputs of a region's ops, with one rank's batch; {} if the ops refuse the trial sizes."""
    ops = [op for op in region.ops if op not in region.kept and not _calls_function(op)]
    if not ops:
        return {}
    found: List[Dict[tf.Tensor, Optional[Shape]]] = []
    for size in _SIZES:
        shapes = _inferred(ops, size)
        if shapes is None:
            return {}
        found.append(shapes)
    return {tensor: OpenShape(_agreed([shapes[tensor] for shapes in found]), found[0][tensor]) for tensor in found[0]}


def shape_of(shape: tf.TensorShape) -> Optional[Shape]:
    """The shape as a tuple; None if its number of dimensions is not known."""
    return None if shape.ndims is None else tuple(shape.as_list())


def _agreed(shapes: Sequence[Optional[Shape]]) -> Optional[Shape]:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*known))


def _inferred(ops: Sequence[tf.Operation], size: int) -> Optional[Dict[tf.Tensor, Optional[Shape]]]:
    """The shapes of the outputs of `ops` with this size for open dimensions of outer inputs; None if it is refused."""
    graph_def = tf.GraphDef(versions=ops[0].graph.graph_def_versions)
    names: Dict[tf.Tensor, str] = {}
    inside = set(ops)
    copied: Set[tf.Operation] = set()
    for op in ops:
        for tensor in op.inputs:
            if tensor.op not in inside:
                _add_source(graph_def, names, copied, tensor, size)
        _add_copy(graph_def, names, op)
    scratch = tf.Graph()
    try:
        tf_compat.import_nodes(scratch, graph_def.SerializeToString(), [node.name for node in graph_def.node], [], [])
    except ValueError:  # the model needs another size, in a reshape for example
        return None
    return {
        output: shape_of(copy.shape)
        for op in ops
        for output, copy in zip(op.outputs, scratch.get_operation_by_name(op.name).outputs)
    }


def _add_source(
    graph_def: tf.GraphDef, names: Dict[tf.Tensor, str], copied: Set[tf.Operation], tensor: tf.Tensor, size: int
) -> None:
    """Adds an input from outside: a variable and its reads as they are, a constant, or a placeholder."""
    if tensor in names or tensor.op in copied:
        return
    op = tensor.op
    if op.type in op_types.VARIABLES or (op.type in op_types.READS and op.inputs[0].op.type in op_types.VARIABLES):
        for source in op.inputs:
            _add_source(graph_def, names, copied, source, size)
        copied.add(op)
        _add_copy(graph_def, names, op)
        return
    names[tensor] = f"EplOpen{len(names)}"
    node = graph_def.node.add(name=names[tensor])
    node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
    elements = tensor.shape.num_elements()
    value = None if elements is None or elements > _CONSTANT_ELEMENTS else tf_compat.static_value(tensor)
    if value is not None:
        node.op = "Const"
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tensor.dtype.base_dtype))
        return
    node.op = "Placeholder"
    shape = shape_of(tensor.shape)
    if shape is None:
        node.attr["shape"].shape.unknown_rank = True
    else:
        closed = tf.TensorShape([size if dim is None else dim for dim in shape])
        node.attr["shape"].shape.CopyFrom(closed.as_proto())


def _add_copy(graph_def: tf.GraphDef, names: Dict[tf.Tensor, str], op: tf.Operation) -> None:
    node = graph_def.node.add()
    node.CopyFrom(op.node_def)
    node.attr.pop("_class", None)
    node.attr.pop("_output_shapes", None)
    del node.input[:]
    node.input.extend(names.get(tensor, tensor.name) for tensor in op.inputs)
    node.device = ""


def _calls_function(op: tf.Operation) -> bool:
    return any(value.HasField("func") or value.list.func for value in op.node_def.attr.values())


def closed_shape(shape: Optional[Shape], batch: Optional[int], ranks: int) -> Tuple[int, ...]:
    """A shape for costs: with UNKNOWN_DIMENSION for unknown sizes, and the batches of all ranks."""
    sizes = [UNKNOWN_DIMENSION if size is None else size for size in shape or ()]
    if batch is not None and shape is not None:
        sizes[batch] *= ranks
    return tuple(sizes)
