"""Which ops of a forward pass compute in half precision, by the lists of `op_lists.py`.

    x --> MatMul --> BiasAdd --> Relu --> MatMul --> Softmax --> Mul --> MatMul
          half       half        half     half       float       float   half

1. Ops of ALLOW are half.
2. Ops of DENY stay float, and so do ops of INFER after them, also where ops of CLEAR lie between.
3. The remaining ops of INFER and CLEAR are half between two ops of half precision,
4. and ops of CLEAR next to one.

(These are the rules of TensorFlow's own rewriter for mixed precision.) Ops of INFER and CLEAR stay float if they read a
number that half precision makes zero or infinite: tf.maximum(x, 1e-9). Values computed from variables and constants
alone stay float, and their result is converted where it is used. Loop variables and outputs of branches stay float, as
their ops are in PRESERVE; so do ops without a half-precision kernel on their device. This module changes nothing.
"""

import collections
import re
from typing import Any, Callable, Collection, Dict, FrozenSet, Iterable, List, NamedTuple, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.control_flow import data_order
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.amp import op_lists
from epl.utils import tf_compat

_CPU = re.compile(r"/(?:device:)?cpu\b", re.IGNORECASE)
_FLOAT = tf.float32.as_datatype_enum
_FOLLOWING = op_lists.INFER | op_lists.CLEAR
# Ops that reshape, repeat or scale a number of the script: 1e-9 * tf.ones_like(x).
_HAND_ON = frozenset(
    ["BroadcastTo", "ExpandDims", "Fill", "Identity", "Mul", "Neg", "Reshape", "Squeeze", "Tile", "Transpose"]
)
_LISTED = op_lists.ALLOW | op_lists.DENY | _FOLLOWING


class TypedPorts(NamedTuple):
    """Positions of the inputs and outputs of an op that have the type in which it computes."""

    inputs: FrozenSet[int]
    outputs: FrozenSet[int]


class HalfSelection(NamedTuple):
    """The ops that compute in half precision, as nodes of a view.

    Attributes:
      half: the nodes, each after its producers.
      places: their inputs and outputs in half precision.
      weights: nodes that are computed from variables and constants alone.
      constants: nodes that are computed from constants alone.
    """

    half: List[int]
    places: Dict[int, TypedPorts]
    weights: Set[int]
    constants: Set[int]


# (op type, its attribute that names the type, type, "CPU" or "GPU") -> whether there is a kernel
HasKernel = Callable[[str, str, tf.DType, str], bool]


def choose(
    tf_graph: tf.Graph,
    view: GraphView,
    roots: Iterable[int],
    kept: Collection[int],
    half: tf.DType,
    device_type: str,
    has_kernel: HasKernel = tf_compat.has_kernel,
) -> HalfSelection:
    """Finds the ops that compute in half precision.

    Args:
      tf_graph: the graph.
      view: its view.
      roots: the nodes that are differentiated.
      kept: further nodes that stay as they are.
      half: tf.float16 or tf.bfloat16.
      device_type: "CPU" or "GPU", for ops that are not pinned to a CPU.
      has_kernel: whether a kernel exists.
    """
    needed = view.ancestors(roots)
    order = [node for node in data_order(view) if node in needed]
    places = _Places(tf_graph, view)
    able = _Able(view, half, device_type, has_kernel)
    weights, constants = _constant(tf_graph, view, order)
    lossy = _lossy(view, order, half)
    listed = {
        node: places.of(node) for node in order if view.types[node] in _LISTED and places.is_float(node)
    }  # fmt: skip
    edges = _Edges(view, listed)

    def may_follow(node: int) -> bool:
        converted = _converted(view, node, listed[node])
        return not converted <= weights and converted.isdisjoint(lossy)  # not a lookup's full table

    possible = {
        node
        for node in listed
        if node not in kept and able.is_able(node) and (view.types[node] in op_lists.ALLOW or may_follow(node))
    }
    chosen = {node for node in possible if view.types[node] in op_lists.ALLOW}
    follows = {node for node in possible if view.types[node] in _FOLLOWING} - _denied(view, edges, listed)
    chosen |= edges.reach(chosen, edges.down, follows) & edges.reach(chosen, edges.up, follows)
    clear = {node for node in follows - chosen if view.types[node] in op_lists.CLEAR}
    chosen |= edges.reach(chosen, edges.both, clear)
    casts = _casts(view, order, kept, listed, chosen)
    listed.update((node, TypedPorts(frozenset(), frozenset([0]))) for node in casts)
    chosen |= casts
    return HalfSelection(
        [node for node in order if node in chosen], {node: listed[node] for node in chosen}, weights, constants
    )


