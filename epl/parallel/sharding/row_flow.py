"""Flow of the rows of a batch through a graph: which values are of all rows, of each row, or of one replica's rows.

A replica computes on its own rows of the batch. The sharding rules say what an op makes of them:

    rows [B, d] --> dense --> rows [B, k] --> mean --> MEAN          of all replicas the mean: exact
                                |
                                '--> sum --> SUM --.
    rows --> mask --> sum --> SUM -----------------'--> divide --> OWN       each replica has a quotient of its own

An op *mixes rows* if its result on all rows is not made of its results on the rows of each replica: it divides by a sum
over rows, compares rows with each other, or takes their maximum. What a rule does not know for sure counts as unknown,
and mixes nothing: shapes that the graph does not say, loops, functions, ops without a rule that keep the rows.
"""

from typing import AbstractSet, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView, functions_of
from epl.parallel.sharding.forward_shapes import ASKS_SHAPE
from epl.parallel.sharding.placements import PARTIAL, REPLICATED, shard
from epl.parallel.sharding.row_evidence import GATHERS
from epl.parallel.sharding.row_numbers import COUNTS, NO_VALUES
from epl.parallel.sharding.rules import all as all_rules  # noqa: F401  (fills the registry)
from epl.parallel.sharding.rules import lookup, reshape, shapes
from epl.parallel.sharding.rules.common import constant_ints
from epl.parallel.sharding.rules.registry import RULES, Choice, OpInfo, Shape, TensorInfo, choices_of
from epl.utils import tf_compat

Output = Tuple[int, int]  # node of a view, output

