"""Which dimensions of what comes into a model are one, and which cannot be the rows of a batch.

TensorFlow's shape inference tells, on a copy of the forward graph in which the size of every open dimension is a large
prime of its own. Where it refuses, the two sizes that it names become one, and it is tried again:

    x [1009, 3] ──▶ dense ──▶ subtract        "Dimensions must be equal, but are 1009 and 1013"
    y [1013, 1] ─────────────────┘            => x [1009, 3], y [1009, 1]: they have the same rows

A size that is computed from others is a multiple of them: B sequences of T words, flattened, are B * T. Known first
dimensions of placeholders are tried as open ones, too: so it is known which of them meet.

A dimension is not that of the rows if it goes away in ops that pick some of it (`keep[0]`), or while another one that
may be the rows is still there: a table that all rows look at, `softmax(rows * table^T) * table`.
"""

import itertools
import re
from typing import (
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.taskgraph import DEFAULT_ATTR
from epl.ir.view import GraphView
from epl.utils import tf_compat

Dimensions = NamedTuple(
    "Dimensions",
    [
        ("sizes", Dict[str, Tuple[int, ...]]),
        ("known", Dict[int, int]),
        ("no_rows", FrozenSet[int]),
        ("open", FrozenSet[str]),
    ],
)
Dimensions.__doc__ = """The dimensions of placeholders of known rank.

Attributes:
  sizes: tensor name -> a number for each dimension, which stands for it: equal ones are the same, a multiple of one is
    computed from it. Of a sparse tensor they are those of the dense shape, under the name of the indices.
  known: such a number -> the size that the graph says.
  no_rows: those of first dimensions that cannot be the rows of a batch.
  open: names of the placeholders that do not say their first dimension.
"""

_ITERATORS = ("IteratorGetNext", "IteratorGetNextSync")
_DEFAULTED = "PlaceholderWithDefault"
_REFUSAL = re.compile(r"but are (\d+) and (\d+)")
_FIRST_NUMBER = 1009  # the primes from here on are seldom sizes of a model
_ASKS_SHAPE = frozenset(["Shape", "ShapeN", "Size", "Rank"])
_PICKS = frozenset(["StridedSlice", "Slice", "Gather", "GatherV2", "GatherNd", "ResourceGather"])

Dim = Tuple[str, int]  # name of a tensor that comes into the model, dimension
Numbers = Dict[Dim, int]
Shape = Optional[Tuple[Optional[int], ...]]  # None: not even the rank is known
Shapes = Dict[str, Shape]  # by the name of a tensor


def find_dimensions(
    tf_graph: tf.Graph,
    view: GraphView,
    objective: Iterable[str],
    sparse: Iterable[tf.SparseTensor] = (),
    stand_ins: Optional[Mapping[str, str]] = None,
) -> Optional[Dimensions]:
    """The dimensions of the placeholders that an objective is computed from; None if the shapes do not tell.

    Args:
      tf_graph: the graph.
      view: of it.
      objective: names of tensors.
      sparse: the sparse placeholders of the graph.
      stand_ins: name of a tensor -> that of the tensor of the user in whose place it is computed.
    """
    forward = _Forward(tf_graph, view, objective, list(sparse), stand_ins or {})
    for opens_known in (True, False):
        spare = _primes()
        numbers = {dim: next(spare) for dim in forward.open_dims(opens_known)}
        primes = frozenset(numbers.values())
        shapes = _agreed_shapes(forward, numbers)
        if shapes is not None:
            released = _release(forward, numbers, primes, spare)
            return _dimensions(forward, numbers, primes, released, shapes)
    return None


def without_rows(dimensions: Dimensions) -> List[str]:
    """The names of the placeholders that hold no rows which could be cut, or concatenated.

    That are those whose first dimension cannot be the rows, or is that of another one that has it in two dimensions, as
    the adjacency of a graph has; or is open and has a size of the model, which may be that of the batch if no other
    placeholder has the rows.
    """
    sizes = {name: of for name, of in dimensions.sizes.items() if of}
    others = dimensions.no_rows.union(of[0] for of in sizes.values() if of.count(of[0]) > 1)
    written = {number for number, size in dimensions.known.items() if number == size}
    if all(of[0] in others | written for of in sizes.values()):
        written = set()
    return [name for name, of in sizes.items() if of[0] in others or (of[0] in written and name in dimensions.open)]


class _Forward(object):
    """A copy of what an objective is computed from, as a GraphDef whose sources get the sizes of a trial.

    Attributes:
      inputs: name of a node -> names of the tensors that it takes.
      types: name of a node -> op type.
      shapes: of the tensors that come into the model, as the graph says.
      fed: the names of those of them that a user may feed.
    """

    def __init__(
        self,
        tf_graph: tf.Graph,
        view: GraphView,
        objective: Iterable[str],
        sparse: Sequence[tf.SparseTensor],
        stand_ins: Mapping[str, str],
    ) -> None:
        self._tf_graph = tf_graph
        self._view = view
        self._graph_def = tf.GraphDef(versions=view.graph_def.versions, library=view.graph_def.library)
        self._stand_ins = stand_ins
        self._dense_shapes = {one.dense_shape.op.name: one.indices.name for one in sparse}
        self._components = {tensor.name for one in sparse for tensor in (one.indices, one.values)}
        self._sources: Dict[str, tf.NodeDef] = {}
        self.inputs: Dict[str, List[str]] = {}
        self.types: Dict[str, str] = {}
        self.shapes: Shapes = {}
        self.fed: Set[str] = set()
        roots = [_node_name(self._meant(name)) for name in objective]
        self._of_weights = self._computed_from_weights(roots)
        for name, inputs in self._reached(roots, lambda name: name in self._of_weights).items():
            if name in self._of_weights:
                self._add_given(name)
            else:
                self._add(view.nodes[view.index[name]].to_proto(), inputs)

    def _reached(self, roots: Sequence[str], stop: Callable[[str], bool]) -> Dict[str, List[str]]:
        """The roots and the nodes that they take data of, not beyond `stop`; with the tensors that each one takes."""
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
        """The nodes that compute with variables and no data: how parts of weights become whole is no matter here."""
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
        """A placeholder for each output of a node, with the shape that the graph says."""
        for at, output in enumerate(self._tf_graph.get_operation_by_name(name).outputs):
            node = self._graph_def.node.add(name=_given("{}:{}".format(name, at)), op="Placeholder")
            node.attr["dtype"].type = output.dtype.base_dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(output.shape.as_proto())
            self.inputs[node.name], self.types[node.name] = [], node.op

    def _meant(self, name: str) -> str:
        tensor = name if ":" in name else name + ":0"
        return self._stand_ins.get(tensor, tensor)

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
        copy = self._graph_def.node.add()
        copy.CopyFrom(node)
        if node.op == "Placeholder":
            self._add_fed(copy)
        elif node.op in _ITERATORS:
            self._sources[node.name] = copy
            shapes = node.attr["output_shapes"].list.shape
            self.shapes.update(("{}:{}".format(node.name, at), _as_tuple(shape)) for at, shape in enumerate(shapes))

    def _add_fed(self, node: tf.NodeDef) -> None:
        self._sources[node.name] = node
        name, shape = node.name + ":0", _as_tuple(node.attr["shape"].shape)
        if node.name not in self._dense_shapes:
            self.shapes[name] = shape
        elif shape is not None and shape[0] is not None:
            name = self._dense_shapes[node.name]
            self.shapes[_dense(name)] = (None,) * shape[0]
        if name not in self._components or node.name in self._dense_shapes:
            self.fed.add(name)

    def open_dims(self, opens_known: bool) -> Iterator[Dim]:
        """The dimensions that get a number of their own: the open ones, and known first ones of placeholders."""
        for name, shape in sorted(self.shapes.items()):
            for dim, size in enumerate(shape or ()):
                if size is None or (opens_known and dim == 0 and name in self.fed):
                    yield name, dim

    def numbers_of(self, name: str, numbers: Numbers) -> Tuple[int, ...]:
        """The number, or size, of each dimension of what is fed, whose rank is known."""
        key = self._key(name)
        return tuple(numbers.get((key, dim), size or 0) for dim, size in enumerate(self.shapes[key] or ()))

    def is_open(self, name: str) -> bool:
        """Whether what is fed does not say its first dimension."""
        shape = self.shapes[self._key(name)]
        return not shape or shape[0] is None

    def _key(self, name: str) -> str:
        """The name under which the shape of what is fed is kept."""
        return _dense(name) if _dense(name) in self.shapes else name

    def inferred(self, numbers: Numbers) -> Shapes:
        """The shapes of all tensors with these sizes of the open dimensions.

        Raises:
          ValueError: they do not fit.
        """
        for name, node in self._sources.items():
            if node.op in _ITERATORS:
                for at, shape in enumerate(node.attr["output_shapes"].list.shape):
                    _fill(shape, "{}:{}".format(name, at), numbers)
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
        if key in self.shapes:  # the rank is known
            sizes = [numbers[key, dim] for dim in range(len(self.shapes[key] or ()))]
            node.op = "Const"
            node.attr.pop("shape", None)
            node.attr["dtype"].type = tf.int64.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(sizes, tf.int64))


