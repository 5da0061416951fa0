"""A digest of the ops that compute and update the model, equal in two processes whose graphs compute the same.

    top digest   = of the digests of all compared ops
    op's digest  = of its type, its attributes, and the digests of its producers of data and control

Names of ops do not count: a summary that only one worker builds shifts the numbers in the names of later ops.
Compared are the gradients, the updates of variables and all ops that these depend on, as the user built them:

    iterators, queues, tables, placeholders     end the search: data, and the input pipeline, may differ
    draws, sources that are equal               by the order in which the script builds them
    random seeds                                left out: attributes `seed`, `seed2`, the seed of stateless ops
    strings in constants                        left out: file names, vocabularies
    names in attributes                         left out: `shared_name`, frames of loops, the token of a py_func
    devices, attributes that begin with "_"     left out: placement is the plan's; it is compared there
    functions, loops                            by their computation for a call (function_digest.py)
    sums                                        in any order
    variables                                   by name, type and shape; initial values come from worker 0

With `epl.split` or `zero.level` EPL has already added ops when the graph is compared, and these differ by rank: ops
that EPL built for shards are left out, and so are shapes of shards. In a split the user's own ops are compared, not
their gradients.
"""

import collections
from typing import Counter, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import node_wire, op_types
from epl.ir.graph import Graph, first_tensor
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.function_digest import (
    ATTRS_OF_ARGUMENTS,
    CALLS,
    Functions,
    OpKind,
    Result,
    first_turn,
    hash_of,
    producers_first,
    sized_hash_of,
    value_of,
    with_back_edges,
)
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.sharding.sharded_variables import ShardedVariables

# Attributes that may differ between workers with equal computations.
OMITTED_ATTRS = frozenset(
    [
        "seed", "seed2", "shared_name", "container", "token", "message",
        "config_proto", "executor_type",  # of calls of functions: how they run; the former in the order of a hash map
        "frame_name", "stack_name", "tensor_array_name", "source",  # of loops: names of ops are in them
    ]  # fmt: skip
)  # fmt: skip
# Ops with their seed as an input -> the index of the input.
SEED_INPUTS = {
    "RandomIndexShuffle": 1,
    "StatelessMultinomial": 2,
    "StatelessParameterizedTruncatedNormal": 1,
    "StatelessRandomBinomial": 1,
    "StatelessRandomGammaV2": 1,
    "StatelessRandomGetKeyCounter": 0,  # TensorFlow 2 makes the key of a drawing op of the seed
    "StatelessRandomGetKeyCounterAlg": 0,
    "StatelessRandomNormal": 1,
    "StatelessRandomPoisson": 1,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformFullInt": 1,
    "StatelessRandomUniformInt": 1,
    "StatelessSampleDistortedBoundingBox": 3,
    "StatelessTruncatedNormal": 1,
}
# The only attributes of data sources that count.
SOURCE_ATTRS = frozenset(["dtype", "output_types", "component_types", "key_dtype", "value_dtype", "T"])
# Ops at which the search upward from the gradients ends.
SOURCES = (
    op_types.DATA_SOURCES | op_types.SHARED_STATE | op_types.GENERATORS | op_types.OF_SCRIPT - op_types.PYTHON
    | {"Placeholder", "PlaceholderV2"}
)  # fmt: skip
# Two of these with equal inputs may return different values. Other random ops have an attribute `seed2`.
_DRAWS = SOURCES | op_types.PYTHON | frozenset(SEED_INPUTS)

_OF_PARTS = hash_of(b"EPL's own")


def _type_field(dtype: tf.DType) -> bytes:
    return node_wire.field(node_wire.VALUE, tf.AttrValue(type=dtype.as_datatype_enum).SerializeToString())


_STRING = _type_field(tf.string)
_INTEGERS = frozenset(_type_field(dtype) for dtype in (tf.int32, tf.int64))


class OpDigest(NamedTuple):
    """One compared op.

    Attributes:
      name: name of the op.
      type: its type.
      digest: digest of the op and all ops that it depends on.
      producers: positions in the list of ops; their digests are part of its digest.
    """

    name: str
    type: str
    digest: str
    producers: Tuple[int, ...]


