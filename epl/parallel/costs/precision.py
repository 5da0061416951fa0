"""What mixed precision makes of a forward pass: which ops compute in half precision, and what is converted for them.

w --> Cast --> MatMul --> Cast --> Softmax       MatMul takes and gives half precision, Softmax float32
x --> Cast ----^
"""

from typing import AbstractSet, Dict, FrozenSet, List, Mapping, NamedTuple, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import node_wire
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.costs.ops import OpRun, OpWork
from epl.parallel.costs.shapes import TensorType, Types

Tensor = Tuple[int, int]  # node, output
Place = Tuple[int, int]  # node, position of an input


class Precision(NamedTuple):
    """The ops of a forward pass that compute in half precision, as nodes of its view.

    Attributes:
      dtype: tf.float16 or tf.bfloat16.
      type_attrs: node -> the attribute that names the type in which it computes.
      inputs, outputs: node -> positions of its inputs and outputs in half precision.
      weights: nodes computed from variables and constants alone: converted for each op that takes them, and again for
        its backward pass.
      constants: those computed from constants alone: TensorFlow converts them before a step.
    """

    dtype: tf.DType
    type_attrs: Mapping[int, str]
    inputs: Mapping[int, FrozenSet[int]]
    outputs: Mapping[int, FrozenSet[int]]
    weights: FrozenSet[int]
    constants: FrozenSet[int]

    def types_of(self, types: Types) -> Types:
        """The types of all outputs, given those without mixed precision."""
        found = dict(types)
        for node, places in self.outputs.items():
            if node in types:
                found[node] = [
                    one._replace(dtype=self.dtype) if at in places else one for at, one in enumerate(types[node])
                ]
        return found

    def taken(self, node: int, position: int, source: Tensor, given: TensorType) -> TensorType:
        """The type that an op takes at an input, given the type of its source."""
        if position in self.inputs.get(node, ()):
            return given._replace(dtype=self.dtype)
        return given._replace(dtype=tf.float32) if self.is_half(source) else given

    def is_half(self, source: Tensor) -> bool:
        """Whether a tensor that is float32 in the script is computed in half precision."""
        return source[1] in self.outputs.get(source[0], ())

    def attributes(self, node: int, serialized: bytes) -> bytes:
        """The serialized attributes of an op in half precision, given those of the script."""
        entries = node_wire.split_attrs(serialized)
        key = self.type_attrs[node]
        half = tf.AttrValue(type=self.dtype.as_datatype_enum)
        entries[key] = node_wire.field(node_wire.VALUE, half.SerializeToString())
        return b"".join(
            node_wire.field(node_wire.ATTR, node_wire.field(node_wire.KEY, name.encode()) + value)
            for name, value in entries.items()
        )


class Conversion(NamedTuple):
    """A conversion of a tensor, which runs just before the op that first takes the result.

    Attributes:
      given, made: types before and after.
      is_repeated: whether it runs a second time for the backward pass.
      has_gradient: whether a gradient is converted back.
      is_kept: whether the backward pass reads the result of the first run.
    """

    given: TensorType
    made: TensorType
    is_repeated: bool
    has_gradient: bool
    is_kept: bool

    @property
    def forward(self) -> Tuple[OpRun, ...]:
        """What runs in the forward pass."""
        return (_cast(self.given, self.made),)

    @property
    def backward(self) -> Tuple[OpRun, ...]:
        """What runs in the backward pass."""
        again = (_cast(self.given, self.made),) if self.is_repeated else ()
        return again + ((_cast(self.made, self.given),) if self.has_gradient else ())


class Conversions(NamedTuple):
    """All conversions of a forward pass.

    Attributes:
      of_node: node -> those that run just before it.
      places: the inputs that take the result of one.
    """

    of_node: Dict[int, Tuple[Conversion, ...]]
    places: FrozenSet[Place]


NO_CONVERSIONS = Conversions({}, frozenset())


def find_conversions(
    view: GraphView,
    types: Types,
    precision: Precision,
    works: Mapping[int, OpWork],
    flows: AbstractSet[int],
) -> Conversions:
    """The conversions of a forward pass.

    Args:
      view: the graph.
      types: of its tensors, with mixed precision.
      precision: of its ops.
      works: what each node computes, by node, in the order of the forward pass.
      flows: the nodes through which a gradient flows.
    """
    shared: Dict[Tuple[Tensor, tf.DType], Conversion] = {}
    first: Dict[Tuple[Tensor, tf.DType], int] = {}
    found: Dict[int, List[Conversion]] = {}
    places: Set[Place] = set()
    for node, work in works.items():
        for position, source in enumerate(data_inputs(view, node)):
            given = types[source[0]][source[1]]
            made = precision.taken(node, position, source, given)
            if made == given:
                continue
            places.add((node, position))
            if source[0] in precision.constants:
                continue
            is_read = position in work.kept_inputs
            has_gradient = node in flows and source[0] in flows
            if source[0] in precision.weights:
                found.setdefault(node, []).append(Conversion(given, made, is_read, has_gradient, False))
                continue
            key = source, made.dtype
            before = shared.get(key, Conversion(given, made, False, False, False))
            first.setdefault(key, node)
            shared[key] = before._replace(
                has_gradient=before.has_gradient or has_gradient, is_kept=before.is_kept or is_read
            )
    for key, one in shared.items():
        found.setdefault(first[key], []).append(one)
    return Conversions({node: tuple(some) for node, some in found.items()}, frozenset(places))


def _cast(given: TensorType, made: TensorType) -> OpRun:
    node = tf.NodeDef(op="Cast")
    node.attr["SrcT"].type = given.dtype.base_dtype.as_datatype_enum
    node.attr["DstT"].type = made.dtype.base_dtype.as_datatype_enum
    return OpRun(node, (given,), (made,))
