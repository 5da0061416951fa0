"""Digests of the computation of ops; a call of a function counts as the body of the function, inlined.

    x, y --> f(a, b) = (a + 1, b) --> 0: x + 1        y, x --> g(b, a) = (b, a + 1) --> 1: x + 1

Names of functions, and the order of arguments and outputs, do not count. Names contain numbers of the process; and
AutoGraph, which writes the branches and loops of a tf.function, takes the order from sets of names, which Python orders
differently in every process.

Tensors with equal digests have equal values, so their order as arguments does not matter:

    draws and sources      equal ones return different values: numbered in the order in which the script builds them
    loop variables         distinguished by initial values, then by their values in the body, iteration by iteration:

        s = q = 0; repeat: s, q = s + x, q + s      turn 0: {s, q}      turn 1: {s: (0, 0 + x)}, {q: (0, 0 + 0)}
"""

import collections
import hashlib
from typing import (
    Any,
    Callable,
    Counter,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from epl.ir import node_wire, op_types

LOOPS = frozenset(["StatelessWhile", "While"])
# Ops that call functions with their own last inputs as arguments, and return their results.
CALLS = LOOPS | {"If", "PartitionedCall", "StatefulPartitionedCall", "StatelessIf"}
# Attributes of such a call that only repeat the types and shapes of its arguments, in order.
ATTRS_OF_ARGUMENTS = frozenset(["T", "Tin", "Tout", "output_shapes"])

# Calls of stateful functions, such as draws: two calls with equal arguments may return different values.
_STATEFUL_CALLS = frozenset(["If", "StatefulPartitionedCall", "While"])

_SIZE = 12  # bytes of a digest
_BACK_EDGE = b"back edge".ljust(_SIZE)  # input from the back edge of a loop in the first turn
_OF_ITSELF = b"calls itself".ljust(_SIZE)

_Found = TypeVar("_Found")
Digests = Tuple[bytes, ...]


class OpKind(NamedTuple):
    """An op without its inputs.

    Attributes:
      digest: digest of its type and attributes, without functions.
      called: names of the functions in its attributes, or of the function that is its type.
      draws: whether two such ops with equal inputs may return different values.
    """

    digest: bytes
    called: Tuple[str, ...]
    draws: bool


class Result(NamedTuple):
    """The digests of the results of an op or a function.

    Attributes:
      digest: digest of the computation.
      outputs: a digest for each output; None if `digest` and the name of the output suffice.
    """

    digest: bytes
    outputs: Optional[Digests]


class _Node(NamedTuple):
    """An op in a body; an input is the number of an argument or op, and the name of its output."""

    op_type: str
    kind: OpKind
    data: List[Tuple[int, str]]
    control: List[int]


class _Body(NamedTuple):
    """A function: its ops by number (after those of arguments), producers first; back edges of loops; its results."""

    nodes: Dict[int, _Node]
    back_edges: Set[int]
    returned: List[Tuple[int, str]]


class Functions:
    """The functions of a graph, and digests of ops that may call them."""

    def __init__(self, library: Iterable[Any], kind: Callable[[str, bytes], OpKind]) -> None:
        """Reads the library.

        Args:
          library: FunctionDefs.
          kind: op type, serialized attributes -> the kind of an op in a body.
        """
        self._library = {function.signature.name: function for function in library}
        self._kind = kind
        self._bodies: Dict[str, _Body] = {}
        self._known: Dict[Tuple[str, Digests], Result] = {}
        self._open: Set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._library

    def draws(self, op_type: str) -> bool:
        """Whether an op of the type calls stateful functions, so that equal calls may return different values."""
        return op_type in _STATEFUL_CALLS or (op_type in self and self._library[op_type].signature.is_stateful)

    def result(
        self, op_type: str, kind: OpKind, values: List[bytes], control: List[bytes], drawn: Counter[bytes]
    ) -> Result:  # fmt: skip
        """The result of an op for inputs with the digests `values`, after ops with the digests `control`.

        `drawn` counts the drawing ops of one graph or body, by digest; the caller passes it for all of them.
        """
        result = self._unnumbered(op_type, kind, values, sorted(control))
        if not kind.draws:
            return result
        drawn[result.digest] += 1
        return _with_number(result, drawn[result.digest])

    def _unnumbered(self, op_type: str, kind: OpKind, values: List[bytes], control: List[bytes]) -> Result:
        if op_type in LOOPS:
            return self._loop(kind, tuple(values), control)
        if op_type in CALLS or op_type in self._library:
            return self._call(kind, values, control)
        if op_type == "AddN":
            values = sorted(values)
        bodies = [self._numbered(name) for name in kind.called]
        return Result(hash_of(kind.digest, *bodies, *values, b"^", *control), None)

    def _call(self, kind: OpKind, values: List[bytes], control: List[bytes]) -> Result:
        signatures = [self._library[name].signature for name in kind.called]
        ahead = len(values) - len(signatures[0].input_arg)  # the condition of If
        arguments = tuple(values[ahead:])
        functions = [self._inlined(name, arguments) for name in kind.called]
        digests = [function.digest for function in functions]
        own = hash_of(kind.digest, *digests, *values[:ahead], b"^", *sorted(arguments), b"^", *control)
        columns = zip(*[function.outputs or () for function in functions])
        return Result(own, tuple(hash_of(own, *column) for column in columns))

    def _loop(self, kind: OpKind, beginnings: Digests, control: List[bytes]) -> Result:
        body, condition = kind.called  # in the order of the names of the attributes

        def turn(kept: Digests) -> Tuple[Digests, Digests]:
            made = self._inlined(body, kept).outputs or ()
            return tuple(hash_of(beginning, one) for beginning, one in zip(beginnings, made)), kept

        made, kept = settled(beginnings, turn)
        asked = self._inlined(condition, kept)
        digests = [self._inlined(body, kept).digest, asked.digest, *(asked.outputs or ())]
        own = hash_of(kind.digest, *digests, b"^", *sorted(made), b"^", *control)
        return Result(own, tuple(hash_of(own, one) for one in made))

    def _numbered(self, name: str) -> bytes:
        """The digest of a function whose arguments are known only by their numbers."""
        if name not in self._library:  # an op type
            return hash_of(name.encode())
        count = len(self._library[name].signature.input_arg)
        result = self._inlined(name, tuple(hash_of(b"argument %d" % i) for i in range(count)))
        return hash_of(result.digest, *(result.outputs or ()))

    def _inlined(self, name: str, arguments: Digests) -> Result:
        """The result of a function for its arguments; computed once for all calls with equal arguments."""
        if name in self._open:
            return Result(_OF_ITSELF, (_OF_ITSELF,) * len(self._library[name].signature.output_arg))
        if (name, arguments) not in self._known:
            self._open.add(name)
            body = self._body(name)
            given = {number: Result(digest, None) for number, digest in enumerate(arguments)}
            results = with_back_edges(body.back_edges, lambda brought: self._results(body, {**given, **brought}))
            self._open.remove(name)
            digest = hash_of(*sorted({results[number].digest for number in body.nodes}))
            self._known[name, arguments] = Result(digest, tuple(value_of(results, *taken) for taken in body.returned))
        return self._known[name, arguments]

    def _results(self, body: _Body, results: Dict[int, Result]) -> Dict[int, Result]:
        """The results of arguments and ops, given in `results` those of arguments and back edges."""
        drawn: Counter[bytes] = collections.Counter()
        for number, node in body.nodes.items():
            values = [value_of(results, *taken) for taken in node.data]
            control = [value_of(results, producer) for producer in node.control]
            results[number] = self.result(node.op_type, node.kind, values, control, drawn)
        return results

    def _body(self, name: str) -> _Body:
        if name not in self._bodies:
            self._bodies[name] = self._read(self._library[name])
        return self._bodies[name]

    def _read(self, function: Any) -> _Body:
        """Numbers the arguments and ops of a FunctionDef, and sorts the ops."""
        signature = function.signature
        types = {argument.name: "" for argument in signature.input_arg}
        types.update((node.name, node.op) for node in function.node_def)
        number = {name: i for i, name in enumerate(types)}

        def taken(tensor: str) -> Tuple[int, str]:
            producer, _, output = tensor.partition(":")
            return number[producer], self._position(types[producer], output)

        nodes = {}
        for node in function.node_def:
            attributes = node_wire.read_node(node.SerializeToString(deterministic=True)).serialized_attrs
            data = [taken(tensor) for tensor in node.input if tensor[0] != "^"]
            control = [number[tensor[1:]] for tensor in node.input if tensor[0] == "^"]
            nodes[number[node.name]] = _Node(node.op, self._kind(node.op, attributes), data, control)

        def producers(node: int) -> Sequence[int]:
            found = [producer for producer, _ in nodes[node].data] + nodes[node].control
            return [producer for producer in found if producer in nodes]

        back_edges = {node for node, entry in nodes.items() if entry.op_type in op_types.NEXT_ITERATIONS}
        order = producers_first(set(nodes), producers, back_edges)
        returned = [taken(function.ret[output.name]) for output in signature.output_arg]
        return _Body({node: nodes[node] for node in order}, back_edges, returned)

    def _position(self, op_type: str, output: str) -> str:
        """The name of an output in a body; for a call its position, as in a graph."""
        name, _, position = output.partition(":")
        if op_type in self._library:
            position = str([one.name for one in self._library[op_type].signature.output_arg].index(name))
        return position if op_type in CALLS or op_type in self._library else output


def value_of(results: Mapping[int, Result], node: int, output: str = "^") -> bytes:
    """The digest of an op's output: for a call by position ("" is the first); for "^" the digest of the op itself."""
    result = results[node]
    if output == "^" or (result.outputs is None and not output):
        return result.digest
    return hash_of(result.digest, output.encode()) if result.outputs is None else result.outputs[int(output or 0)]


def _with_number(result: Result, number: int) -> Result:
    """Adds the number of a draw to its digests; the first one keeps them, so most draws need no second hash."""
    if number == 1:
        return result
    mark = b"number %d" % number
    outputs = None if result.outputs is None else tuple(hash_of(output, mark) for output in result.outputs)
    return Result(hash_of(result.digest, mark), outputs)


def settled(kept: Digests, turn: Callable[[Digests], Tuple[Digests, _Found]]) -> Tuple[Digests, _Found]:
    """Digests of loop variables: updated turn by turn until another turn distinguishes no more of them.

    Args:
      kept: their digests before the first turn.
      turn: digests -> the digests after another turn, which differ where the former do; and another result.

    Returns:
      The results of the last turn.
    """
    while True:
        following, found = turn(kept)
        if len(set(following)) == len(set(kept)):
            return following, found
        kept = following


def first_turn(back_edges: Iterable[int]) -> Dict[int, Result]:
    """The results of back edges in the first turn of their loop."""
    return {node: Result(_BACK_EDGE, None) for node in back_edges}


def with_back_edges(
    back_edges: Set[int], results_of: Callable[[Dict[int, Result]], Dict[int, Result]]
) -> Dict[int, Result]:  # fmt: skip
    """The results of the ops of a graph that may have loops with back edges (control flow v1).

    Args:
      back_edges: ops that pass values to the next turn.
      results_of: results of these -> results of all ops.
    """
    order = sorted(back_edges)

    def turn(kept: Digests) -> Tuple[Digests, Dict[int, Result]]:
        results = results_of({node: Result(digest, None) for node, digest in zip(order, kept)})
        return tuple(results[node].digest for node in order), results

    return settled((_BACK_EDGE,) * len(order), turn)[1]


def producers_first(
    nodes: Set[int], taken: Callable[[int], Sequence[int]], back_edges: Set[int]
) -> Iterator[int]:  # fmt: skip
    """The nodes, each after its producers, except at the back edges of loops."""
    done = set(back_edges)  # for their consumers
    ready: Set[int] = set()
    for first in sorted(nodes):  # creation order is nearly right: few edges were changed
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


def hash_of(*pieces: bytes) -> bytes:
    """A digest of pieces that are digests, or end with a character that occurs only there."""
    return hashlib.blake2b(b"".join(pieces), digest_size=_SIZE).digest()


def sized_hash_of(*pieces: bytes) -> bytes:
    """A digest of pieces of any length, including their lengths."""
    return hash_of(*[b"%d:" % len(piece) + piece for piece in pieces])