class GraphDigest:
    """The digest of one graph, with those of its ops.

    Attributes:
      top: the digest, in hexadecimal digits.
      view: the graph as it was read.
      rules: the ops and attributes that count.
    """

    def __init__(self, graph: Graph) -> None:
        """Reads the graph."""
        self.view = GraphView(graph.tf_graph)
        self.rules = Rules(graph, self.view)
        back_edges = self.rules.compared.intersection(self.view.of_types(op_types.NEXT_ITERATIONS))
        order = list(producers_first(self.rules.compared, self.rules.taken, back_edges))
        results = with_back_edges(back_edges, lambda brought: self._computed(order, brought, {}))
        self._results = {node: results[node] for node in order}
        self.top = hash_of(*sorted({result.digest for result in self._results.values()})).hex()

    def ops(self) -> List[OpDigest]:
        """The compared ops, each after its producers, except at the back edges of loops.

        In a loop (control flow v1) digests are those of its first turn: in later turns a difference is in all ops.
        """
        ends = self.rules.compared.intersection(self.view.of_types(op_types.NEXT_ITERATIONS | op_types.EXITS))
        fixed = {node: self._results[node] for node in ends}
        results = self._computed(list(self._results), first_turn(ends), fixed)
        nodes, position = self.view.nodes, {node: i for i, node in enumerate(self._results)}
        return [
            OpDigest(
                nodes[node].name,
                nodes[node].op,
                results[node].digest.hex(),
                tuple(position[p] for p in self.rules.taken(node)),
            )
            for node in self._results
        ]  # fmt: skip

    def _computed(
        self, order: List[int], results: Dict[int, Result], fixed: Mapping[int, Result]
    ) -> Dict[int, Result]:  # fmt: skip
        """The results of all compared ops, given those of back edges (`results`) and of known ops (`fixed`)."""
        drawn: Counter[bytes] = collections.Counter()
        for node in order:
            results[node] = fixed[node] if node in fixed else self._result(node, results, drawn)
        return results

    def _result(self, node: int, results: Dict[int, Result], drawn: Counter[bytes]) -> Result:
        entry, rules = self.view.nodes[node], self.rules
        if node in rules.variables:
            return Result(hash_of(rules.kind(node).digest, entry.name.encode()), None)
        if node in rules.parts:
            return Result(_OF_PARTS, None)
        values, control = [], []
        for name, producer in zip(entry.input, rules.taken(node)):
            if name[0] == "^":
                control.append(value_of(results, producer))
            else:
                values.append(value_of(results, producer, name.partition(":")[2]))
        return rules.functions.result(entry.op, rules.kind(node), values, control, drawn)


