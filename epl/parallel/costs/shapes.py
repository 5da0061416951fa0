"""Static shapes of a graph whose batch dimension is open: TensorFlow's own shape inference, with a batch assumed.

After a placeholder or an iterator of unknown batch size nearly every shape contains `?`, and a reshape mixes it with
other dimensions. So this module imports the nodes into a temporary graph, in which the data sources have
`UNKNOWN_DIMENSION` for open dimensions, and TensorFlow infers all other shapes again. In a gather, every rank counts
with as many rows as this one.
"""

from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import DEFAULT_ATTR, RANK_0_ATTR
from epl.ir.view import GraphView
from epl.utils import tf_compat

# The size of a dimension that no shape tells. As the first dimension of a fed tensor it is the batch.
UNKNOWN_DIMENSION = 32

Shape = Optional[Tuple[Optional[int], ...]]  # None: not even the rank is known


class TensorType(NamedTuple):
    shape: Shape
    dtype: tf.DType


Types = Dict[int, List[TensorType]]

_DEFAULTED = "PlaceholderWithDefault"
_GATHERING = frozenset(["EplAllGather", "EplAllToAllV"])
_COUNTS = "/epl_rows"  # suffix after the name of a gather: names a constant

_WITH_WORKSPACE = "FusedBatchNorm"  # its last output is a buffer of the kernel, of unknown size

# The attribute in which a node that brings data into the graph has its shapes, and whether it is a list.
_SHAPE_ATTRS = {"Placeholder": ("shape", False), "IteratorGetNext": ("output_shapes", True),
                "IteratorGetNextSync": ("output_shapes", True), _DEFAULTED: ("shape", False)}  # fmt: skip


def output_types(
    tf_graph: tf.Graph,
    view: GraphView,
    nodes: Collection[int],
    fed: Optional[Mapping[str, Sequence[Optional[int]]]] = None,
    same_as: Optional[Mapping[int, int]] = None,
    copies: Optional[Mapping[int, int]] = None,
) -> Tuple[Types, List[str]]:
    """Shape and dtype of every output of `nodes`, which must include all their ancestors.

    Args:
      tf_graph: the graph.
      view: of it.
      nodes: the nodes whose outputs are needed.
      fed: name of a tensor -> the shape of the fed value; other placeholders have their defaults. None: nothing is
        known about feeds, and only placeholders of EPL itself have their defaults. What differs between ranks is that
        of rank 0 then: all ranks decide the same by these types.
      same_as: node -> a node of `nodes` whose outputs have the same types, and which replaces it as an input.
      copies: node -> the node that it copies; the graph knows more about the shapes of the original.

    Returns:
      The types, with None for dimensions that stay unknown, and the assumptions, for people.
    """
    types = types_of(tf_graph, view, nodes)
    open_sources = _open_sources(view, types)
    if not open_sources:
        return types, still_open(view, types)
    given = {name.partition(":")[0] for name in fed or ()}
    defaults = {
        node
        for node in nodes
        if view.types[node] == _DEFAULTED
        and (fed is not None or DEFAULT_ATTR in view.nodes[node].attr)
        and view.nodes[node].name not in given
    }
    assumed = [view.nodes[n].name for n in open_sources if n not in defaults and view.nodes[n].name not in given]
    source = (assumed or [view.nodes[open_sources[0]].name])[0]
    graph_def = tf.GraphDef(versions=view.graph_def.versions, library=view.graph_def.library)
    for node in sorted(nodes):
        copy = graph_def.node.add()
        copy.CopyFrom(view.nodes[node].to_proto())
        if node in defaults:
            _show(copy, of_rank_0=fed is None)
        _close(copy, fed or {})
        original = (copies or {}).get(node, node)
        if view.types[node] in _GATHERING and original in types:
            _assume_equal_rows(copy, types[original][0].shape)
        if same_as:
            _redirect(copy, view, node, same_as)
    try:
        inferred = _inferred(view, nodes, graph_def)
        while _give_row_counts(view, inferred, graph_def):  # the new shapes may give the rows of another gather
            inferred = _inferred(view, nodes, graph_def)
    except ValueError as error:
        # The model itself assumes another batch size, for example in a reshape; its shapes stay as they are.
        note = "{} does not fit the model with {} for its unknown dimensions ({})"
        refusal = str(error).split("\n")[0]
        return types, [note.format(source, UNKNOWN_DIMENSION, refusal)] + still_open(view, types)
    inferred = {node: _with_noted(outputs, types[node]) for node, outputs in inferred.items()}
    note = "the dimensions that {} leaves open, such as the batch, count as {}"
    return inferred, [note.format(source, UNKNOWN_DIMENSION)][: len(assumed)] + still_open(view, inferred)


def num_elements(shape: Shape) -> int:
    """Elements of a tensor, with UNKNOWN_DIMENSION for unknown dimensions; an unknown rank counts as 1."""
    count = 1
    for size in shape or ():
        count *= UNKNOWN_DIMENSION if size is None else size
    return count


def num_bytes(tensor: TensorType) -> int:
    """Bytes of a tensor in memory. A string counts as 16 bytes, a handle or variant as none."""
    dtype = tensor.dtype.base_dtype
    if dtype in (tf.resource, tf.variant):
        return 0
    return num_elements(tensor.shape) * (16 if dtype == tf.string else dtype.size)


def types_of(tf_graph: tf.Graph, view: GraphView, nodes: Collection[int]) -> Types:
    """Shape and dtype of every output of some nodes, as the graph has them."""
    types = {}
    for node in nodes:
        types[node] = [known_type(*output) for output in tf_compat.output_types(tf_graph, view.nodes[node].name)]
    return types


