"""A digest of what computes and updates the model, equal in two processes whose graphs do the same.

    top digest   = of the digests of all compared ops
    op's digest  = of its type, its attributes, and the digests of the ops that it takes data and control from

Names of ops are no part of it: a summary that one worker alone builds shifts the numbers in the names of later ops.
Compared is what the gradients and the updates of variables are computed from, as the user built it:

    iterators, queues, tables, placeholders     where the walk ends: data, and what prepares it, may differ
    random seeds                                left out: attributes `seed`, `seed2`, the seed of stateless ops
    strings in constants                        left out: file names, vocabularies
    names in attributes                         left out: `shared_name`, frames of loops, the token of a py_func
    devices, attributes that begin with "_"     left out: placement is the plan's; it is compared there
    functions                                   by what their bodies do, not by name, nor by what runs them
    variables                                   by name, type and shape; initial values come from worker 0

With `epl.split` or `zero.level` part of the graph exists already when it is compared, and differs by rank: what EPL
built for the parts is left out, as are shapes of parts. Of a split the user's own ops are compared, not their
gradients.
"""

import hashlib
from typing import Callable, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types, wire
from epl.ir.graph import Graph, first_tensor
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES

# Attributes that may differ between workers that compute the same.
OMITTED_ATTRS = frozenset(
    [
        "seed", "seed2", "shared_name", "container", "token", "message",
        "config_proto", "executor_type",  # of calls of functions: how they run; the former in the order of a hash map
        "frame_name", "stack_name", "tensor_array_name", "source",  # of loops: names of ops are in them
    ]  # fmt: skip
)  # fmt: skip
# Ops that take their seed as an input, and which.
SEED_INPUTS = {
    "StatelessMultinomial": 2,
    "StatelessRandomNormal": 1,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformInt": 1,
    "StatelessTruncatedNormal": 1,
}
# Of ops that bring data in, all that counts.
SOURCE_ATTRS = frozenset(["dtype", "output_types", "component_types", "key_dtype", "value_dtype", "T"])
# What the walk from the gradients upward does not look beyond.
SOURCES = (
    op_types.DATA_SOURCES | op_types.SHARED_STATE | op_types.GENERATORS | op_types.OF_SCRIPT - op_types.PYTHON
    | {"Placeholder", "PlaceholderV2"}
)  # fmt: skip

_SIZE = 12  # bytes of a digest
_BACK_EDGE = b"back edge".ljust(_SIZE)  # of a loop
_OF_PARTS = b"EPL's own".ljust(_SIZE)


def _type_field(dtype: tf.DType) -> bytes:
    return wire.field(wire.VALUE, tf.AttrValue(type=dtype.as_datatype_enum).SerializeToString())


_STRING = _type_field(tf.string)
_INTEGERS = frozenset(_type_field(dtype) for dtype in (tf.int32, tf.int64))

OpDigest = NamedTuple("OpDigest", [("name", str), ("type", str), ("digest", str), ("producers", Tuple[int, ...])])
OpDigest.__doc__ = """One compared op.

Attributes:
  name: of the op.
  type: of the op.
  digest: of the op and all that it is computed from.
  producers: positions in the list of ops, whose digests are part of its own.
"""