def _depending(inputs: Mapping[str, Sequence[str]], roots: Iterable[str]) -> Set[str]:
    """The roots and the nodes that take of them, given what each node takes."""
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
    """The name of what stands for a tensor that is computed from weights alone."""
    return "EplGiven/" + tensor.replace(":", "_")


def _dense(indices: str) -> str:
    """Under which name the dense shape of a sparse tensor is kept."""
    return indices + " dense"


def _agreed_shapes(forward: _Forward, numbers: Numbers) -> Optional[Shapes]:
    """The shapes, once numbers that must be equal are; None if TensorFlow does not say which. `numbers` is changed."""
    free = set(numbers.values())
    for _ in range(len(numbers) + 1):
        try:
            return forward.inferred(numbers)
        except ValueError as error:
            found = _REFUSAL.search(str(error))
            if found is None:
                return None
            one, other = (int(number) for number in found.groups())
            if one not in free:
                one, other = other, one
            if one not in free or (other != one and other % one == 0):
                return None
            free.discard(one)
            for dim, number in numbers.items():
                while number % one == 0:
                    number = number // one * other
                numbers[dim] = number
    return None


def _release(forward: _Forward, numbers: Numbers, primes: FrozenSet[int], spare: Iterator[int]) -> Set[int]:
    """Gives numbers of their own, which it returns, to first dimensions that have a size of the model for no reason.

    Where the model cuts a table to the rows, `table[:tf.shape(x)[0]]`, it has no more than there are in the trial.
    """
    firsts = {number for (_, dim), number in numbers.items() if dim == 0}
    released = set()
    for size in sorted(number for number in firsts if number > 1 and _is_written(number, primes)):
        smaller = {dim: size - 1 if number == size else number for dim, number in numbers.items()}
        try:
            forward.inferred(smaller)
        except ValueError:
            continue
        own = next(spare)
        released.add(own)
        numbers.update((dim, own) for dim, number in list(numbers.items()) if number == size)
    return released


