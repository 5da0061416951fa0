"""The origin of row numbers: they come from data, or from the model, which counts the rows of the batch that it has.

Numbers from data, and one constant for all rows, count over all rows of a table. Numbers that the model computes from
shapes alone start again at 0 in each shard of a cut batch: `tf.range(tf.shape(x)[0])`, `tf.eye`, a cumulative sum of
ones, a `tf.py_func` that gets a size.
"""

from typing import Iterator, List, Set

from epl.parallel.sharding.forward_shapes import ASKS_SHAPE, ForwardShapes

COUNTS = frozenset(["Range"] + [op + of for op in ("MatrixDiag", "MatrixSetDiag") for of in ("", "V2", "V3")])
NO_VALUES = ASKS_SHAPE | {"OnesLike", "ZerosLike"}
# Op type -> the inputs whose values it gives unchanged, or combines element by element.
_VALUES = {
    **dict.fromkeys(["Add", "AddV2", "Sub", "Mul", "RealDiv", "FloorDiv", "Maximum", "Minimum"], slice(0, 2)),
    **dict.fromkeys(["Cast", "Identity", "StopGradient", "ExpandDims", "Squeeze", "Reshape", "Transpose"], slice(0, 1)),
    **dict.fromkeys(["BroadcastTo", "OneHot", "Pad", "Slice", "StridedSlice", "Tile"], slice(0, 1)),
    **dict.fromkeys(["Fill", "Split"], slice(1, 2)),
    **dict.fromkeys(["Select", "SelectV2"], slice(1, 3)),
    "Pack": slice(0, None),
    "ConcatV2": slice(0, -1),
}


def counts_over_all(forward: ForwardShapes, labels: str) -> bool:
    """Whether labels are known to count over all classes: they are data, or one constant for all rows."""
    return all(_is_of_data(forward, one) or _is_constant(forward, one) for one in _made_of(forward, labels))


def counts_rows(forward: ForwardShapes, ids: str) -> bool:
    """Whether the model computes the ids of a gather from shapes alone, in each dimension if they are of entries."""
    name = _node_name(ids)
    columns = forward.inputs[name][_VALUES[forward.types[name]]] if forward.types[name] in ("Pack", "ConcatV2") else []
    return all(_is_own(forward, column) for column in columns or [ids])


def _is_own(forward: ForwardShapes, ids: str) -> bool:
    made_of = list(_made_of(forward, ids))
    return not any(_is_of_data(forward, one) for one in made_of) and not all(
        _is_constant(forward, one) for one in made_of
    )


def _made_of(forward: ForwardShapes, tensor: str) -> Iterator[str]:
    """The tensors from which a tensor is computed element by element."""
    found: Set[str] = set()
    stack = [tensor]
    while stack:
        tensor = stack.pop()
        if tensor in found:
            continue
        found.add(tensor)
        name = _node_name(tensor)
        if forward.types[name] in _VALUES:
            stack += forward.inputs[name][_VALUES[forward.types[name]]]
        else:
            yield tensor


def _is_constant(forward: ForwardShapes, tensor: str) -> bool:
    """Whether all values are equal, as those of a fed scalar are; or are a shape, which is the same for all rows."""
    name = _node_name(tensor)
    if forward.types[name] in NO_VALUES or (forward.is_data(name) and forward.shapes.get(tensor) == ()):
        return True
    value = forward.constant(tensor)
    return value is not None and (value == value.flat[:1]).all()


def _is_of_data(forward: ForwardShapes, tensor: str) -> bool:
    """Whether a tensor is computed from values of data; a scalar does not count, as it may be a size."""
    if forward.types[_node_name(tensor)] in COUNTS:
        return False
    found: Set[str] = set()
    stack: List[str] = [tensor]
    while stack:
        tensor = stack.pop()
        if tensor in found:
            continue
        found.add(tensor)
        name = _node_name(tensor)
        if forward.is_data(name) and forward.shapes.get(tensor) != ():
            return True
        if forward.types[name] not in NO_VALUES:
            stack += forward.inputs[name]
    return False


def _node_name(tensor: str) -> str:
    return tensor.partition(":")[0]
