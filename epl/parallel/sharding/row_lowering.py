"""Lowering by rows: how each replica computes what one device computes from the rows of all replicas.

    rows --> square --> sum [d] --> / 10 --> write          on one device, from all rows
    rows --> square --> sum [d] --> ALL-REDUCE --> / 10 --> write       on each replica
    rows --> features --> concat with a bank --> write
    rows --> features --> ALL-GATHER --> concat with a bank --> write

A value has a form on each replica: it is *same* on all, the replica's *rows*, a *partial* sum or mean over rows, a
*count* of rows, or a *statistic* of the replica, which has no whole. Its *whole* is the value of one device: a partial
is all-reduced, rows are gathered in the order of the replicas. An op that a sharding rule can compute on rows keeps
them; any other takes wholes, and gives the same value on all replicas. What has neither form is unknown, with the
reason: control flow, Python functions, sizes that the graph does not say, rows whose number is built into the graph.

Where the replicas are averaged in the end, as those of a loss are (`averages`), a mean over rows stays partial in what
is linear in it, and random numbers stay those of each replica:

    rows --> square --> mean --> + 0.1 * norm of weights --> loss        no collective: the gradients are averaged
    rows --> loss of each --> sum --> / number of rows --> loss          none either

This module decides and changes nothing; `epl/parallel/replication/wholes.py` builds the ops.
"""

from typing import AbstractSet, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView, functions_of
from epl.parallel.sharding.forward_shapes import ASKS_SHAPE
from epl.parallel.sharding.row_flow import (
    COUNT,
    PARTIAL_SUM,
    ROWS,
    SAME,
    SAME_KIND,
    STATISTIC,
    Flow,
    Output,
    RowFlow,
    in_order,
)
from epl.parallel.sharding.rules.registry import RULES
from epl.utils import tf_compat

PASSES_ON = frozenset(["CheckNumerics", "EnsureShape", "Identity", "PreventGradient", "Snapshot", "StopGradient"])
_EQUAL_ON_RANKS = frozenset(["EplAllGather", "EplAllReduce", "EplBroadcast"])  # of parts of weights (ZeRO)
_SHAPE_INPUT = {"BroadcastTo": 1, "Reshape": 1}  # op types that take rows and a shape -> the input with the shape
_READS = frozenset(["ReadVariableOp", "ResourceGather", "ResourceGatherNd"]) | op_types.STATE_QUERIES
_DRAWS_BY_SHAPE = frozenset(["RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"])
_SEED = b"seed2"
# Ops that are linear in a sum, where their other input is equal on all replicas.
_SCALES = frozenset(["Cast", "Mul", "Neg", "Reshape", "Squeeze", "Sum"])
_DIVISIONS = frozenset(["Div", "DivNoNan", "RealDiv"])
_BUILT_IN = "the number of rows is built into the graph"


class Taken(NamedTuple):
    """An input of an op in the lowered program: an output of a node, in the form of the replica or whole."""

    output: Output
    is_whole: bool


class Lowered(NamedTuple):
    """An op in the lowered program.

    Attributes:
      flows: the forms of its outputs.
      inputs: what its copy takes; None: it is the op of the graph itself.
      is_drawn: whether it draws random numbers that all replicas are to have: those of rank 0.
      unknown: why it has no form; "": it has one.
    """

    flows: Tuple[Flow, ...] = ()
    inputs: Optional[Tuple[Taken, ...]] = None
    is_drawn: bool = False
    unknown: str = ""