SAME_KIND, ROWS, PARTIAL_SUM, COUNT = "same", "rows", "partial", "count"
_OWN, _UNKNOWN = "own", "unknown"
_RANKS = 1 << 30  # more than any size: rules cut no other dimension than the rows
_CONSTANT_ELEMENTS = 64
_PRODUCTS = frozenset(["BatchMatMul", "BatchMatMulV2", "MatMul", "Mul"])
_SELECTS = frozenset(["Select", "SelectV2"])
_DIVISIONS = frozenset(["Div", "DivNoNan", "FloorDiv", "RealDiv", "TruncateDiv"])
# Ops that give their first input, and may look at it.
_SHOWS = frozenset(["CheckNumerics", "EnsureShape", "Identity", "Print", "StopGradient"])
# Ops that only move elements: where their rule does not tell the rows after them, the rows are somewhere else.
_MOVES = frozenset(one for one, found in RULES.items() if found.__module__ in (reshape.__name__, shapes.__name__))
# Ops that pick rows by number, or group them.
_LOOKUPS = frozenset(one for one, found in RULES.items() if found.__module__ == lookup.__name__) - {"OneHot"}
# Functions of a multiple -> the power of the factor that they are multiplied by.
_POWERS = {"L2Loss": 2, "Rsqrt": -0.5, "Sign": 0, "Sqrt": 0.5, "Square": 2}
_ARITHMETIC: Dict[str, Callable[..., np.ndarray]] = {"Add": np.add, "AddV2": np.add, "FloorMod": np.mod}  # of integers
_BATCH_NORMS = frozenset(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"])
_BROADCASTS = "BroadcastGradientArgs"  # the dimensions that the gradients of two broadcast shapes are summed over
# Ops that pick numbers of a vector, or multiply them: the input that is the vector.
_SHAPE_AT = {
    "Split": 1,
    **dict.fromkeys(["Cast", "Gather", "GatherV2", "Prod", "Slice", "SplitV", "StridedSlice", "Unpack"], 0),
}
_SLICE_MASKS = ("begin_mask", "ellipsis_mask", "end_mask", "new_axis_mask", "shrink_axis_mask")
_FOLLOWED = op_types.CONTROL_FLOW - op_types.MERGES - {"LoopCond"}


class Flow(NamedTuple):
    """A value on each replica, compared with the value that one device computes from all rows.

    Attributes:
      kind: "same": equal on all replicas. "rows": each replica has its rows. "partial": one device has the sum or the
        mean over the replicas. "count": a size of the replica's batch. "own": computed from the rows of one replica.
        "unknown": depends on rows, or on their number.
      dim: the dimension that holds the rows; of a shape, the position of the number of rows. -1: none.
      degree: the power of the number of rows that it grows with: 1 as their sum does, 0 as their mean, -1 as a row that
        is divided by their number; None: unknown.
      has_data: whether it depends on the values of rows, not on their number alone.
      counts: whether it numbers the rows that the replica has.
      is_picked: whether the values of rows decide how many there are.
    """

    kind: str
    dim: int = -1
    degree: Optional[float] = 0
    has_data: bool = False
    counts: bool = False
    is_picked: bool = False

    @property
    def is_same(self) -> bool:
        """Whether it is equal on all replicas."""
        return self.kind == SAME_KIND

    @property
    def is_mean(self) -> bool:
        """Whether the mean over the replicas is what one device computes, as far as is known."""
        return self.kind != ROWS and self.degree != 1 or self.is_same


SAME = Flow(SAME_KIND)
_NUMBERS = Flow(SAME_KIND, counts=True)  # which may number the rows of one replica
OWN = Flow(_OWN, degree=None, has_data=True)
STATISTIC = Flow(_OWN, has_data=True)  # a number of a replica with which it computes its rows, as batch norm does
UNKNOWN = Flow(_UNKNOWN, degree=None, has_data=True)
_UNKNOWN_SIZE = Flow(_UNKNOWN, degree=None)


def rows(dim: int = 0) -> Flow:
    """The rows of a batch that a replica has, in a dimension."""
    return Flow(ROWS, dim, has_data=True)


class RowFlow:
    """The flow of rows through some nodes of a graph.

    It is one class because all questions about an op are answered from the same view, shapes and known flows.

    Attributes:
      flows: of the outputs of the nodes; those that are equal on all replicas are left out.
      mixing: the nodes that mix rows, in order -> what they do with them, in words.
      kept: the flows of the outputs of nodes that a replica computes with its own means.
    """

    def __init__(
        self,
        tf_graph: tf.Graph,
        view: GraphView,
        nodes: AbstractSet[int],
        sources: Dict[Output, Flow],
        opaque: AbstractSet[int] = frozenset(),
        own_means: AbstractSet[int] = frozenset(),
    ) -> None:
        """Follows rows.

        Args:
          tf_graph: the graph.
          view: of it.
          nodes: where to look; what other nodes give is equal on all replicas.
          sources: where rows begin.
          opaque: nodes whose results are unknown if rows reach them, and that mix nothing.
          own_means: nodes that take means over rows, as batch norm does, as numbers of the replica, and so give its
            rows again; those of them from which no rows are computed take none.
        """
        self._tf_graph = tf_graph
        self._view = view
        self._sources = sources
        self._opaque = opaque
        self._own_means = own_means
        self._shapes: Dict[Output, Tuple[Optional[Shape], tf.DType]] = {}
        self._matches: Dict[Tuple[object, ...], Tuple[str, Tuple[Flow, ...]]] = {}
        self._attrs: Dict[bytes, Dict[str, object]] = {}
        self._followed: Set[int] = set()  # nodes with flows
        self.flows: Dict[Output, Flow] = {}
        self.mixing: Dict[int, str] = {}
        self.kept: Dict[Output, Flow] = {}
        ordered = in_order(view, nodes)
        self._follow_all(ordered)
        if self.kept:
            of_rows = {node for (node, _), flow in self.flows.items() if flow.kind == ROWS and node in own_means}
            self._own_means = own_means & view.ancestors(of_rows)
            if any(node not in self._own_means for node, _ in self.kept):
                self._follow_all(ordered)

    def of(self, output: Output) -> Flow:
        """The flow of an output of a node."""
        return self.flows.get(output, SAME)

    def asked(self, node: int, inputs: Sequence[Flow]) -> Tuple[str, List[Flow]]:
        """What a node would do with such inputs: how it mixes rows, in words, "" if it does not; the flows it gives."""
        known = self.mixing.pop(node, None)
        found = self._results(node, self._view.types[node], data_inputs(self._view, node), inputs)
        mixes = self.mixing.pop(node, "")
        if known is not None:
            self.mixing[node] = known
        return mixes, found

    def _follow_all(self, ordered: Sequence[int]) -> None:
        loops = any(self._view.types[node] in op_types.NEXT_ITERATIONS for node in ordered)
        self._followed, self.flows, self.kept = set(), {}, {}
        for _ in range(2 if loops else 1):  # what a loop gives back is known after the first time
            self.mixing = {}
            for node in ordered:
                self._follow(node)

    def _follow(self, node: int) -> None:
        view = self._view
        op_type = view.types[node]
        if (node, 0) in self._sources:
            outputs = range(self._outputs(node))
            self._set(node, [self._sources.get((node, output), SAME) for output in outputs])
            return
        if self._followed.isdisjoint(view.producers[node]):
            if op_type in COUNTS:
                self._set(node, [_NUMBERS])
            return
        taken = data_inputs(view, node)
        inputs = [self.of(one) for one in taken]
        if all(flow.is_same for flow in inputs):
            is_number = op_type in COUNTS or any(flow.counts for flow in inputs)
            self._set(node, [_NUMBERS if is_number else SAME] * self._outputs(node))
            return
        results = self._results(node, op_type, taken, inputs)
        if node in self._own_means and node in self.mixing and _takes_means(op_type, inputs):
            results = [rows(one.dim) if one.kind == ROWS else STATISTIC for one in results]
            self.kept.update(((node, at), one) for at, one in enumerate(results))
        elif node in self._own_means and STATISTIC in inputs and all(one.kind == _OWN for one in results):
            results = [STATISTIC] * len(results)
            self.kept.update(((node, at), one) for at, one in enumerate(results))
        self._set(node, results)

    def _set(self, node: int, flows: Sequence[Flow]) -> None:
        for output, flow in enumerate(flows):
            if flow is not SAME and flow != SAME:
                self.flows[node, output] = flow
                self._followed.add(node)
            else:
                self.flows.pop((node, output), None)

    def _results(self, node: int, op_type: str, taken: Sequence[Output], inputs: Sequence[Flow]) -> List[Flow]:
        count = self._outputs(node)
        if node in self._opaque:
            return [_unknown(inputs)] * count
        if op_type in _SHOWS or op_type in _FOLLOWED:
            return [inputs[0]] * count
        if op_type in op_types.MERGES:
            return [_joined(inputs), _UNKNOWN_SIZE]
        if op_type in ASKS_SHAPE:
            return [self._size(op_type, taken[at], inputs[at]) for at in range(count)]
        kinds = {flow.kind for flow in inputs} - {SAME_KIND}
        if kinds == {COUNT}:
            return [SAME] * count if op_type == _BROADCASTS else self._counted(node, op_type, taken, inputs)
        if kinds <= {COUNT, _OWN}:
            return [STATISTIC if STATISTIC in inputs and kinds == {_OWN} and OWN not in inputs else OWN] * count
        if kinds <= {COUNT, _OWN, _UNKNOWN}:
            return [_unknown(inputs)] * count
        if op_type == "StridedSliceGrad" and inputs[0].kind == COUNT and inputs[-1].kind == ROWS and inputs[0].dim >= 0:
            return [inputs[-1]._replace(dim=inputs[0].dim)]  # the rows are where those of the sliced tensor are
        if op_type not in RULES:
            return self._without_rule(node, op_type, taken, inputs)
        return self._by_rule(node, op_type, taken, inputs)

    # ---- Numbers of rows.

    def _size(self, op_type: str, taken: Output, flow: Flow) -> Flow:
        """The flow of the shape or size of a tensor."""
        if flow.kind == _UNKNOWN:
            return _UNKNOWN_SIZE
        if flow.kind != ROWS or op_type == "Rank":
            return SAME
        shape = self._shape(taken)[0]
        if shape is not None and shape[flow.dim] is not None:
            return SAME
        if flow.is_picked:
            return Flow(PARTIAL_SUM, flow.dim, 1, has_data=True)
        return Flow(COUNT, flow.dim if op_type != "Size" else -1, 1)

    def _counted(self, node: int, op_type: str, taken: Sequence[Output], inputs: Sequence[Flow]) -> List[Flow]:
        """The flows of what is computed from sizes of the batch and from what is equal on all replicas."""
        if any(flow.dim >= 0 for flow in inputs):
            picked = self._picked_sizes(node, op_type, taken, inputs)
            if picked is not None:
                return picked
        degree = None if any(flow.dim >= 0 for flow in inputs) else _degree(op_type, inputs)
        found = []
        for output in range(self._outputs(node)):
            shape, dtype = self._shape((node, output))
            open_dims = [dim for dim, size in enumerate(shape or ()) if size is None]
            if shape is not None and not open_dims:
                found.append(Flow(COUNT, -1, degree))
            elif len(open_dims) == 1:
                counts = op_type in COUNTS or (dtype.is_integer and any(one.counts for one in inputs))
                found.append(Flow(ROWS, open_dims[0], counts=counts))
            else:
                found.append(_UNKNOWN_SIZE._replace(counts=op_type in COUNTS))
        return found

    def _picked_sizes(
        self, node: int, op_type: str, taken: Sequence[Output], inputs: Sequence[Flow]
    ) -> Optional[List[Flow]]:
        """The flows of sizes that an op picks from a shape, or multiplies; None if that is not known."""
        at = _SHAPE_AT.get(op_type)
        sizes = None if at is None or inputs[at].dim < 0 else self._shape(taken[at])[0]
        if at is None or sizes is None or len(sizes) != 1 or sizes[0] is None:
            return None
        others = [constant_ints(self._info(one)) for place, one in enumerate(taken) if place != at]
        outputs = self._outputs(node)
        if any(one is None for one in others):
            return None
        if op_type == "Prod":
            return [inputs[at]._replace(dim=-1)] if others and others[0] and self._shape((node, 0))[0] == () else None
        numbers = [one for one in others if one is not None]
        picked = _picked(op_type, self._attributes(node), list(range(sizes[0])), numbers, outputs)
        if picked is None:
            return None
        dim = inputs[at].dim
        return [
            SAME if dim not in one else inputs[at]._replace(dim=one.index(dim) if self._shape((node, place))[0] else -1)
            for place, one in enumerate(picked)
        ]

    # ---- Ops on rows.

    def _by_rule(self, node: int, op_type: str, taken: Sequence[Output], inputs: Sequence[Flow]) -> List[Flow]:
        infos = tuple(self._info(one, flow) for one, flow in zip(taken, inputs))
        results = tuple(self._info((node, output)) for output in range(self._outputs(node)))
        key = (
            op_type,
            self._view.nodes[node].serialized_attrs,
            tuple(inputs),
            tuple((info.shape, _bytes(info.constant)) for info in infos),
            tuple(info.shape for info in results),
        )
        if key not in self._matches:
            op = OpInfo(op_type, "", self._attributes(node), infos, results, _RANKS, {})
            self._matches[key] = _match(op, inputs, [self._shape((node, at))[1] for at in range(len(results))])
        mixes, flows = self._matches[key]
        if mixes:
            self.mixing[node] = mixes
        return list(flows)

    def _without_rule(self, node: int, op_type: str, taken: Sequence[Output], inputs: Sequence[Flow]) -> List[Flow]:
        """The flows of an op that no rule knows: TensorFlow infers whether it keeps the rows."""
        count = self._outputs(node)
        values = [self._shape(one)[1] for one in taken] + [self._shape((node, at))[1] for at in range(count)]
        has_data = any(flow.has_data for flow in inputs)
        unknown = [UNKNOWN._replace(has_data=has_data)] * count
        if any(dtype.base_dtype in (tf.resource, tf.variant) for dtype in values):
            return unknown
        if op_type in op_types.PYTHON or len(functions_of(self._view.nodes[node])) > 1:
            return unknown
        at = next((position for position, flow in enumerate(inputs) if flow.kind == ROWS), None)
        trial = None if at is None else self._trial(node, taken, inputs)
        if trial is None:
            return unknown
        found = []
        for output, shape in enumerate(trial):
            dtype = self._shape((node, output))[1]
            dims = [dim for dim, size in enumerate(shape or ()) if size == _TRIAL]
            open_dims = [dim for dim, size in enumerate(shape or ()) if size is None]
            if dims:
                found.append(Flow(ROWS, dims[0], 0, has_data))
            elif shape is not None and open_dims:
                found.append(Flow(ROWS, open_dims[0], None, has_data, dtype.is_integer, is_picked=True))
            else:
                found.append(UNKNOWN._replace(has_data=has_data))
                is_folded = any(
                    size and size % _TRIAL == 0 for size in shape or ()
                )  # SpaceToBatchND: rows times blocks
                if shape is not None and dtype.is_floating and has_data and not is_folded:
                    self.mixing[node] = "makes one value of the rows"
        return found

    def _trial(self, node: int, taken: Sequence[Output], inputs: Sequence[Flow]) -> Optional[List[Optional[Shape]]]:
        """The shapes of an op's outputs for a trial number of rows; None if TensorFlow does not say them."""
        proto = self._view.nodes[node].to_proto()
        for attr in ("_class", "_output_shapes"):
            proto.attr.pop(attr, None)
        proto.device = ""
        graph_def = tf.GraphDef(versions=self._view.graph_def.versions)
        del proto.input[:]
        for at, (one, flow) in enumerate(zip(taken, inputs)):
            shape, dtype = self._shape(one)
            name = f"input{at}"
            source = graph_def.node.add(name=name, op="Placeholder")
            constant = self._constant(one)
            if constant is not None:
                source.op = "Const"
                source.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(constant, dtype.base_dtype))
            elif shape is not None:
                sizes = [_TRIAL if flow.kind == ROWS and dim == flow.dim else size for dim, size in enumerate(shape)]
                source.attr["shape"].shape.CopyFrom(tf.TensorShape(sizes).as_proto())
            source.attr["dtype"].type = dtype.base_dtype.as_datatype_enum
            proto.input.append(name)
        graph_def.node.add().CopyFrom(proto)
        scratch = tf.Graph()
        try:
            names = [one.name for one in graph_def.node]
            tf_compat.import_nodes(scratch, graph_def.SerializeToString(), names, [], [])
        except ValueError:
            return None
        outputs = scratch.get_operation_by_name(proto.name).outputs
        return [None if one.shape.ndims is None else tuple(one.shape.as_list()) for one in outputs]

    # ---- Facts about tensors.

    def _outputs(self, node: int) -> int:
        return len(self._operation(node).outputs)

    def _operation(self, node: int) -> tf.Operation:
        return self._tf_graph.get_operation_by_name(self._view.nodes[node].name)

    def _shape(self, output: Output) -> Tuple[Optional[Shape], tf.DType]:
        if output not in self._shapes:
            tensor = self._operation(output[0]).outputs[output[1]]
            shape = None if tensor.shape.ndims is None else tuple(tensor.shape.as_list())
            self._shapes[output] = shape, tensor.dtype
        return self._shapes[output]

    def _info(self, output: Output, flow: Flow = SAME) -> TensorInfo:
        """Facts for a rule, which is to take numbers as exact: a rounded sum is a sum as well."""
        shape, dtype = self._shape(output)
        base = dtype.base_dtype
        if base == tf.resource:
            return TensorInfo(self._variable_shape(output[0]), tf.float64)
        exact = tf.float64 if base.is_floating or base.is_integer else base
        constant = self._constant(output) if flow.is_same and base.is_integer else None
        return TensorInfo(shape, exact, constant, flow.dim if flow.kind == ROWS else None)

    def _variable_shape(self, handle: int) -> Optional[Shape]:
        """The shape of the variable of a handle."""
        variable = handle
        while self._view.types[variable] not in op_types.VARIABLES and self._view.passes_on(variable):
            variable = self._view.producers[variable][0]
        shape = tf.TensorShape(self._view.nodes[variable].attr["shape"].shape)
        is_variable = self._view.types[variable] in op_types.VARIABLES and shape.ndims is not None
        return tuple(shape.as_list()) if is_variable else None

    def _constant(self, output: Output) -> Optional[np.ndarray]:
        """The value of a small integer, or of a text, that is known when the graph is built."""
        if self._view.types[output[0]] == _BROADCASTS:
            return self._summed_dims(output)
        shape, dtype = self._shape(output)
        base, elements = dtype.base_dtype, tf.TensorShape(shape).num_elements()
        if elements is None or elements > _CONSTANT_ELEMENTS or not (base.is_integer or base == tf.string):
            return None
        of_node = self._view.nodes[output[0]]
        if of_node.op == "Const":
            return tf.make_ndarray(of_node.attr["value"].tensor)
        if of_node.op in _ARITHMETIC:  # (axes + rank) % rank, of the gradient of a mean
            values = [self._constant(one) for one in data_inputs(self._view, output[0])]
            return None if any(one is None for one in values) else _ARITHMETIC[of_node.op](*values)
        return None if base == tf.string else tf_compat.static_value(self._operation(output[0]).outputs[output[1]])

    def _summed_dims(self, output: Output) -> Optional[np.ndarray]:
        """What BroadcastGradientArgs gives for two shapes; None if it is not known.

        It gives the dimensions in which a shape has size 1 or is too short. Dimensions of rows are equally long.
        """
        shapes = [self._sizes(one) for one in data_inputs(self._view, output[0])]
        known = [sizes for sizes in shapes if sizes is not None]
        if len(known) < len(shapes):
            return None
        ones: List[Optional[int]] = [1] * max(map(len, known))
        padded = [ones[len(sizes) :] + sizes for sizes in known]
        own, other = padded if output[1] == 0 else padded[::-1]
        if any(size in (None, _OF_ROWS) and against not in (1, size or 1) for size, against in zip(own, other)):
            return None  # the open size may be 1, or not
        return np.array([dim for dim, size in enumerate(own) if size == 1], np.int32)

    def _sizes(self, output: Output) -> Optional[List[Optional[int]]]:
        """The sizes that a tensor with a shape has; None for an open one, _OF_ROWS for the number of rows."""
        if self._view.types[output[0]] != "Shape":
            constant = self._constant(output)
            return None if constant is None else constant.tolist()
        shape, _ = self._shape(data_inputs(self._view, output[0])[0])
        flow = self.of(output)
        if shape is None:
            return None
        return [_OF_ROWS if flow.kind == COUNT and dim == flow.dim else size for dim, size in enumerate(shape)]

    def _attributes(self, node: int) -> Dict[str, object]:
        of_node = self._view.nodes[node]
        if of_node.serialized_attrs not in self._attrs:
            attrs = {name: value for name, value in of_node.attr.items() if not name.startswith("_")}
            self._attrs[of_node.serialized_attrs] = {name: _python(value) for name, value in attrs.items()}
        return self._attrs[of_node.serialized_attrs]


