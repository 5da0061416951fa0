"""The shapes of all tensors that an objective is computed from, which TensorFlow infers from trial sizes of inputs."""

from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.taskgraph import DEFAULT_ATTR
from epl.ir.view import GraphView
from epl.utils import tf_compat

ASKS_SHAPE = frozenset(["Shape", "ShapeN", "Size", "Rank"])
_ITERATORS = ("IteratorGetNext", "IteratorGetNextSync")
_DEFAULTED = "PlaceholderWithDefault"
# Ops whose output has values of an input unchanged.
_MOVES = frozenset(
    ["Cast", "ExpandDims", "Identity", "Reshape", "Split", "Squeeze", "StridedSlice", "Transpose", "Unpack"]
)

Dim = Tuple[str, int]  # name of a tensor that is an input of the model, dimension
Numbers = Dict[Dim, int]
Shape = Optional[Tuple[Optional[int], ...]]  # None: not even the rank is known
Shapes = Dict[str, Shape]  # by the name of a tensor


class ForwardShapes:
    """A GraphDef of the nodes that an objective is computed from, whose sources get trial sizes.

    Attributes:
      inputs: name of a node -> names of the tensors that it takes.
      types: name of a node -> op type.
      taken: names of the tensors that a node takes, and of the objective.
      shapes: of the inputs of the model, as the graph says.
      fed: names of the inputs that a user may feed.
      in_batches: names of the gathers with `batch_dims`: their shapes do not say that the rows stay the same.
      indexed: names of the tensors that a node indexes by a constant in the first dimension, `keep[0]`.
    """

    def __init__(
        self,
        tf_graph: tf.Graph,
        view: GraphView,
        objective: Iterable[str],
        sparse: Sequence[tf.SparseTensor],
        users_tensors: Mapping[str, str],
        ranks: Mapping[str, int],
    ) -> None:
        self._tf_graph = tf_graph
        self._view = view
        self._graph_def = tf.GraphDef(versions=view.graph_def.versions, library=view.graph_def.library)
        self._users_tensors = users_tensors
        self._ranks = ranks
        self._dense_shapes = {one.dense_shape.op.name: one.indices.name for one in sparse}
        self._components = {tensor.name for one in sparse for tensor in (one.indices, one.values)}
        self._sources: Dict[str, tf.NodeDef] = {}
        self.inputs: Dict[str, List[str]] = {}
        self.types: Dict[str, str] = {}
        self.shapes: Shapes = {}
        self.fed: Set[str] = set()
        self.in_batches: Set[str] = set()
        self.indexed: Set[str] = set()
        self.taken = {self._meant(name) for name in objective}
        roots = [_node_name(name) for name in self.taken]
        self._of_weights = self._computed_from_weights(roots)
        for name, inputs in self._reached(roots, lambda name: name in self._of_weights).items():
            if name in self._of_weights:
                self._add_given(name)
            else:
                self._add(view.nodes[view.index[name]].to_proto(), inputs)

    def _reached(self, roots: Sequence[str], stop: Callable[[str], bool]) -> Dict[str, List[str]]:
        """The roots and the nodes whose data they take, up to those of `stop`; with the tensors that each one takes."""
        found: Dict[str, List[str]] = {}
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name not in found:
                inputs = self._view.nodes[self._view.index[name]].input
                found[name] = [] if stop(name) else [self._meant(one) for one in inputs if one[0] != "^"]
                stack += [_node_name(tensor) for tensor in found[name]]
        return found

    def _computed_from_weights(self, roots: Sequence[str]) -> Set[str]:
        """The nodes that compute with variables and no data, such as all-gathers of shards: only their shapes count."""
        view = self._view
        inputs = self._reached(roots, lambda name: False)
        types = {name: view.types[view.index[name]] for name in inputs}
        variables = {name for name, op_type in types.items() if op_type in op_types.VARIABLES}
        reads = {
            name
            for name, tensors in inputs.items()
            if types[name] in op_types.READS and _node_name(tensors[0]) in variables
        }
        sources = set(view.of_types(op_types.DATA_SOURCES) + view.user_placeholders())
        data = _depending(inputs, [name for name in inputs if view.index[name] in sources])
        return _depending(inputs, variables) - variables - reads - data

    def _add_given(self, name: str) -> None:
        """Adds a placeholder for each output of a node, with the shape that the graph says."""
        for at, output in enumerate(self._tf_graph.get_operation_by_name(name).outputs):
            node = self._graph_def.node.add(name=_given(f"{name}:{at}"), op="Placeholder")
            node.attr["dtype"].type = output.dtype.base_dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(output.shape.as_proto())
            self.inputs[node.name], self.types[node.name] = [], node.op

    def _meant(self, name: str) -> str:
        tensor = name if ":" in name else name + ":0"
        return self._users_tensors.get(tensor, tensor)

    def _add(self, node: tf.NodeDef, inputs: Sequence[str]) -> None:
        inputs = [_given(tensor) if _node_name(tensor) in self._of_weights else tensor for tensor in inputs]
        for attr in ("_output_shapes", "_class"):
            node.attr.pop(attr, None)
        if node.op == _DEFAULTED and DEFAULT_ATTR in node.attr:
            node.op = "Identity"
            node.attr["T"].CopyFrom(node.attr.pop("dtype"))
            node.attr.pop("shape")
        elif node.op == _DEFAULTED:
            node.op, inputs = "Placeholder", []
        del node.input[:]
        node.input.extend(inputs)
        node.device = ""
        self.inputs[node.name], self.types[node.name] = inputs, node.op
        self.taken.update(inputs)
        if "batch_dims" in node.attr and node.attr["batch_dims"].i:
            self.in_batches.add(node.name)
        if node.op == "StridedSlice" and node.attr["shrink_axis_mask"].i & 1 and self._is_constant(inputs[1]):
            self.indexed.add(inputs[0])
        copy = self._graph_def.node.add()
        copy.CopyFrom(node)
        if node.op == "Placeholder":
            self._add_fed(copy)
        elif node.op == "Const" and node.name in self._dense_shapes:
            self._add_sparse(node.name, tuple(int(size) for size in tf.make_ndarray(node.attr["value"].tensor)))
        elif node.op in _ITERATORS:
            self._sources[node.name] = copy
            shapes = node.attr["output_shapes"].list.shape
            self.shapes.update((f"{node.name}:{at}", _as_tuple(shape)) for at, shape in enumerate(shapes))

    def _add_fed(self, node: tf.NodeDef) -> None:
        self._sources[node.name] = node
        name, shape = node.name + ":0", _as_tuple(node.attr["shape"].shape)
        if node.name in self._dense_shapes:
            rank = shape[0] if shape else None
            rank = self._ranks.get(self._dense_shapes[node.name]) if rank is None else rank
            self._add_sparse(node.name, None if rank is None else (None,) * rank)
            return
        if shape is None and name in self._ranks:
            shape = (None,) * self._ranks[name]
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        self.shapes[name] = shape
        if name not in self._components:
            self.fed.add(name)

    def _add_sparse(self, dense_shape: str, shape: Shape) -> None:
        indices = self._dense_shapes[dense_shape]
        self.shapes[_dense(indices)] = shape
        self.fed.add(indices)

    def open_dims(self, opens_known: bool) -> Iterator[Dim]:
        """The dimensions that get a number: unknown ones, and with `opens_known` first ones of placeholders."""
        for name, shape in sorted(self.shapes.items()):
            for dim, size in enumerate(shape or ()):
                if size is None or (opens_known and dim == 0 and name in self.fed):
                    yield name, dim

    def numbers_of(self, name: str, numbers: Numbers) -> Tuple[int, ...]:
        """The number, or size, of each dimension of a placeholder of known rank."""
        key = self._key(name)
        return tuple(numbers.get((key, dim), size or 0) for dim, size in enumerate(self.shapes[key] or ()))

    def is_open(self, name: str) -> bool:
        """Whether a placeholder has an unknown first dimension."""
        shape = self.shapes[self._key(name)]
        return not shape or shape[0] is None

    def takes_rows(self, gather: str) -> bool:
        """Whether a gather picks along the first dimension."""
        if len(self.inputs[gather]) < 3:  # the others have no axis
            return True
        axis = self.constant(self.inputs[gather][2])
        return axis is not None and int(axis) == 0

    def constant(self, tensor: str) -> Optional[np.ndarray]:
        """The value of a constant; None of anything else."""
        if not self._is_constant(tensor):
            return None
        node = self._view.nodes[self._view.index[_node_name(tensor)]].to_proto()
        return tf.make_ndarray(node.attr["value"].tensor)

    def _is_constant(self, tensor: str) -> bool:
        node = self._view.index.get(_node_name(tensor))
        return node is not None and self._view.types[node] == "Const"

    def as_fed(self, tensor: str) -> Set[str]:
        """The names of the placeholders whose fed values a tensor has unchanged."""
        name = _node_name(tensor)
        if self.types[name] in _MOVES:
            return set().union(*[self.as_fed(one) for one in self.inputs[name]])
        return {name + ":0"} & self.fed

    def is_data(self, node: str) -> bool:
        """Whether a node of this name gives data: a placeholder, an iterator, or a queue."""
        is_given = node not in self._view.index
        return not is_given and (self.types[node] == "Placeholder" or self.types[node] in op_types.DATA_SOURCES)

    def _key(self, name: str) -> str:
        """The name of a placeholder in `shapes`."""
        return _dense(name) if _dense(name) in self.shapes else name

    def inferred(self, numbers: Numbers) -> Shapes:
        """The shapes of all tensors for these sizes of the unknown dimensions.

        Raises:
          ValueError: the sizes do not fit.
        """
        for name, node in self._sources.items():
            if node.op in _ITERATORS:
                for at, shape in enumerate(node.attr["output_shapes"].list.shape):
                    _fill(shape, f"{name}:{at}", numbers)
            elif name in self._dense_shapes:
                self._fill_dense_shape(node, numbers)
            else:
                _fill(node.attr["shape"].shape, name + ":0", numbers)
        scratch = tf.Graph()
        tf_compat.import_nodes(scratch, self._graph_def.SerializeToString(), list(self.inputs), [], [])
        return {
            output.name: None if output.shape.ndims is None else tuple(output.shape.as_list())
            for name in self.inputs
            for output in scratch.get_operation_by_name(name).outputs
        }

    def _fill_dense_shape(self, node: tf.NodeDef, numbers: Numbers) -> None:
        key = _dense(self._dense_shapes[node.name])
        shape = self.shapes[key]
        if shape is not None:
            sizes = [numbers[key, dim] for dim in range(len(shape))]
            node.op = "Const"
            node.attr.pop("shape", None)
            node.attr["dtype"].type = tf.int64.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(sizes, tf.int64))


def _depending(inputs: Mapping[str, Sequence[str]], roots: Iterable[str]) -> Set[str]:
    """The roots and all nodes that depend on them, given the tensors that each node takes."""
    takers: Dict[str, List[str]] = {}
    for name, tensors in inputs.items():
        for tensor in tensors:
            takers.setdefault(_node_name(tensor), []).append(name)
    found = set(roots)
    stack = list(found)
    while stack:
        new = set(takers.get(stack.pop(), ())) - found
        found |= new
        stack.extend(new)
    return found


def _given(tensor: str) -> str:
    """The name of the placeholder that replaces a tensor computed from weights alone."""
    return "EplGiven/" + tensor.replace(":", "_")


def _dense(indices: str) -> str:
    """The name of the dense shape of a sparse tensor in `shapes`."""
    return indices + " dense"


def _fill(shape: tf_compat.TensorShapeProto, name: str, numbers: Numbers) -> None:
    for at, dim in enumerate(shape.dim):
        dim.size = numbers.get((name, at), dim.size)


def _as_tuple(shape: tf_compat.TensorShapeProto) -> Shape:
    """The sizes of the dimensions."""
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


def _node_name(tensor: str) -> str:
    return tensor.partition(":")[0]
