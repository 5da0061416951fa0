"""Values that are known from a graph before it runs: constants, shapes and arithmetic with them.

This is enough for the bound of a loop and the permutation of a transpose; TensorFlow's own folding is not public.
"""

from typing import List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs.shapes import Types

Number = Optional[float]  # None: not known

_SAME = frozenset(["Identity", "Enter", "Cast", "Switch", "Reshape", "Squeeze", "ExpandDims"])  # for a scalar
_ARITHMETIC = frozenset(["Minimum", "Maximum", "Add", "AddV2", "Sub", "Mul"])
_MAX_DEPTH = 20
_MAX_SIZE = 64  # elements; larger constants are data


class Folding:
    """Looks up values in a graph."""

    def __init__(self, view: GraphView, types: Types) -> None:
        """Args: the view, and the types of all nodes whose shapes may be needed."""
        self._view = view
        self._types = types

    def data_inputs(self, node: int) -> List[Tuple[int, int]]:
        """(producer, output) of the data inputs of a node, in order."""
        pairs = []
        for name in self._view.nodes[node].input:
            if name[0] != "^":
                producer, _, output = name.partition(":")
                pairs.append((self._view.index[producer], int(output or 0)))
        return pairs

    def scalar(self, node: int, depth: int = 0) -> Number:
        """The value of a scalar. For the minimum of a known and an unknown one it is the known one, an upper bound."""
        op_type = self._view.types[node]
        if op_type == "Const":
            values = self._constant(node)
            return values[0] if len(values) == 1 else None
        inputs = [producer for producer, _ in self.data_inputs(node)]
        if not inputs or depth > _MAX_DEPTH:
            return None
        if op_type in _SAME:
            return self.scalar(inputs[0], depth + 1)
        if op_type == "StridedSlice" and self._view.nodes[node].attr["shrink_axis_mask"].i == 1:
            values, at = self.vector(inputs[0], depth + 1), self.scalar(inputs[1], depth + 1)
            return values[int(at)] if at is not None and -len(values) <= at < len(values) else None
        if op_type == "TensorArraySizeV3":
            arrays = [producer for producer in inputs if self._view.types[producer] == "TensorArrayV3"]
            return self.scalar(self.data_inputs(arrays[0])[0][0], depth + 1) if arrays else None
        if op_type in _ARITHMETIC:
            return _arithmetic(op_type, [self.scalar(producer, depth + 1) for producer in inputs])
        return None

    def vector(self, node: int, depth: int = 0) -> Sequence[Number]:
        """The elements of a vector; an empty list if not even its length is known."""
        op_type = self._view.types[node]
        inputs = self.data_inputs(node)
        if op_type == "Const":
            return self._constant(node)
        if not inputs or depth > _MAX_DEPTH:
            return ()
        if op_type == "Shape":
            producer, output = inputs[0]
            return self._types[producer][output].shape or () if producer in self._types else ()
        if op_type in ("Identity", "Cast"):
            return self.vector(inputs[0][0], depth + 1)
        if op_type == "InvertPermutation":
            places = [-1 if one is None else int(one) for one in self.vector(inputs[0][0], depth + 1)]
            return [places.index(at) for at in range(len(places))] if set(places) == set(range(len(places))) else ()
        if op_type == "Pack":
            return [self.scalar(producer, depth + 1) for producer, _ in inputs]
        if op_type == "ConcatV2":
            parts = [self.vector(producer, depth + 1) for producer, _ in inputs[:-1]]
            empty = [self._types[p][o].shape == (0,) if p in self._types else False for p, o in inputs[:-1]]
            if all(part or is_empty for part, is_empty in zip(parts, empty)):
                return [value for part in parts for value in part]
        return ()

    def _constant(self, node: int) -> Sequence[Number]:
        tensor = self._view.nodes[node].attr["value"].tensor
        size = 1
        for dim in tensor.tensor_shape.dim:
            size *= dim.size
        if size > _MAX_SIZE or len(tensor.tensor_shape.dim) > 1:
            return ()
        array = tf.make_ndarray(tensor)
        return array.reshape([-1]).tolist() if array.dtype.kind in "iuf" else ()


def _arithmetic(op_type: str, values: Sequence[Number]) -> Number:
    known = [value for value in values if value is not None]
    if op_type == "Minimum" and known:
        return min(known)
    if len(known) < len(values):
        return None
    if op_type == "Maximum":
        return max(known)
    left, right = known
    return {"Sub": left - right, "Mul": left * right}.get(op_type, left + right)