class GraphDigest(object):
    """The digest of one graph, and what it is made of.

    Attributes:
      top: the digest, in hexadecimal digits.
      view: the graph as it was read.
      rules: what of its ops counts.
    """

    def __init__(self, graph: Graph) -> None:
        """Reads the graph."""
        self.view = GraphView(graph.tf_graph)
        self.rules = Rules(graph, self.view)
        self._digests: Dict[int, bytes] = {}
        for node in _producers_first(self.view, self.rules.compared, self.rules.taken):
            self._digests[node] = self._digest(node)
        self.top = _hash(*sorted(set(self._digests.values()))).hex()

    def ops(self) -> List[OpDigest]:
        """The compared ops; each stands after its producers, except at the back edges of loops."""
        nodes, position = self.view.nodes, {node: i for i, node in enumerate(self._digests)}
        return [
            OpDigest(
                nodes[node].name, nodes[node].op, digest.hex(), tuple(position[p] for p in self.rules.taken(node))
            )
            for node, digest in self._digests.items()
        ]  # fmt: skip

    def _digest(self, node: int) -> bytes:
        entry, rules, digests = self.view.nodes[node], self.rules, self._digests
        if node in rules.variables:
            return _hash(rules.attributes(node), entry.name.encode())
        if node in rules.parts:
            return _OF_PARTS
        pieces = [rules.attributes(node)]
        control = []
        for name, producer in zip(entry.input, rules.taken(node)):
            digest = digests.get(producer, _BACK_EDGE)
            if name[0] == "^":
                control.append(digest)
            else:
                pieces += (digest, name.partition(":")[2].encode(), b";") if ":" in name else (digest, b";")
        control.sort()
        return _hash(*pieces, b"^", *control)


class Rules(object):
    """What of a graph counts.

    Attributes:
      compared: the nodes that do.
      parts: nodes that are known by nothing but that they are there: EPL made them for variables in parts.
      variables: nodes that are variables, whole or in parts.
    """

    def __init__(self, graph: Graph, view: GraphView) -> None:
        """Finds what is compared."""
        self._view = view
        self._known: Dict[Tuple[str, bytes, str], bytes] = {}
        self._functions: Dict[str, bytes] = {}
        self._bodies = {function.signature.name: function for function in view.graph_def.library.function}
        drawing = view.of_types(SEED_INPUTS)
        self._seeds = {view.producers[node][SEED_INPUTS[view.types[node]]] for node in drawing}
        self.parts: Set[int] = set()
        self._held: FrozenSet[str] = frozenset()
        shards = graph.shards
        if shards is not None:
            # Sums of gradients that are kept between runs are as large as the parts.
            self._held = frozenset(shards.held).union(*[one.storage for one in graph.accumulations])
            self.parts = {view.index[op.name] for op in graph.parts_ops}
            self.parts.update(view.of_types(COLLECTIVE_OP_TYPES))
        if graph.split is not None:
            self.parts.update(_backward_nodes(view))
        self.variables = frozenset(view.of_types(op_types.VARIABLES))
        self._ends = self.parts.union(view.of_types(SOURCES))
        gradients, objectives = _gradients(graph, view)
        writes = view.descendants(gradients).intersection(view.writes())
        computing = view.ancestors(gradients | objectives, self._ends.__contains__)
        self.compared = view.ancestors(computing | writes, self._ends.__contains__)
        # Constants of updates may be shapes of parts.
        self._of_updates = set() if shards is None else self.compared - computing

    def taken(self, node: int) -> Sequence[int]:
        """The producers that count."""
        return () if node in self._ends else self._view.producers[node]

    def attributes(self, node: int) -> bytes:
        """A digest of the type and of the attributes that count; worked out once for all nodes with the same ones."""
        entry = self._view.nodes[node]
        key = (entry.op, b"", entry.name) if entry.name in self._held else (entry.op, entry.serialized_attrs, "")
        if entry.op == "Const" and (node in self._seeds or node in self._of_updates):
            key = (entry.op, entry.serialized_attrs, "seed" if node in self._seeds else "update")
        if key not in self._known:
            values = wire.split_attrs(key[1])
            if entry.op == "Const" and self._is_left_out(values, key[2]):
                values = {}
            self._known[key] = _sized_hash(entry.op.encode(), *self._pieces(entry.op, values))
        return self._known[key]

    def kept(self, op_type: str, names: Iterable[str]) -> List[str]:
        """Those of an op's attributes that count, sorted."""
        names = sorted(name for name in names if name[0] != "_" and name not in OMITTED_ATTRS)
        if op_type in SOURCES:
            return [name for name in names if name in SOURCE_ATTRS]
        return [name for name in names if name != "shape"] if op_type in op_types.PLACEHOLDERS else names

    def _pieces(self, op_type: str, values: Dict[str, bytes]) -> Iterator[bytes]:
        for name in self.kept(op_type, values):
            yield name.encode()
            yield self._by_bodies(values[name]) if self._bodies else values[name]

    def _by_bodies(self, field: bytes) -> bytes:
        """A value as it is, or what the functions that it names do."""
        value = tf.AttrValue.FromString(wire.payloads(field)[0])
        called = [value.func] if value.HasField("func") else value.list.func
        return b"".join(self._body(function.name) for function in called) or field

    def _body(self, name: str) -> bytes:
        """A digest of the body of a function; inside of it, numbers stand for the names of arguments and ops."""
        if name not in self._functions:
            self._functions[name] = b"calls itself"
            body = self._bodies[name]
            names = [argument.name for argument in body.signature.input_arg] + [node.name for node in body.node_def]
            number = {name: i for i, name in enumerate(names)}

            def numbered(tensor: str) -> bytes:
                producer, colon, output = tensor.lstrip("^").partition(":")
                return "{}{}{}{}".format(tensor[0] == "^", number[producer], colon, output).encode()

            pieces = [numbered(body.ret[output.name]) for output in body.signature.output_arg]
            for node in body.node_def:
                values = wire.split_attrs(wire.read_node(node.SerializeToString(deterministic=True)).serialized_attrs)
                pieces.append(self._body(node.op) if node.op in self._bodies else node.op.encode())
                pieces += [numbered(tensor) for tensor in node.input]
                if node.op != "Const" or not self._is_left_out(values, ""):
                    pieces += self._pieces(node.op, values)
            self._functions[name] = _sized_hash(*pieces)
        return self._functions[name]

    def _is_left_out(self, values: Dict[str, bytes], role: str) -> bool:
        """Whether the value of a constant does not count; `role`: "seed", "update" or "" for others."""
        dtype = values["dtype"]
        return role == "seed" or dtype == _STRING or (role == "update" and dtype in _INTEGERS)