def describe(view: GraphView, choice: HalfSelection, half: tf.DType) -> str:
    """Which ops compute in half precision, by type, for people."""
    counts = collections.Counter(view.types[node] for node in choice.half)
    return "{} ops compute in {}: {}".format(
        len(choice.half), half.name, ", ".join(f"{counts[name]} {name}" for name in sorted(counts)) or "none"
    )


def describe_rest(view: GraphView, choice: HalfSelection, roots: Iterable[int]) -> str:
    """Which ops that a list names stay float32, by type and list, for people."""
    rest = view.ancestors(roots) - set(choice.half)
    lines = []
    for name, types in (("ALLOW", op_lists.ALLOW), ("DENY", op_lists.DENY), ("INFER", op_lists.INFER)):
        counts = collections.Counter(view.types[node] for node in rest if view.types[node] in types)
        if counts:
            found = ", ".join(f"{counts[op_type]} {op_type}" for op_type in sorted(counts))
            lines.append(f"  of {name} stay float32: {found}")
    return "\n".join(lines)


class _Places:
    """Reads from op definitions which inputs and outputs have the type in which an op computes."""

    def __init__(self, tf_graph: tf.Graph, view: GraphView) -> None:
        self._tf_graph = tf_graph
        self._view = view

    def is_float(self, node: int) -> bool:
        """Whether a node computes in float32 and has the default gradient of its op type."""
        attrs = self._view.nodes[node].attr
        key = type_attr(self._view.types[node])
        return key in attrs and attrs[key].type == _FLOAT and "_gradient_op_type" not in attrs

    def of(self, node: int) -> TypedPorts:
        definition = tf_compat.op_def(self._tf_graph, self._view.types[node])
        return TypedPorts(self._positions(node, definition.input_arg), self._positions(node, definition.output_arg))

    def _positions(self, node: int, arguments: Iterable[Any]) -> FrozenSet[int]:
        key = type_attr(self._view.types[node])
        found: Set[int] = set()
        position = 0
        for argument in arguments:
            count = 1
            if argument.number_attr:
                count = self._view.nodes[node].attr[argument.number_attr].i
            elif argument.type_list_attr:
                count = len(self._view.nodes[node].attr[argument.type_list_attr].list.type)
            if argument.type_attr == key:
                found.update(range(position, position + count))
            position += count
        return frozenset(found)


class _Able:
    """Finds whether half-precision kernels exist for an op and its gradient."""

    def __init__(self, view: GraphView, half: tf.DType, device_type: str, has_kernel: HasKernel) -> None:
        self._view = view
        self._half = half
        self._device_type = device_type
        self._has_kernel = has_kernel
        self._known: Dict[Tuple[str, str], bool] = {}

    def is_able(self, node: int) -> bool:
        op_type = self._view.types[node]
        if op_type in op_lists.PRESERVE or op_type not in op_lists.ALLOW | _FOLLOWING:
            return False
        device = "CPU" if _CPU.search(self._view.nodes[node].device) else self._device_type
        if (op_type, device) not in self._known:
            needed = (op_type,) + tuple(op_lists.GRADIENT_KERNELS.get(op_type, ()))
            self._known[op_type, device] = all(
                self._has_kernel(name, type_attr(name), self._half, device) for name in needed
            )
        return self._known[op_type, device]


