"""Shapes of a model as functions of the rows of its batch: found for two numbers of rows, straight lines between them.

    rows          x          reshape(x, [-1, 8])    matmul
    32            [32, 4, 8]     [128, 8]           [128, 6]
    64            [64, 4, 8]     [256, 8]           [256, 6]        found
    5             [5, 4, 8]      [20, 8]            [20, 6]         on the lines

TensorFlow infers the shapes where the graph leaves the batch open. A batch that is built into the graph is a factor of
dimensions of what is computed from the data: of the first such dimension of each tensor.
"""

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import batch_nodes
from epl.ir.view import GraphView
from epl.parallel.costs.shapes import UNKNOWN_DIMENSION, Shape, TensorType, Types, output_types, still_open, types_of
from epl.profiler.batch_sizes import batch_shapes
from epl.utils import tf_compat

_FED = frozenset(["Placeholder", "PlaceholderV2"])


class RowSizes(NamedTuple):
    """The shapes of a model for two numbers of rows.

    Attributes:
      script_rows: rows of a batch, as the script has it; None if it leaves them open.
      rows: the two numbers, the smaller first.
      types: of all nodes, for each of them.
      by_rows: the nodes whose outputs have rows, or are computed from rows.
      notes: assumptions, for people.
    """

    script_rows: Optional[int]
    rows: Tuple[int, int]
    types: Tuple[Types, Types]
    by_rows: FrozenSet[int]
    notes: Tuple[str, ...]

    def place_of(self, rows: int) -> float:
        """Where a number of rows lies: 0 at the first, 1 at the second of the two."""
        return (rows - self.rows[0]) / (self.rows[1] - self.rows[0])


def between(first: TensorType, second: TensorType, place: float) -> TensorType:
    """The type of a tensor at a place of the line through two types of it."""
    if first == second or first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return first
    sizes = tuple(_between(one, other, place) for one, other in zip(first.shape, second.shape))
    return TensorType(sizes, first.dtype)


def find_row_sizes(tf_graph: tf.Graph, view: GraphView, nodes: Sequence[int]) -> RowSizes:
    """The shapes of a model for two numbers of rows.

    Args:
      tf_graph: the graph.
      view: of it.
      nodes: the forward pass.
    """
    needed = view.ancestors(nodes)
    graph_types = types_of(tf_graph, view, needed)
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
    moving = frozenset(batch_nodes(view, stateful) & needed)
    sources = _Sources(view, graph_types, set(nodes))
    if sources.open:
        base = sources.batch or UNKNOWN_DIMENSION
        first, notes = sources.inferred(tf_graph, needed, base)
        second, _ = sources.inferred(tf_graph, needed, 2 * base)
        if sources.are_closed(first) and sources.are_closed(second):
            first, second = (
                _completed(found, graph_types, moving, rows) for found, rows in ((first, base), (second, 2 * base))
            )
            grown = frozenset(node for node in needed if first[node] != second[node])
            return RowSizes(
                sources.batch, (base, 2 * base), (first, second), moving | grown, sources.notes(notes)
            )  # fmt: skip
    rows = sources.batch or min(sources.built_in, default=None)
    base = rows or UNKNOWN_DIMENSION
    first, notes = graph_types, still_open(view, graph_types)
    if sources.open:
        first, notes = sources.inferred(tf_graph, needed, base)
    first = _completed(first, graph_types, moving, base)
    second = {node: [_grown(one, base) if node in moving else one for one in first[node]] for node in needed}
    if rows is not None:
        notes.append(
            f"the graph has batches of {rows} rows built in; costs for others assume that its tensors grow with them"
        )
    return RowSizes(rows, (base, 2 * base), (first, second), moving, tuple(notes))