def _gradients(graph: Graph, view: GraphView) -> Tuple[Set[int], Set[int]]:
    """The nodes of gradients as the user gets them, and those of what is differentiated, a lowered split included."""
    boundaries = [one for call in graph.gradient_calls for one in call.boundaries]
    boundaries += [one for applied in graph.apply_calls for one in applied.boundaries]
    gradients = {view.index[first_tensor(gradient).op.name] for _, gradient in boundaries}
    objectives = {view.index[y.op.name] for call in graph.gradient_calls for y in call.ys}
    if graph.split is not None:
        objectives.update(view.index[op.name] for op in graph.split.lowered_ops)
    return gradients, objectives


def _backward_nodes(view: GraphView) -> List[int]:
    phase = Phase.BACKWARD.encode()
    marked = view.of_attrs(lambda attributes: PHASE_ATTR in attributes and attributes[PHASE_ATTR].s == phase)
    return [node for node, is_backward in enumerate(marked) if is_backward]


def _producers_first(view: GraphView, nodes: Set[int], taken: Callable[[int], Sequence[int]]) -> Iterator[int]:
    """The nodes, each after its producers, except at the back edges of loops."""
    done = set(view.of_types(op_types.NEXT_ITERATIONS)) & nodes  # for those that take them
    ready: Set[int] = set()
    for first in sorted(nodes):  # the order of creation is such an order, but for few edges that were changed
        stack = [first]
        while stack:
            node = stack[-1]
            waits = () if node in ready else [p for p in taken(node) if p not in done]
            if waits:
                stack += waits
                continue
            stack.pop()
            if node not in ready:
                ready.add(node)
                done.add(node)
                yield node


def _hash(*pieces: bytes) -> bytes:
    """Of pieces that are digests, or end with a character that they do not have."""
    return hashlib.blake2b(b"".join(pieces), digest_size=_SIZE).digest()


def _sized_hash(*pieces: bytes) -> bytes:
    """For pieces of any length: where each ends counts, too."""
    return _hash(*[b"%d:" % len(piece) + piece for piece in pieces])