class Rules:
    """The nodes and attributes of a graph that count.

    Attributes:
      compared: the nodes that count.
      parts: nodes that all have one fixed digest: EPL built them for sharded variables.
      variables: the nodes of variables, sharded or not.
      functions: computes the digests of calls.
    """

    def __init__(self, graph: Graph, view: GraphView) -> None:
        """Finds what is compared."""
        self._view = view
        self._known: Dict[Tuple[str, bytes, str], OpKind] = {}
        library = view.graph_def.library.function
        self._has_functions = bool(library)
        self.functions = Functions(library, lambda of, attrs: self._kind(of, node_wire.split_attrs(attrs), ""))
        drawing = view.of_types(SEED_INPUTS)
        self._seeds = {view.producers[node][SEED_INPUTS[view.types[node]]] for node in drawing}
        self.parts: Set[int] = set()
        self._held: FrozenSet[str] = frozenset()
        sharded = graph.state_of(ShardedVariables)
        if sharded is not None:
            # Accumulated gradients, which are kept between runs, have the shapes of shards.
            self._held = frozenset(sharded.variables).union(graph.local_variables)
            self.parts = {view.index[op.name] for op in graph.shard_ops}
            self.parts.update(view.of_types(COLLECTIVE_OP_TYPES))
        if replica_groups(graph) is not None:
            self.parts.update(_backward_nodes(view))
        self.variables = frozenset(view.of_types(op_types.VARIABLES))
        self._ends = self.parts.union(view.of_types(SOURCES))
        gradients, objectives = _gradients(graph, view)
        writes = view.descendants(gradients).intersection(view.writes())
        computing = view.ancestors(gradients | objectives, self._ends.__contains__)
        self.compared = view.ancestors(computing | writes, self._ends.__contains__)
        # Constants of updates may be shapes of shards, or have them: zeros of the shape of a variable.
        self._of_updates = set() if sharded is None else self.compared - computing

    def taken(self, node: int) -> Sequence[int]:
        """The producers that count."""
        return () if node in self._ends else self._view.producers[node]

    def kind(self, node: int) -> OpKind:
        """The type and the attributes that count; computed once for all nodes with equal ones."""
        entry = self._view.nodes[node]
        key = (entry.op, b"", entry.name) if entry.name in self._held else (entry.op, entry.serialized_attrs, "")
        if entry.op == "Const" and (node in self._seeds or node in self._of_updates):
            key = (entry.op, entry.serialized_attrs, "seed" if node in self._seeds else "update")
        if key not in self._known:
            self._known[key] = self._kind(entry.op, node_wire.split_attrs(key[1]), key[2])
        return self._known[key]

    def kept(self, op_type: str, names: Iterable[str]) -> List[str]:
        """The attributes of an op that count, sorted."""
        names = sorted(name for name in names if name[0] != "_" and name not in OMITTED_ATTRS)
        if op_type in SOURCES:
            return [name for name in names if name in SOURCE_ATTRS]
        if op_type in CALLS:
            return [name for name in names if name not in ATTRS_OF_ARGUMENTS]
        return [name for name in names if name != "shape"] if op_type in op_types.PLACEHOLDERS else names

    def _kind(self, op_type: str, values: Dict[str, bytes], role: str) -> OpKind:
        """The kind of an op by its attributes; `role` as in `_is_left_out`."""
        if op_type == "Const" and self._is_left_out(values, role):
            values = {}
        elif op_type == "Const" and role == "update":
            values = {**values, "value": _without_shape(values["value"])}
        called = [op_type] if op_type in self.functions else []
        pieces = [b"call" if called else op_type.encode()]
        for name in self.kept(op_type, values):
            functions = _functions_in(values[name]) if self._has_functions else []
            called += functions
            pieces += [name.encode(), b"function" if functions else values[name]]
        draws = op_type in _DRAWS or "seed2" in values or self.functions.draws(op_type)
        return OpKind(sized_hash_of(*pieces), tuple(called), draws)

    def _is_left_out(self, values: Dict[str, bytes], role: str) -> bool:
        """Whether the value of a constant does not count; `role`: "seed", "update" or "" for others."""
        dtype = values["dtype"]
        return role == "seed" or dtype == _STRING or (role == "update" and dtype in _INTEGERS)


def _gradients(graph: Graph, view: GraphView) -> Tuple[Set[int], Set[int]]:
    """The nodes of the gradients that the user gets, and of the objectives, including the ops of a lowered split."""
    boundaries = [one for call in graph.gradient_calls for one in call.boundaries]
    boundaries += [one for applied in graph.apply_calls for one in applied.boundaries]
    gradients = {view.index[first_tensor(gradient).op.name] for _, gradient in boundaries}
    objectives = {view.index[y.op.name] for call in graph.gradient_calls for y in call.ys}
    ranks = replica_groups(graph)
    if ranks is not None:
        objectives.update(view.index[op.name] for op in ranks.lowered_ops)
    return gradients, objectives


def _backward_nodes(view: GraphView) -> List[int]:
    phase = Phase.BACKWARD.encode()
    marked = view.of_attrs(lambda attributes: PHASE_ATTR in attributes and attributes[PHASE_ATTR].s == phase)
    return [node for node, is_backward in enumerate(marked) if is_backward]


def _without_shape(field: bytes) -> bytes:
    """The value of a constant; of one whose elements are all equal only that element."""
    array = tf.make_ndarray(tf.AttrValue.FromString(node_wire.payloads(field)[0]).tensor)
    if not array.size or (array != array.flat[0]).any():
        return field
    element = tf.AttrValue(tensor=tf.make_tensor_proto(array.flat[0]))
    return node_wire.field(node_wire.VALUE, element.SerializeToString())


def _functions_in(field: bytes) -> List[str]:
    """Names of the functions in the field of an attribute."""
    value = tf.AttrValue.FromString(node_wire.payloads(field)[0])
    return [function.name for function in ([value.func] if value.HasField("func") else value.list.func)]