class _Edges:
    """The edges for float values among ops of the lists."""

    def __init__(self, view: GraphView, listed: Dict[int, TypedPorts]) -> None:
        self.up: Dict[int, List[int]] = {node: [] for node in listed}
        self.down: Dict[int, List[int]] = {node: [] for node in listed}
        self.both: Dict[int, List[int]] = {node: [] for node in listed}
        for node, places in listed.items():
            for position, (producer, output) in enumerate(data_inputs(view, node)):
                if position in places.inputs and producer in listed and output in listed[producer].outputs:
                    self.up[node].append(producer)
                    self.down[producer].append(node)
        for node in listed:
            self.both[node] = self.up[node] + self.down[node]

    @staticmethod
    def reach(starts: Iterable[int], edges: Dict[int, List[int]], through: Set[int]) -> Set[int]:
        """The nodes of `through` that paths from `starts` reach through nodes of `through` alone."""
        found: Set[int] = set()
        stack = list(starts)
        while stack:
            for other in edges[stack.pop()]:
                if other in through and other not in found:
                    found.add(other)
                    stack.append(other)
        return found


def _denied(view: GraphView, edges: _Edges, listed: Dict[int, TypedPorts]) -> Set[int]:
    """The ops of DENY, those of INFER after them, and those of CLEAR between these."""
    deny = {node for node in listed if view.types[node] in op_lists.DENY}
    infer = {node for node in listed if view.types[node] in op_lists.INFER}
    clear = {node for node in listed if view.types[node] in op_lists.CLEAR}
    leading = edges.reach(deny | infer, edges.up, clear)
    return deny | edges.reach(deny, edges.down, deny | infer | leading)


def _constant(tf_graph: tf.Graph, view: GraphView, order: Iterable[int]) -> Tuple[Set[int], Set[int]]:
    """The nodes computed from variables and constants alone, and those computed from constants alone."""
    weights: Set[int] = set()
    constants: Set[int] = set()
    for node in order:
        op_type = view.types[node]
        data = {producer for producer, _ in data_inputs(view, node)}
        steady = op_type in op_types.READS or not tf_compat.is_stateful(tf_graph, op_type)
        if op_type in op_types.VARIABLES:
            weights.add(node)
        elif op_type == "Const":
            weights.add(node)
            constants.add(node)
        elif data and data <= weights and steady:
            weights.add(node)
            if data <= constants:
                constants.add(node)
    return weights, constants


def _converted(view: GraphView, node: int, places: TypedPorts) -> Set[int]:
    """The nodes whose values would be converted for an op in half precision."""
    inputs = data_inputs(view, node)
    return {inputs[position][0] for position in places.inputs}


def _lossy(view: GraphView, order: Iterable[int], half: tf.DType) -> Set[int]:
    """The nodes whose value is a number of the script that half precision makes zero or infinite: 1e-9, -1e9."""
    found: Set[int] = set()
    for node in order:
        op_type = view.types[node]
        if op_type == "Const" and view.nodes[node].attr["dtype"].type == _FLOAT:
            values = tf.make_ndarray(view.nodes[node].attr["value"].tensor)
            with np.errstate(over="ignore", under="ignore"):
                halves = values.astype(half.as_numpy_dtype).astype(np.float32)
            if ((halves == 0) & (values != 0) | np.isinf(halves) & np.isfinite(values)).any():
                found.add(node)
        elif op_type in _HAND_ON and any(producer in found for producer, _ in data_inputs(view, node)):
            found.add(node)
    return found


def _casts(
    view: GraphView, order: Iterable[int], kept: Collection[int], listed: Dict[int, TypedPorts], chosen: Set[int]
) -> Set[int]:
    """Casts of integers or booleans to float32 whose consumers all compute in half precision."""
    consumers = view.consumers()
    found = set()
    for node in order:
        if view.types[node] != "Cast" or node in kept or not consumers[node]:
            continue
        attrs = view.nodes[node].attr
        if attrs["DstT"].type != _FLOAT or tf.as_dtype(attrs["SrcT"].type).is_floating:
            continue
        uses = [
            (consumer, position)
            for consumer in consumers[node]
            for position, (producer, _) in enumerate(data_inputs(view, consumer))
            if producer == node
        ]
        if uses and all(consumer in chosen and position in listed[consumer].inputs for consumer, position in uses):
            found.add(node)
    return found


def type_attr(op_type: str) -> str:
    """The attribute that names the type in which ops compute."""
    return op_lists.TYPE_ATTR.get(op_type, "T")