_OF_ROWS = -1
_TRIAL = 1031  # rows, a prime that is no size of a model


def in_order(view: GraphView, nodes: AbstractSet[int]) -> List[int]:
    """The nodes, each after those that it takes data of, but for the back edges of loops."""
    ordered: List[int] = []
    producers, types = view.producers, view.types
    done: Set[int] = set()
    for root in sorted(nodes):
        stack = [root]
        while stack:
            node = stack[-1]
            before = [
                one
                for one in producers[node]
                if one in nodes and one not in done and types[one] not in op_types.NEXT_ITERATIONS
            ]
            if not before or len(stack) > len(nodes):
                stack.pop()
                if node not in done:
                    done.add(node)
                    ordered.append(node)
            else:
                stack += before
    return ordered


def _picked(
    op_type: str, attrs: Dict[str, object], places: List[int], numbers: Sequence[List[int]], outputs: int
) -> Optional[List[List[int]]]:
    """By output of an op, the places of the elements of a vector that it picks by such numbers; None if not known."""
    if op_type == "Cast":
        return [places]
    if op_type == "Unpack":
        return [[place] for place in places]
    if op_type in ("Gather", "GatherV2"):
        return None if any(place not in places for place in numbers[0]) else [numbers[0]]
    if op_type == "Slice":
        (begin,), (size,) = numbers
        return [places[begin:] if size < 0 else places[begin : begin + size]]
    if op_type in ("Split", "SplitV"):
        sizes = [len(places) // outputs] * outputs if op_type == "Split" else numbers[0]
        sizes = [len(places) - sum(sizes) - 1 if size < 0 else size for size in sizes]
        ends = np.cumsum(sizes)
        return [places[end - size : end] for end, size in zip(ends, sizes)]
    masks = {name: int(attrs.get(name, 0)) for name in _SLICE_MASKS}  # type: ignore[call-overload]
    if len(numbers[0]) != 1 or masks["ellipsis_mask"] or masks["new_axis_mask"]:
        return None
    (begin,), (end,), (stride,) = numbers
    if masks["shrink_axis_mask"]:
        return [[places[begin]]] if -len(places) <= begin < len(places) else None
    return [places[None if masks["begin_mask"] else begin : None if masks["end_mask"] else end : stride]]


def _joined(inputs: Sequence[Flow]) -> Flow:
    """The flow of one of several values."""
    flows = [flow for flow in inputs if flow != SAME]
    if len(set(flows)) == 1:
        return flows[0]
    first = flows[0]
    if all(flow.kind == first.kind and flow.dim == first.dim for flow in flows):
        return first._replace(
            degree=first.degree if len({flow.degree for flow in flows}) == 1 else None,
            has_data=any(flow.has_data for flow in flows),
            counts=all(flow.counts for flow in flows),
            is_picked=any(flow.is_picked for flow in flows),
        )
    return _unknown(flows)


def _takes_means(op_type: str, inputs: Sequence[Flow]) -> bool:
    """Whether an op mixes rows only as it takes means over rows, which do not grow with the number of rows."""
    has_means = op_type in _BATCH_NORMS or any(flow.kind == PARTIAL_SUM for flow in inputs)
    return has_means and all(flow.degree == 0 for flow in inputs)


def _unknown(inputs: Sequence[Flow]) -> Flow:
    return UNKNOWN._replace(has_data=any(flow.has_data for flow in inputs), counts=any(flow.counts for flow in inputs))


def _degree(op_type: str, inputs: Sequence[Flow]) -> Optional[float]:
    """How a product, a quotient or anything else of values grows with the number of rows; None if it is not known."""
    if op_type in _SELECTS:
        return _degree_of_either([flow.degree for flow in inputs[1:] if flow.kind != SAME_KIND])
    is_shape = [flow.kind == COUNT and flow.dim >= 0 for flow in inputs]
    degrees = [flow.degree for flow, shape in zip(inputs, is_shape) if not (flow.kind == SAME_KIND or shape)]
    if None in degrees or not degrees:
        return None if degrees else 0
    if op_type in _POWERS:
        return degrees[0] * _POWERS[op_type]  # type: ignore[operator]
    is_linear_in_one = op_type.endswith("Grad") and degrees.count(0) >= len(degrees) - 1
    if op_type in _PRODUCTS or is_linear_in_one:
        return sum(degrees)  # type: ignore[arg-type]
    if op_type in _DIVISIONS:
        return inputs[0].degree - inputs[1].degree  # type: ignore[operator]
    return degrees[0] if len(set(degrees)) == 1 else None


def _degree_of_either(degrees: Sequence[Optional[float]]) -> Optional[float]:
    """The degree of what is chosen among values; divided rows count where they lie among others, such as zeros."""
    known = [degree for degree in degrees if degree is not None]
    if len(known) < len(degrees) or (len(set(known)) > 1 and min(known) >= 0):
        return None
    return min(known, default=0)


# ---- Rules.


def _match(op: OpInfo, inputs: Sequence[Flow], dtypes: Sequence[tf.DType]) -> Tuple[str, Tuple[Flow, ...]]:
    """What an op does with the rows, in words, if it mixes them; and the flows of its outputs."""
    has_data = op.type not in NO_VALUES and any(flow.has_data for flow in inputs)
    if _looks_up_own_rows(op, inputs, dtypes):
        picked = op.type in GATHERS and any(flow.is_picked and flow.counts for flow in inputs)
        counts = op.type in GATHERS and inputs[0].counts and inputs[1].counts  # numbers of rows, picked by such numbers
        flow = Flow(ROWS, 0, None, has_data, counts, picked)
        return "", tuple(flow if info.shape else UNKNOWN for info in op.outputs)
    choices = choices_of(op)
    static = _with_static_rows(op, inputs)
    for asked, asked_choices in ((op, choices), (static, [] if static is op else choices_of(static))):
        for may_be_partial in (False, True):
            fitting = [one for one in asked_choices if _fits(one, asked, inputs, may_be_partial)]
            if fitting:
                if len({one.outputs for one in fitting}) > 1:  # an unknown input decides
                    return "", (_unknown(inputs)._replace(has_data=has_data),) * len(op.outputs)
                return _flows(fitting[0], op, inputs, dtypes, has_data)
    return _without_choice(op, choices, inputs, dtypes, has_data)


def _fits(choice: Choice, op: OpInfo, inputs: Sequence[Flow], may_be_partial: bool) -> bool:
    """Whether a choice takes such inputs; with `may_be_partial`, a sum or mean may be added to what all replicas have.

    It may, because the mean over replicas of a value and a mean is that value and the mean of all rows.
    """
    for placement, info, flow in zip(choice.inputs, op.inputs, inputs):
        if flow.kind == _UNKNOWN:
            continue
        if info.batch is not None:
            fits = placement == shard(info.batch)
        elif flow.kind == PARTIAL_SUM:
            fits = placement == PARTIAL
        else:
            fits = placement == REPLICATED or (may_be_partial and placement == PARTIAL)
        if not fits:
            return False
    return True


def _with_static_rows(op: OpInfo, inputs: Sequence[Flow]) -> OpInfo:
    """The op, with a tensor of as many rows as one replica has, such as tf.zeros([32, 8]), as that replica's rows."""
    sizes = {info.shape[info.batch] for info in op.inputs if info.batch is not None and info.shape} - {None, 0, 1}
    infos = [
        info._replace(batch=next((dim for dim, size in enumerate(info.shape or ()) if size in sizes), None))
        if flow.is_same
        else info
        for info, flow in zip(op.inputs, inputs)
    ]
    return op if infos == list(op.inputs) else op._replace(inputs=tuple(infos))


def _looks_up_own_rows(op: OpInfo, inputs: Sequence[Flow], dtypes: Sequence[tf.DType]) -> bool:
    """Whether numbers of the replica's own rows pick rows, or group them: the result has rows of the replica again."""
    if op.type not in _LOOKUPS:
        return False
    table, *others = zip(inputs, op.inputs)
    listed = table[0].is_picked and any(flow.kind == ROWS and not flow.is_picked for flow, _ in others)
    return listed or any(flow.counts for flow in inputs) and any(flow.has_data for flow in inputs)


def _flows(
    choice: Choice, op: OpInfo, inputs: Sequence[Flow], dtypes: Sequence[tf.DType], has_data: bool
) -> Tuple[str, Tuple[Flow, ...]]:
    """`_match`, for a choice of the rule."""
    is_picked = any(flow.is_picked for flow in inputs)
    sums_rows = any(flow.kind == ROWS for flow in inputs) and PARTIAL in choice.outputs
    if choice.averages and sums_rows and is_picked:
        return "divides by the number of the rows that it picks", (OWN,) * len(choice.outputs)
    is_static = any(info.batch is not None and info.shape and info.shape[info.batch] for info in op.inputs)
    found = []
    for placement, dtype, info in zip(choice.outputs, dtypes, op.outputs):
        degree = _degree(op.type, inputs)
        if placement.is_shard and op.type == "Reshape" and not is_static and info.shape and info.shape[placement.dim]:
            found.append(UNKNOWN._replace(has_data=has_data))  # [None, K] -> [K, None]: each part has rows of all
        elif placement.is_shard:
            counts = dtype.is_integer and any(flow.counts for flow in inputs)
            found.append(Flow(ROWS, placement.dim, degree, has_data, counts, is_picked))
        elif placement == PARTIAL:
            if sums_rows and not choice.averages and degree is not None:
                degree = None if is_static else degree + 1
            if has_data and sums_rows and degree is not None and degree < 0:
                return "adds up rows that are divided by their number", (OWN,) * len(choice.outputs)
            of_own = any(flow.kind == _OWN for flow in inputs)
            found.append(OWN if of_own else Flow(PARTIAL_SUM if has_data else COUNT, -1, degree, has_data))
        elif choice.inside and has_data:
            if any(one.is_floating for one in dtypes):
                return _REDUCES, (OWN,) * len(choice.outputs)
            found.append(UNKNOWN)
        elif choice.inside:
            found.append(_UNKNOWN_SIZE)
        else:
            found.append(OWN if any(flow.kind == _OWN for flow in inputs) else SAME)
    return "", tuple(found)


_REDUCES = "takes one value of all rows"


def _without_choice(
    op: OpInfo, choices: Sequence[Choice], inputs: Sequence[Flow], dtypes: Sequence[tf.DType], has_data: bool
) -> Tuple[str, Tuple[Flow, ...]]:
    """`_match`, for an op whose rule has no choice for such inputs: it mixes rows, if all is known about it."""
    unknown = (_unknown(inputs)._replace(has_data=has_data),) * len(op.outputs)
    reshaped = _reshaped(op, *inputs) if op.type == "Reshape" else None
    if reshaped is not None:
        return "", (inputs[0]._replace(dim=reshaped),)
    if op.type in _MOVES or not has_data or not any(dtype.is_floating or dtype.is_complex for dtype in dtypes):
        return "", unknown
    not_linear = [
        at
        for at, flow in enumerate(inputs)
        if flow.kind == PARTIAL_SUM and not any(choice.inputs[at] == PARTIAL for choice in choices)
    ]
    is_known = all(info.shape is not None for info in op.inputs + op.outputs[:1]) and all(
        flow.kind != _UNKNOWN and not (flow.is_same and None in (info.shape or ()))
        for flow, info in zip(inputs, op.inputs)
    )
    if not not_linear and not is_known:
        return "", unknown
    sizes = {info.shape[info.batch] for info in op.inputs if info.batch is not None and info.shape is not None}
    dims = [next((dim for dim, size in enumerate(info.shape or ()) if size in sizes), None) for info in op.outputs]
    if op.type in _BATCH_NORMS:  # as many channels as rows make no rows of the statistics
        dims[1:] = [None] * (len(dims) - 1)
    flows = tuple(OWN if dim is None else Flow(ROWS, dim, None, True) for dim in dims)
    return _in_words(op.type, inputs, not_linear), flows


def _reshaped(op: OpInfo, flow: Flow, sizes: Flow) -> Optional[int]:
    """The dimension of the rows after a reshape, if they are in the outermost dimension; None if it is not known."""
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if flow.kind == ROWS and sizes.kind == COUNT and flow.dim == sizes.dim == 0:
        return 0
    if flow.kind != ROWS or before is None or after is None or any(size != 1 for size in before[: flow.dim]):
        return None
    outer = next((dim for dim, size in enumerate(after) if size != 1), None)
    if outer is None:
        return None
    count, size = before[flow.dim], after[outer]
    return outer if size is None or (count and size % count == 0) else None


def _in_words(op_type: str, inputs: Sequence[Flow], not_linear: Sequence[int]) -> str:
    partial = [flow for flow in inputs if flow.kind == PARTIAL_SUM]
    if not partial:
        return "computes with several rows together"
    what = "a mean over rows" if all(flow.degree == 0 for flow in partial) else "a sum over rows"
    if op_type in _DIVISIONS and 1 in not_linear:
        return f"divides by {what}"
    if any(flow.kind == ROWS for flow in inputs):
        return f"computes with rows and {what}"
    return f"is not linear in {what}"


# ---- Attributes and constants.


def _bytes(constant: Optional[np.ndarray]) -> Optional[bytes]:
    return None if constant is None else constant.tobytes()


def _python(value: tf.AttrValue) -> object:
    """An attribute as tf.Operation.get_attr gives it."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return next((list(found) for _, found in value.list.ListFields()), [])
    if kind == "type":
        return tf.as_dtype(value.type)
    return None if kind is None else getattr(value, kind)