def _dimensions(
    forward: _Forward, numbers: Numbers, primes: FrozenSet[int], released: Set[int], shapes: Shapes
) -> Dimensions:
    sizes = {name: forward.numbers_of(name, numbers) for name in sorted(forward.fed)}
    known = {number: number for number in numbers.values() if _is_written(number, primes | released)}
    for (name, dim), number in numbers.items():
        said = (forward.shapes[name] or ())[dim]
        if said is not None:
            known[number] = said
    firsts = {number for (_, dim), number in numbers.items() if dim == 0 and number in primes}
    candidates = {of_dims[0] for of_dims in sizes.values() if of_dims and of_dims[0] in firsts} - known.keys()
    no_rows = _no_rows(forward, shapes, candidates, firsts)
    is_open = frozenset(name for name in sizes if forward.is_open(name))
    return Dimensions(sizes, known, frozenset(no_rows), is_open)


def _no_rows(forward: _Forward, shapes: Shapes, candidates: Set[int], firsts: Set[int]) -> Set[int]:
    """Those of the numbers `candidates` that cannot be the rows, as the others of `firsts` may be."""
    picked = {number: [] for number in candidates}  # type: Dict[int, List[bool]]
    beside: Dict[int, Set[int]] = {number: set() for number in candidates}
    for name, tensors in forward.inputs.items():
        op_type = forward.types[name]
        if op_type in _ASKS_SHAPE:
            continue
        taken = {size for tensor in tensors for size in shapes.get(tensor) or ()}
        outputs = [shapes[output] for output in _outputs(name, shapes)]
        given = {size for shape in outputs for size in shape or ()}
        is_known = all(shape is not None and None not in shape for shape in outputs)
        for number in candidates:
            if not _holds(taken, number) or _holds(given, number):
                continue
            picked[number].append(is_known and op_type in _PICKS)
            if is_known:
                beside[number].update(other for other in firsts if other != number and _holds(given, other))
    only_picked = {number for number, are in picked.items() if are and all(are)}
    summed = {n for n, others in beside.items() if any(n not in beside.get(other, ()) for other in others)}
    return only_picked if firsts == only_picked | summed else only_picked | summed


def _is_written(number: int, primes: FrozenSet[int]) -> bool:
    """Whether a dimension has a size of the model."""
    return not any(number % prime == 0 for prime in primes)


def _holds(sizes: Iterable[Optional[int]], number: int) -> bool:
    return any(size is not None and size > 0 and size % number == 0 for size in sizes)


def _outputs(name: str, shapes: Shapes) -> Iterator[str]:
    for at in itertools.count():
        output = "{}:{}".format(name, at)
        if output not in shapes:
            return
        yield output


def _fill(shape: tf_compat.TensorShapeProto, name: str, numbers: Numbers) -> None:
    for at, dim in enumerate(shape.dim):
        dim.size = numbers.get((name, at), dim.size)


def _as_tuple(shape: tf_compat.TensorShapeProto) -> Shape:
    """The sizes of the dimensions."""
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


def _node_name(tensor: str) -> str:
    return tensor.partition(":")[0]


def _primes() -> Iterator[int]:
    """The primes from _FIRST_NUMBER on."""
    for number in itertools.count(_FIRST_NUMBER, 2):
        if all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2)):
            yield number
