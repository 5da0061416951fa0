"""The nodes of a forward graph as costs see them: what tells each from others, and where gradients flow.

variable --> read --> MatMul --> loss        flows: a gradient comes from the loss, and a variable needs it
data -----------------^                      the gradient of data is not wanted
"""

from typing import Collection, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.costs import backward
from epl.parallel.costs import loops as costs_loops
from epl.parallel.costs.backward import Constant, Signature
from epl.parallel.costs.custom_gradients import CustomGradient
from epl.parallel.costs.folding import Folding
from epl.parallel.costs.ops import kind_of
from epl.parallel.costs.precision import Precision
from epl.parallel.costs.shapes import Shape, TensorType, Types
from epl.planner.machine.op_kinds import Kind

_INTO_LOOPS = frozenset(["Enter", "RefEnter"])
# No gradient passes them.
_ENDING = frozenset(["StopGradient", "PreventGradient", "Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"])

Tensor = Tuple[int, int]  # node, output


class ForwardNode(NamedTuple):
    """A node of a forward graph.

    Attributes:
      signature: what tells it from another; None for an op that takes no time.
      sums: (tensor, how many gradients of it are added up) of each sum that counts here.
      runs: how often it runs: more than once in a loop.
    """

    signature: Optional[Signature]
    sums: Tuple[Tuple[TensorType, int], ...]
    runs: int


class ForwardNodes(NamedTuple):
    """The nodes of a forward graph.

    Attributes:
      of_node: by node.
      unbounded: names of loops whose number of turns is not known and counts as 1.
      flows: the nodes through which a gradient flows.
    """

    of_node: Dict[int, ForwardNode]
    unbounded: Tuple[str, ...]
    flows: FrozenSet[int]


def read_nodes(
    view: GraphView,
    types: Types,
    nodes: Collection[int],
    starts: Optional[Collection[int]] = None,
    ends: Optional[Collection[Tensor]] = None,
    precision: Optional[Precision] = None,
    custom: Optional[Mapping[int, CustomGradient]] = None,
) -> ForwardNodes:
    """Reads nodes.

    Args:
      view: the graph.
      types: of the nodes and of their producers.
      nodes: those of a forward pass.
      starts: the nodes whose gradients are wanted; None: all variables.
      ends: the tensors that gradients come from; None: those that no other of the nodes takes.
      precision: mixed precision, which the types have in them; None without it.
      custom: the backward passes of ops with gradient functions of the script.
    """
    frames = costs_loops.loop_frames(view)
    folding = Folding(view, types)
    counts = costs_loops.trip_counts(view, folding, frames) if frames else {}
    runs = costs_loops.runs(frames, counts, nodes)
    members = frozenset(nodes)
    passes = _Passes(view, custom or {})
    flows = _differentiated(view, members, types, starts, ends, passes)
    takers = _takers(members, flows, passes)
    for node, output in ends or ():
        takers[node].setdefault(output, [])
    sums = _sums(view, types, flows, takers)
    reader = _Reader(view, types, folding, flows, precision)
    found = {}
    for node in nodes:
        signature = None
        if kind_of(view.types[node]) != Kind.FREE:
            used: Tuple[bool, ...] = (False,) * len(types[node])
            if node in flows:
                used = tuple(not takers[node] or output in takers[node] for output in range(len(types[node])))
            signature = reader.signature(node, used)
        found[node] = ForwardNode(signature, tuple(sums.get(node, ())), runs.get(node, 1))
    unbounded = sorted({frames[n][-1] for n in nodes if n in frames and counts.get(frames[n][-1]) is None})
    return ForwardNodes(found, tuple(unbounded), flows)


def keeps_order(view: GraphView, folding: Folding, node: int) -> bool:
    """Whether a transpose changes nothing, such as that in a matmul of a tensor of rank 3 with a matrix."""
    if view.types[node] != "Transpose":
        return False
    permutation = folding.vector(folding.data_inputs(node)[1][0])
    return len(permutation) > 0 and list(permutation) == list(range(len(permutation)))


def is_free(op: Signature) -> bool:
    """Whether an op takes no time, with these inputs: as `keeps_order`."""
    if op.type != "Transpose" or not op.constants[1]:
        return False
    return list(op.constants[1]) == list(range(len(op.constants[1])))


def variable_type(view: GraphView, node: int) -> Optional[TensorType]:
    """Shape and dtype of the variable that a node is, or passes the handle of; None for other nodes."""
    while view.passes_on(node):
        node = view.producers[node][0]
    if view.types[node] not in op_types.VARIABLES:
        return None
    attrs = view.nodes[node].attr
    shape = tf.TensorShape(attrs["shape"].shape)
    found: Shape = None if shape.ndims is None else tuple(shape.as_list())
    return TensorType(found, tf.as_dtype(attrs["dtype"].type))