class RowLowering:
    """The lowered program of some nodes of a graph.

    It is one class because all decisions are made from the forms of the ops before.
    """

    def __init__(
        self,
        tf_graph: tf.Graph,
        view: GraphView,
        flow: RowFlow,
        nodes: AbstractSet[int],
        sources: Dict[Output, Flow],
        same: AbstractSet[int],
        differing: AbstractSet[int],
        trained: AbstractSet[str],
        averages: bool = False,
    ) -> None:
        """Decides.

        Args:
          tf_graph: the graph.
          view: of it.
          flow: of the rows through at least these nodes.
          nodes: where to look; what other nodes give is equal on all replicas.
          sources: where rows begin.
          same: writes that all replicas make alike.
          differing: variables that each replica writes from its own rows.
          trained: names of the trained variables; no op that takes one is computed anew.
          averages: whether what is computed in the end is averaged over the replicas.
        """
        self._tf_graph = tf_graph
        self._view = view
        self._flow = flow
        self._sources = sources
        self._same = same
        self._differing = differing
        self._nodes = nodes
        self._trained = _values_of(view, trained)
        self._averages = averages
        self.found: Dict[int, Lowered] = {}
        self.mixed_sizes: Set[Output] = set()  # same on all replicas, with a size that depends on the number of rows
        for node in in_order(view, nodes):
            self.found[node] = self._lower(node)

    def of(self, output: Output) -> Flow:
        """The form of an output; of an unknown node, nothing is to be asked."""
        lowered = self.found.get(output[0])
        return SAME if lowered is None else lowered.flows[output[1]]

    def unknown(self, output: Output) -> str:
        """Why an output has no form; "" if it has one."""
        lowered = self.found.get(output[0])
        return "" if lowered is None else lowered.unknown

    def inputs_of(self, node: int) -> Sequence[Taken]:
        """What a node takes in the lowered program."""
        inputs = self.found[node].inputs
        return [Taken(one, False) for one in data_inputs(self._view, node)] if inputs is None else inputs

    def no_whole(self, output: Output) -> str:
        """Why the whole of an output cannot be had; "" if it can."""
        unknown = self.unknown(output)
        if unknown:
            return unknown
        flow = self.of(output)
        operation = self._operation(output[0])
        tensor = operation.outputs[output[1]]
        if flow.is_same:
            return ""
        if flow == STATISTIC:
            return "each replica computes its rows with its own value"
        if tf_compat.control_flow_context_of(operation) is not None:
            return "it is in a branch or a loop"
        if flow.kind == COUNT:
            return self._no_whole_count(output)
        if flow.kind == PARTIAL_SUM:
            is_mean = flow.degree == 0
            if not tensor.shape.is_fully_defined() or not _can_travel(tensor.dtype, is_mean):
                return "its size is not known, or its type cannot be added up"
            return ""
        sizes = None if tensor.shape.ndims is None else tensor.shape.as_list()
        if sizes is None or any(size is None for dim, size in enumerate(sizes) if dim != flow.dim):
            return "its size is not known"
        if sizes[flow.dim] is not None:
            return _BUILT_IN
        return "" if _can_travel(tensor.dtype, False) or tensor.dtype == tf.bool else "its type cannot be sent"

    # ---- One op.

    def _lower(self, node: int) -> Lowered:
        view, op_type = self._view, self._view.types[node]
        outputs = len(self._operation(node).outputs)
        if (node, 0) in self._sources and not self._draws(node):
            return self._source(node, outputs)
        if node in self._differing:
            return Lowered(unknown="it reads a variable that each replica writes from its own rows")
        if op_type in op_types.VARIABLES or node in self._same:
            return Lowered((SAME,) * outputs)
        if op_type in op_types.WRITES:
            return self._write(node, outputs)
        taken = data_inputs(view, node)
        if self._averages and self._is_same(node, outputs) and not any(self._is_copied(one) for one in taken):
            return Lowered((SAME,) * outputs)
        for one in taken:
            is_later = one[0] in self._nodes and one[0] not in self.found
            unknown = "it is in a loop" if is_later else self.unknown(one)
            if unknown:
                return Lowered(unknown=unknown)
        flows = [self.of(one) for one in taken]
        if op_type in op_types.CONTROL_FLOW:
            return self._branch(node, op_type, flows, outputs)
        return self._by_form(node, op_type, taken, flows, outputs)

    def _is_same(self, node: int, outputs: int) -> bool:
        """Whether no row has a part in a node, and no random number; of a Python function it is not known."""
        return self._view.types[node] not in op_types.PYTHON and all(
            self._flow.of((node, at)).is_same for at in range(outputs)
        )

    def _source(self, node: int, outputs: int) -> Lowered:
        flows = [self._sources.get((node, at), SAME) for at in range(outputs)]
        if all(flow.kind in (ROWS, SAME_KIND, PARTIAL_SUM) or flow == STATISTIC for flow in flows):
            return Lowered(tuple(flow._replace(counts=False) for flow in flows))
        return Lowered(unknown="it is data without rows that the graph tells")

    def _write(self, node: int, outputs: int) -> Lowered:
        """A write that each replica makes by itself: it is exact if no row has a part in it."""
        taken = data_inputs(self._view, node)
        if all(not self.unknown(one) and self.of(one).is_same for one in taken):
            return Lowered((SAME,) * outputs)
        return Lowered(unknown="it takes what a replica has written from its own rows")

    def _branch(self, node: int, op_type: str, flows: Sequence[Flow], outputs: int) -> Lowered:
        """A Switch or Merge of a branch that all replicas take alike passes on what it gets."""
        operation = self._operation(node)
        if op_type in op_types.SWITCHES and flows[1].is_same:
            return Lowered((flows[0],) * outputs)
        if op_type in op_types.MERGES and all(self._is_taken_alike(one.op) for one in operation.inputs):
            kinds = {flow._replace(has_data=True, degree=0) for flow in flows}
            if len(kinds) == 1 and flows[0].kind in (ROWS, SAME_KIND):
                return Lowered((flows[0], SAME))
        return Lowered(unknown="it is in a branch or a loop")

    def _is_taken_alike(self, op: tf.Operation) -> bool:
        """Whether all replicas take the branches around an op, or all of them do not."""
        context = tf_compat.control_flow_context_of(op)
        predicates = tf_compat.predicates_of(op)
        if context is None or not predicates:
            return False
        output = self._view.index[predicates[0][1].op.name], predicates[0][1].value_index
        return not self.unknown(output) and self.of(output).is_same

    def _by_form(
        self, node: int, op_type: str, taken: Sequence[Output], flows: Sequence[Flow], outputs: int
    ) -> Lowered:
        """The first of these that gives known forms: rows and counts kept, rows kept, all inputs whole."""
        if all(flow.is_same for flow in flows):
            return self._of_wholes(node, taken, flows, outputs)
        if self._averages:
            results = self._linear(node, op_type, taken, flows)
            if results is not None:
                return self._made(node, results, [Taken(one, False) for one in taken], flows)
        keeps_rows = not any(one in self.mixed_sizes for one in taken)
        for kept in ({ROWS, COUNT}, {ROWS}):
            wholes = [flow.kind not in kept and not flow.is_same and flow != STATISTIC for flow in flows]
            if keeps_rows and not any(whole and self.no_whole(one) for one, whole in zip(taken, wholes)):
                forms = [SAME if whole else flow for flow, whole in zip(flows, wholes)]
                results = self._on_rows(node, op_type, forms)
                if results is not None:
                    return self._made(node, results, [Taken(*pair) for pair in zip(taken, wholes)], flows)
        for one in taken:
            reason = self.no_whole(one)
            if reason:
                return Lowered(unknown=reason)
        if self._has_number_of_rows(node, op_type, taken, flows):
            return Lowered(unknown=_BUILT_IN)
        return self._of_wholes(node, taken, flows, outputs)

    def _linear(self, node: int, op_type: str, taken: Sequence[Output], flows: Sequence[Flow]) -> Optional[List[Flow]]:
        """The forms of the outputs of an op that keeps sums or means over rows; None if it needs them whole."""
        partial = [flow for flow in flows if flow.kind == PARTIAL_SUM]
        if not partial or not all(one.dtype.is_floating for one in self._operation(node).outputs):
            return None
        degrees = {flow.degree for flow in partial}
        if op_type in _DIVISIONS and flows[0].kind == PARTIAL_SUM and degrees == {1} and flows[1].kind == COUNT:
            return [Flow(PARTIAL_SUM, -1, 0, has_data=True)] if self._is_proportional(taken[1]) else None
        if len(degrees) > 1 or any(flow.kind not in (SAME_KIND, PARTIAL_SUM) for flow in flows):
            return None
        if op_type in PASSES_ON:
            return [flows[0]]
        keeps_sums = op_type in _SCALES or all(flow.kind == PARTIAL_SUM for flow in flows)
        if op_type not in RULES or not (degrees == {0} or keeps_sums):
            return None
        mixes, results = self._flow.asked(node, flows)
        if mixes or any(one.kind != PARTIAL_SUM or one.degree not in degrees for one in results):
            return None
        return results

    def _is_proportional(self, output: Output) -> bool:
        """Whether a count is a multiple of the number of rows, by a factor that is equal on all replicas."""
        node, _ = output
        op_type, taken = self._view.types[node], data_inputs(self._view, node)
        flows = [self.of(one) for one in taken]
        if op_type == "Size":
            sizes = self._operation(taken[0][0]).outputs[taken[0][1]].shape
            others = [size for dim, size in enumerate(sizes.as_list() if sizes.ndims else []) if dim != flows[0].dim]
            return bool(sizes.ndims) and flows[0].kind == ROWS and None not in others
        if op_type in ("GatherV2", "StridedSlice", "Unpack"):
            return flows[0].kind == COUNT and flows[0].dim >= 0 and self._is_one_size(output)
        if op_type == "Sum":
            return flows[0].kind == ROWS and not flows[0].has_data and not flows[0].counts and flows[1].is_same
        if op_type in ("Cast", "Identity", "Mul"):
            counts = [one for one, flow in zip(taken, flows) if flow.kind == COUNT]
            others_are_same = all(flow.is_same for flow in flows if flow.kind != COUNT)
            return len(counts) == 1 and others_are_same and self._is_proportional(counts[0])
        return False

    def _is_one_size(self, output: Output) -> bool:
        """Whether an output is known to be the number of rows of a shape, and no other size."""
        return self._operation(output[0]).outputs[output[1]].shape.ndims == 0 and self._flow.of(output).degree == 1

    def _of_wholes(self, node: int, taken: Sequence[Output], flows: Sequence[Flow], outputs: int) -> Lowered:
        """The op on wholes: every replica computes what one device does."""
        draws = self._draws(node)
        op_type = self._view.types[node]
        is_new = any(not flow.is_same for flow in flows) or any(self._is_copied(one) for one in taken)
        is_known = draws or op_type in _READS | _EQUAL_ON_RANKS
        if not is_known and (self._is_stateful(node) or self._calls_functions(node)):
            return Lowered(unknown="it calls a function, or has a state")
        made = self._made(node, [SAME] * outputs, [Taken(one, True) for one in taken], flows, draws)
        if not made.unknown and is_new:
            for at, tensor in enumerate(self._operation(node).outputs):
                if not tensor.shape.is_fully_defined():
                    self.mixed_sizes.add((node, at))
        return made

    def _made(
        self, node: int, results: Sequence[Flow], taken: Sequence[Taken], flows: Sequence[Flow], draws: bool = False
    ) -> Lowered:
        """The op with these inputs: itself, if they are what it takes; else a copy."""
        is_copy = (draws and not self._averages) or any(
            self._is_copied(one.output) or (one.is_whole and not flow.is_same) for one, flow in zip(taken, flows)
        )
        if not is_copy:
            return Lowered(tuple(results))
        if tf_compat.control_flow_context_of(self._operation(node)) is not None:
            return Lowered(unknown="it is in a branch or a loop")
        if any(one.output[0] in self._trained for one in taken):
            return Lowered(unknown="a layer of the model would have to compute the rows of all replicas")
        return Lowered(tuple(results), tuple(taken), draws and not self._averages)

    def _is_copied(self, output: Output) -> bool:
        lowered = self.found.get(output[0])
        return lowered is not None and lowered.inputs is not None

    def _on_rows(self, node: int, op_type: str, flows: Sequence[Flow]) -> Optional[List[Flow]]:
        """The forms of the outputs of an op on the replica's own rows, None if it has to have all rows."""
        kinds = {flow.kind for flow in flows} - {SAME_KIND}
        if op_type in PASSES_ON:
            return [flows[0]]
        draws = self._draws(node)
        if draws and op_type not in _DRAWS_BY_SHAPE:
            return None
        if op_type not in ASKS_SHAPE and kinds != {COUNT}:
            shape_input = _SHAPE_INPUT.get(op_type)
            counts = [at for at, flow in enumerate(flows) if flow.kind == COUNT]
            if op_type not in RULES or any(at != shape_input for at in counts):
                return None
        mixes, results = self._flow.asked(node, flows)
        if mixes or any(not self._is_form(op_type, one, kinds) for one in results):
            return None
        if (draws and results[0].kind != ROWS) or not self._weighs_alike(node, flows, results):
            return None
        if op_type in _SHAPE_INPUT:
            results = [one._replace(degree=flows[0].degree) for one in results]
        return results if all(self._has_known_degree(one) for one in results) else None

    def _is_form(self, op_type: str, flow: Flow, kinds: AbstractSet[str]) -> bool:
        """Whether what the rules say of an output is sure enough to compute with it."""
        if flow.kind == ROWS:
            made_of_counts = kinds == {COUNT} and op_type not in _DRAWS_BY_SHAPE | {"Fill", "Tile"}
            return not (flow.counts or flow.is_picked or made_of_counts)
        return flow.kind in (SAME_KIND, COUNT) or flow == STATISTIC or (flow.kind == PARTIAL_SUM and ROWS in kinds)

    def _weighs_alike(self, node: int, flows: Sequence[Flow], results: Sequence[Flow]) -> bool:
        """Whether a mean over rows weighs a replica by its rows: all rows are of one size."""
        if all(flow.kind != PARTIAL_SUM or flow.degree != 0 for flow in results):
            return True
        shapes = [tensor.shape for tensor in self._operation(node).inputs]
        return not any(
            shape.ndims is None or any(size is None for dim, size in enumerate(shape.as_list()) if dim != flow.dim)
            for shape, flow in zip(shapes, flows)
            if flow.kind == ROWS
        )

    @staticmethod
    def _has_known_degree(flow: Flow) -> bool:
        if flow.kind == ROWS:
            return flow.degree == 0
        return flow.kind != PARTIAL_SUM or flow.degree in (0, 1)

    # ---- Facts.

    def _has_number_of_rows(self, node: int, op_type: str, taken: Sequence[Output], flows: Sequence[Flow]) -> bool:
        """Whether an op says how many rows it takes, so that it would not take those of all replicas."""
        operation = self._operation(node)
        if op_type in _SHAPE_INPUT:
            depends = flows[0].kind == ROWS or taken[0] in self.mixed_sizes
            return depends and operation.outputs[0].shape.is_fully_defined()
        if op_type == "Unpack":
            return self._is_along_rows(operation.get_attr("axis"), operation, flows[0])
        return op_type == "SplitV" and self._is_along_rows(
            tf_compat.static_value(operation.inputs[2]), operation, flows[0]
        )

    @staticmethod
    def _is_along_rows(axis: Optional[int], operation: tf.Operation, flow: Flow) -> bool:
        ndims = operation.inputs[0].shape.ndims
        return flow.kind == ROWS and (axis is None or ndims is None or axis % ndims == flow.dim)

    def _no_whole_count(self, output: Output) -> str:
        """Counts are computed anew from the counts of all rows."""
        node = output[0]
        taken = data_inputs(self._view, node)
        if self._view.types[node] in ASKS_SHAPE:
            one = taken[output[1] if len(taken) > 1 else 0]
            flow = self.of(one)
            return "" if flow.kind == ROWS else self.no_whole(one)
        if self._is_stateful(node) or self._calls_functions(node):
            return "it calls a function, or has a state"
        return next((reason for reason in map(self.no_whole, taken) if reason), "")

    def _operation(self, node: int) -> tf.Operation:
        return self._tf_graph.get_operation_by_name(self._view.nodes[node].name)

    def _draws(self, node: int) -> bool:
        of_node = self._view.nodes[node]
        return _SEED in of_node.serialized_attrs and "seed2" in of_node.attr

    def _is_stateful(self, node: int) -> bool:
        return bool(self._operation(node).op_def.is_stateful)

    def _calls_functions(self, node: int) -> bool:
        return len(functions_of(self._view.nodes[node])) > 1


def _can_travel(dtype: tf.DType, averages: bool) -> bool:
    base = dtype.base_dtype
    return base.is_floating or (base.is_integer and not averages)


def _values_of(view: GraphView, variables: AbstractSet[str]) -> Set[int]:
    """The nodes that give the values of variables, also in another type."""
    found = {view.index[name] for name in variables if name in view.index}
    stack = list(found)
    while stack:
        for consumer in view.consumers()[stack.pop()]:
            if consumer not in found and view.types[consumer] in ("Cast", "Identity", "ReadVariableOp"):
                found.add(consumer)
                stack.append(consumer)
    return found