def known_type(shape: Shape, dtype: tf.DType) -> TensorType:
    """What a graph knows of a tensor, without a rank that is an assumed length."""
    return TensorType(None if shape is None or is_assumed_rank(len(shape)) else shape, dtype)


def _inferred(view: GraphView, nodes: Collection[int], graph_def: tf.GraphDef) -> Types:
    scratch = tf.Graph()
    tf_compat.import_nodes(scratch, graph_def.SerializeToString(), [view.nodes[i].name for i in nodes], [], [])
    return types_of(scratch, view, nodes)


def _show(node: tf.NodeDef, of_rank_0: bool) -> None:
    """Makes an op with its value of a placeholder with a default: that of this rank, or of rank 0 if it differs."""
    node.attr.pop("shape")
    if of_rank_0 and RANK_0_ATTR in node.attr:
        node.op = "Const"
        node.attr["value"].CopyFrom(node.attr[RANK_0_ATTR])
        del node.input[:]
    else:
        node.op = "Identity"
        node.attr["T"].CopyFrom(node.attr.pop("dtype"))


def _with_noted(inferred: Sequence[TensorType], noted: Sequence[TensorType]) -> List[TensorType]:
    """Outputs with the sizes that only `Tensor.set_shape` tells, such as those of tf.py_func."""
    return [TensorType(_merged(one.shape, other.shape), one.dtype) for one, other in zip(inferred, noted)]


def _merged(shape: Shape, other: Shape) -> Shape:
    """A shape, with sizes of the other one where its own are unknown."""
    if shape is None or other is None or len(shape) != len(other):
        return other if shape is None else shape
    return tuple(second if first is None else first for first, second in zip(shape, other))


def is_assumed_rank(rank: Optional[int]) -> bool:
    """Whether a rank is the assumed length of a shape, such as one that is fed: no model has so many dimensions."""
    return rank is not None and rank >= UNKNOWN_DIMENSION


def _is_open(tensor: TensorType) -> bool:
    return tensor.shape is None or None in tensor.shape


def _open_sources(view: GraphView, types: Types) -> List[int]:
    """The data sources with an open dimension."""
    return [
        node
        for node in sorted(types)
        if view.types[node] in _SHAPE_ATTRS and any(t.shape is not None and None in t.shape for t in types[node])
    ]


def still_open(view: GraphView, types: Types) -> List[str]:
    """Names the tensors whose shapes stay unknown; indices and similar tensors are too small to matter."""
    found = sorted(
        n
        for n, outputs in types.items()
        if not view.types[n].startswith(_WITH_WORKSPACE) and any(_is_open(t) and t.dtype.is_floating for t in outputs)
    )
    if not found:
        return []
    note = "{} ops have outputs of unknown shape ({}, for example); an unknown dimension counts as {}"
    return [note.format(len(found), view.nodes[found[0]].name, UNKNOWN_DIMENSION)]


def _redirect(node: tf.NodeDef, view: GraphView, number: int, same_as: Mapping[int, int]) -> None:
    """Makes a node take its inputs from the nodes that replace them."""
    for at, producer in enumerate(view.producers[number]):
        if producer in same_as:
            text = node.input[at]
            name = view.nodes[same_as[producer]].name
            _, colon, output = text.partition(":")
            node.input[at] = "^" + name if text[0] == "^" else name + colon + output


def _assume_equal_rows(node: tf.NodeDef, shape: Shape) -> None:
    """Counts every rank with as many rows as this one, if the graph does not have the rows of all in `shape`."""
    if shape is None or shape[:1] != (None,):
        return
    if node.op == "EplAllGather":
        node.attr["equal_rows"].b = True
    else:  # as many rows come back as were sent
        types = [node.attr["T"].type, tf.int64.as_datatype_enum]
        node.op = "IdentityN"
        node.attr.clear()
        node.attr["T"].list.type.extend(types)


def _give_row_counts(view: GraphView, types: Types, graph_def: tf.GraphDef) -> bool:
    """Replaces numbers of rows from each rank, from which sizes are computed, by constants; whether there are any.

    Args:
      view: of the graph.
      types: the types inferred without the constants.
      graph_def: the graph in which the constants replace outputs of gathers.
    """
    counts = {}
    for node in view.of_types(["EplAllGather"]):
        world, shape = view.nodes[node].attr["world"].i, types[node][0].shape if node in types else None
        if shape and shape[0] is not None and shape[0] % world == 0:
            counts[view.nodes[node].name + ":1"] = [shape[0] // world] * world
    taken = set()
    for node_def in graph_def.node:
        for at, name in enumerate(node_def.input):
            if name in counts:
                taken.add(name)
                node_def.input[at] = name[:-2] + _COUNTS
    for name in sorted(taken):
        value = tf.make_tensor_proto(counts[name], tf.int64)
        attrs = {"value": tf.AttrValue(tensor=value), "dtype": tf.AttrValue(type=tf.int64.as_datatype_enum)}
        graph_def.node.add(name=name[:-2] + _COUNTS, op="Const", attr=attrs)
    return bool(taken)


def _close(node: tf.NodeDef, fed: Mapping[str, Sequence[Optional[int]]]) -> None:
    """Fills in the open dimensions of a data source, and drops shapes that were noted before."""
    node.attr.pop("_output_shapes", None)
    attr, is_list = _SHAPE_ATTRS.get(node.op, ("", False))
    shapes: Sequence[tf.AttrValue] = ()
    if attr in node.attr:
        shapes = node.attr[attr].list.shape if is_list else [node.attr[attr].shape]
    for output, shape in enumerate(shapes):
        given = fed.get(f"{node.name}:{output}")
        if given is not None:
            shape.CopyFrom(tf.TensorShape(given).as_proto())
        for dim in shape.dim:
            if dim.size < 0:
                dim.size = UNKNOWN_DIMENSION