class _Sources:
    """Where the rows of a model come from.

    Attributes:
      open: the tensors whose number of rows the graph leaves open -> their shapes.
      batch: the rows of a batch of the input pipeline, if it tells.
      built_in: numbers of rows that the graph has built in, of fed batches and queues.
    """

    def __init__(self, view: GraphView, types: Types, nodes: Set[int]) -> None:
        self._view = view
        self._batches = {name: shape[0] for name, shape in batch_shapes(view).items() if shape}
        self.open: Dict[str, Tuple[Optional[int], ...]] = {}
        self.built_in: List[int] = []
        of_pipeline = []
        for node in view.of_types(op_types.DATA_SOURCES | _FED):
            for output, one in enumerate(types[node] if node in nodes else ()):
                name = f"{view.nodes[node].name}:{output}"
                if not one.shape:
                    continue
                rows = one.shape[0] if one.shape[0] is not None else self._batches.get(name)
                if one.shape[0] is None:
                    self.open[name] = one.shape
                elif rows:
                    self.built_in.append(rows)
                if view.types[node] not in _FED and rows:
                    of_pipeline.append(rows)
        self.batch = min(of_pipeline, default=None)

    def inferred(self, tf_graph: tf.Graph, needed: Set[int], rows: int) -> Tuple[Types, List[str]]:
        """All types with a number of rows in the open sources."""
        known: Dict[str, Sequence[Optional[int]]] = {}
        for name, shape in self.open.items():
            own = self._batches.get(name) or self.batch or rows
            known[name] = (own * rows // (self.batch or rows),) + shape[1:]
        return output_types(tf_graph, self._view, needed, known)

    def are_closed(self, types: Types) -> bool:
        """Whether TensorFlow has taken the number of rows, which the model may contradict."""
        places = [(self._view.index[name.partition(":")[0]], int(name.partition(":")[2])) for name in self.open]
        return all(None not in (types[node][output].shape or (None,)) for node, output in places)

    def notes(self, notes: Sequence[str]) -> Tuple[str, ...]:
        """Assumptions: those of the inference, and other dimensions than the rows."""
        others = sorted(name.partition(":")[0] for name, shape in self.open.items() if None in shape[1:])
        if not others:
            return tuple(notes)
        note = "the dimensions that {} leaves open, other than the batch, count as {}"
        return (note.format(others[0], UNKNOWN_DIMENSION),) + tuple(notes)


def _completed(types: Types, graph_types: Types, moving: FrozenSet[int], rows: int) -> Types:
    """The types, with what the graph knows more of shapes in loops, which Python has set, and with rows."""
    found = {}
    for node, outputs in types.items():
        known = [_known(one, other) for one, other in zip(outputs, graph_types[node])]
        found[node] = [_filled(one, rows) for one in known] if node in moving else known
    return found


def _known(one: TensorType, other: TensorType) -> TensorType:
    """A type that was inferred, with the dimensions that the graph knows where it has none."""
    if one.shape is None:
        return other
    if None not in one.shape or other.shape is None or len(other.shape) != len(one.shape):
        return one
    sizes = tuple(mine if mine is not None else more for mine, more in zip(one.shape, other.shape))
    return TensorType(sizes, one.dtype)


def _filled(tensor: TensorType, rows: int) -> TensorType:
    """A tensor of unknown rows, with rows."""
    if tensor.shape is None or None not in tensor.shape:
        return tensor
    return _with(tensor, tensor.shape.index(None), rows)


def _grown(tensor: TensorType, rows: int) -> TensorType:
    """A tensor of `rows` rows, with twice as many."""
    for at, size in enumerate(tensor.shape or ()):
        if size and size % rows == 0:
            return _with(tensor, at, 2 * size)
    return tensor


def _with(tensor: TensorType, axis: int, size: int) -> TensorType:
    shape: Shape = tensor.shape
    assert shape is not None
    return TensorType(shape[:axis] + (size,) + shape[axis + 1 :], tensor.dtype)


def _between(one: Optional[int], other: Optional[int], place: float) -> Optional[int]:
    if one is None or other is None or one == other:
        return one
    return max(1, round(one + (other - one) * place))


def constants_between(
    first: Optional[Tuple[float, ...]], second: Optional[Tuple[float, ...]], place: float
) -> Optional[Tuple[float, ...]]:
    """A small constant of whole numbers at a place of the line through two of its values."""
    if first is None or second is None or len(first) != len(second):
        return first
    return tuple(one if one == other else round(one + (other - one) * place) for one, other in zip(first, second))