class _Reader:
    """Reads the signatures of nodes."""

    def __init__(
        self, view: GraphView, types: Types, folding: Folding, flows: FrozenSet[int], precision: Optional[Precision]
    ) -> None:
        self._view = view
        self._precision = precision
        self._types = types
        self._folding = folding
        self._flows = flows
        self._attrs: Dict[bytes, Tuple[bytes, ...]] = {}
        self._constants: Dict[int, Constant] = {}

    def signature(self, node: int, used: Tuple[bool, ...]) -> Signature:
        """A node as it is differentiated by itself."""
        view, types, flows, precision = self._view, self._types, self._flows, self._precision
        inputs, constants, wanted, variables = [], [], [], []
        for position, (producer, output) in enumerate(data_inputs(view, node)):
            given = types[producer][output]
            if precision is not None:
                given = precision.taken(node, position, (producer, output), given)
            is_handle = given.dtype == tf.resource
            inputs.append(given)
            constants.append(self._constant(producer, given))
            wanted.append(node in flows and (producer in flows or is_handle))
            variables.append(variable_type(view, producer) if is_handle else None)
        serialized = view.nodes[node].serialized_attrs
        if precision is not None and node in precision.type_attrs:
            serialized = precision.attributes(node, serialized)
        if serialized not in self._attrs:
            self._attrs[serialized] = backward.attributes_of(serialized)
        handles = tuple(variables) if any(variables) else ()
        return Signature(
            view.types[node], self._attrs[serialized], tuple(inputs), tuple(types[node]), tuple(constants),
            tuple(wanted), used, handles,
        )  # fmt: skip

    def _constant(self, producer: int, given: TensorType) -> Constant:
        """The elements of a constant such as axes or a shape; None if they are not known."""
        if given.dtype.base_dtype not in (tf.int32, tf.int64) or given.shape is None or len(given.shape) > 1:
            return None
        if producer not in self._constants:
            self._constants[producer] = self._known(producer, given)
        return self._constants[producer]

    def _known(self, producer: int, given: TensorType) -> Constant:
        values = self._folding.vector(producer) or ([self._folding.scalar(producer)] if given.shape == () else [])
        if given.shape and len(values) != given.shape[0]:
            return None
        known = tuple(one for one in values if one is not None)
        return None if len(known) < len(values) or (not values and given.shape != (0,)) else known


def _differentiated(
    view: GraphView,
    members: FrozenSet[int],
    types: Types,
    starts: Optional[Collection[int]],
    ends: Optional[Collection[Tensor]],
    passes: "_Passes",
) -> FrozenSet[int]:
    """The nodes through which a gradient flows: computed from the starts, and on the way to the ends."""
    if starts is None:
        starts = [node for node in members if view.types[node] in op_types.VARIABLES]
    if not starts or (ends is not None and not ends):
        return frozenset()
    reached = view.descendants(starts, stop=lambda node: node not in members) & members
    floating = frozenset(
        node for node in reached
        if view.types[node] not in _ENDING and any(backward.has_gradient(one.dtype) for one in types[node])
    )  # fmt: skip
    if ends is None:
        taken = {producer for node in members for producer in view.producers[node]}
        objective = [node for node in floating if node not in taken]
    else:
        objective = [node for node, _ in ends if node in floating]
    return passes.ancestors(objective, floating)


class _Passes:
    """Through which inputs of ops gradients pass: a gradient function of the script may leave some out."""

    def __init__(self, view: GraphView, custom: Mapping[int, CustomGradient]) -> None:
        self._view, self._custom = view, custom

    def inputs(self, node: int) -> List[Tensor]:
        """The inputs of a node through which gradients pass."""
        found = data_inputs(self._view, node)
        if node in self._custom:
            wanted = self._custom[node].wanted
            found = [one for at, one in enumerate(found) if at in wanted]
        return found

    def ancestors(self, ends: Collection[int], among: FrozenSet[int]) -> FrozenSet[int]:
        """The nodes of `among` from which gradients come to the ends, through such nodes alone."""
        if not self._custom:
            return frozenset(self._view.ancestors(ends, stop=lambda node: node not in among) & among)
        found: Set[int] = set()
        waiting = list(ends)
        while waiting:
            node = waiting.pop()
            if node in among and node not in found:
                found.add(node)
                waiting += [producer for producer, _ in self.inputs(node)]
        return frozenset(found)


def _takers(members: Collection[int], flows: FrozenSet[int], passes: "_Passes") -> Dict[int, Dict[int, List[int]]]:
    """Node -> output -> those of `flows` that take it."""
    found: Dict[int, Dict[int, List[int]]] = {node: {} for node in members}
    for consumer in flows:
        for producer, output in passes.inputs(consumer):
            if producer in found:
                found[producer].setdefault(output, []).append(consumer)
    return found


def _sums(
    view: GraphView, types: Types, flows: FrozenSet[int], takers: Mapping[int, Mapping[int, List[int]]]
) -> Dict[int, List[Tuple[TensorType, int]]]:
    """Node -> the sums of gradients that count there."""
    found: Dict[int, List[Tuple[TensorType, int]]] = {}
    for node in flows:
        for output, consumers in takers[node].items():
            if len(consumers) > 1 and backward.has_gradient(types[node][output].dtype):
                # Counts where the gradients come from: a variable takes no time, so that no cut comes after it.
                found.setdefault(min(consumers), []).append((types[node][output], len(consumers)))
        if view.types[node] in _INTO_LOOPS and view.nodes[node].attr["is_constant"].b:
            found.setdefault(node, []).append((types[node][0], 2))  # each turn adds its part to the gradient
    return found
