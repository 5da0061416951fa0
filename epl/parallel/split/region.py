"""The region of a split TaskGraph: the ops that are lowered, and the tensors that enter and leave them.

    replicate code ──▶ entry ──┐
    placeholder, iterator ─────┤
    variable ─▶ read ──────────┼──▶ ops that are lowered ──▶ region output ──▶ replicate code
    constants ─────────────────┘        │
                                        └──▶ written value ──▶ write of a variable

Ops that depend on none of these (constants, initial values), reads and writes of variables, and data sources stay as
they are. Loops and branches also stay, and take full tensors. `program.py` finds the shapes and batches of tensors.
"""

from typing import Callable, Container, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.utils import tf_compat


class Region(NamedTuple):
    """The part of a graph that a split computes.

    Attributes:
      ops: in the order of creation; only those in `kept` are changed.
      kept: those of `ops` in a loop or a branch, or that take a variable's handle: they stay, and take full tensors.
      variables: reference, handle or read value -> the op of the variable.
      outputs: those of `ops` that other ops take.
    """

    ops: Tuple[tf.Operation, ...]
    kept: FrozenSet[tf.Operation]
    variables: Dict[tf.Tensor, tf.Operation]
    outputs: Tuple[tf.Tensor, ...]

    def is_read_outside(self, variable: tf.Operation) -> bool:
        """Whether ops that are not in the region compute with a variable."""
        tensors = [tensor for tensor, of in self.variables.items() if of is variable]
        consumers = {consumer for tensor in tensors for consumer in tensor.consumers()}
        consumers -= {tensor.op for tensor in tensors}
        return any(op.type not in _NO_COMPUTATION for op in consumers.difference(self.ops))


_SHAPES = frozenset(["Shape", "ShapeN", "Size"])
# Ops that compute shapes from shapes.
_SHAPE_ARITHMETIC = frozenset(
    """
    StridedSlice Slice Pack Unpack ConcatV2 Concat Mul Add AddV2 Sub FloorDiv FloorMod TruncateDiv Maximum Minimum
    Prod Cast GatherV2 Gather Reshape ExpandDims Squeeze Identity""".split()
)
_SOURCES = op_types.PLACEHOLDERS - {"PlaceholderWithDefault"} | op_types.DATA_SOURCES | op_types.PYTHON
_LOOKUPS = frozenset(["ResourceGather", "ResourceGatherNd"])  # of rows of a variable
# They take a variable, and compute nothing with its value.
_NO_COMPUTATION = op_types.WRITES | op_types.STATE_QUERIES | {"SaveV2"}
_STAYS = (
    op_types.VARIABLES | op_types.WRITES | op_types.SHARED_STATE | op_types.ENQUEUES | op_types.OF_SCRIPT | _SOURCES
    | op_types.STATE_QUERIES | {"Const"}
)  # fmt: skip


def find_region(marked: Iterable[tf.Operation]) -> Region:
    """The region of a split TaskGraph.

    Args:
      marked: the ops of the TaskGraph, of the forward phase.
    """
    members = _with_shapes(set(marked))
    ordered = sorted(members, key=tf_compat.op_id)
    variables = _variable_tensors(op for op in ordered if op.type in op_types.VARIABLES)
    initial = _initialization(ordered)
    reads = {tensor.op for tensor in variables}
    inside = [op for op in ordered if not _stays(op) and op not in initial and op not in reads]
    lowered = _depending(inside, variables, members)
    lowered |= _drawn_for(inside, lowered)
    kept = frozenset(
        op
        for op in lowered
        if op.type in op_types.CONTROL_FLOW
        or _takes_handle(op, variables)
        or tf_compat.control_flow_context_of(op) is not None
    )
    ops = tuple(op for op in inside if op in lowered)
    outputs = [
        output
        for op in ops
        for output in op.outputs
        if any(consumer not in lowered and consumer not in initial for consumer in output.consumers())
    ]
    return Region(ops, kept, variables, tuple(outputs))


def draws_data(op: tf.Operation) -> bool:
    """Whether an op brings data into the graph: it reads data or draws random numbers."""
    return op.type in _SOURCES or draws_numbers(op)


def calls_python(op: tf.Operation) -> bool:
    """Whether an op calls a Python function of the script, whose results may differ between calls."""
    return op.type in op_types.PYTHON


def draws_numbers(op: tf.Operation) -> bool:
    """Whether an op draws random numbers."""
    return tf_compat.is_stateful(op.graph, op.type) and "seed2" in op.node_def.attr


def holds_variable(op: tf.Operation) -> bool:
    """Whether an op is a variable."""
    return op.type in op_types.VARIABLES


class Dependence:
    """Tells which tensors depend on source ops; by default these are the data that each rank reads for itself."""

    def __init__(
        self, is_source: Callable[[tf.Operation], bool] = draws_data, beside: Container[tf.Tensor] = ()
    ) -> None:
        """Takes a test for source ops, and tensors that count as independent of all."""
        self._is_source = is_source
        self._beside = beside
        self._known: Dict[tf.Operation, bool] = {}

    def __call__(self, tensor: tf.Tensor) -> bool:
        """Whether the tensor is computed from a source op; the search ends at variables and data sources."""
        if tensor in self._beside:
            return False
        known = self._known
        stack = [tensor.op]
        while stack:
            op = stack[-1]
            if op not in known:
                if draws_data(op) or op.type in op_types.VARIABLES:
                    known[op] = self._is_source(op)
                else:
                    known[op] = False  # a loop may lead back to an op while its inputs are visited
                    stack += [one.op for one in op.inputs if one.op not in known and one not in self._beside]
                    continue
            elif not known[op]:
                known[op] = any(known.get(one.op, False) for one in op.inputs if one not in self._beside)
            stack.pop()
        return known[tensor.op]


def rows_of_data(tensor: tf.Tensor, beside: Container[tf.Tensor] = ()) -> Optional[int]:
    """The number of rows of the data that a tensor is computed from; None if it is open, or not the same for all.

    Args:
      tensor: from outside of a split.
      beside: tensors that hold no rows of a batch.
    """
    ends = _SOURCES | op_types.VARIABLES
    ops = computed_from(tensor, lambda op: () if op.type in ends else [one for one in op.inputs if one not in beside])
    read = [
        one for op in ops if op.type in _SOURCES for one in op.outputs if one not in beside and one.shape.ndims != 0
    ]
    sizes = {one.shape[0].value if one.shape.ndims else None for one in read}
    return sizes.pop() if len(sizes) == 1 else None


def computed_from(tensor: tf.Tensor, inputs: Callable[[tf.Operation], Iterable[tf.Tensor]]) -> Set[tf.Operation]:
    """The op of a tensor and those that it is computed from, by the inputs of each op that count."""
    found, left = {tensor.op}, [tensor.op]
    while left:
        new = {one.op for one in inputs(left.pop())} - found
        found |= new
        left += new
    return found


def batch_dimension(tensor: tf.Tensor, depends_on_data: Dependence) -> Optional[int]:
    """The dimension of a tensor from outside a split that holds the rows of a rank's own batch; None without one."""
    if tensor.dtype.base_dtype in (tf.resource, tf.variant) or tensor.shape.ndims == 0:
        return None
    if tf_compat.is_reference(tensor.dtype):  # a variable, or the output of its update
        return None
    return 0 if depends_on_data(tensor) else None


def _stays(op: tf.Operation) -> bool:
    """Whether an op stays as it is: a Python function does with strings or handles, or without data or weights."""
    if op.type not in op_types.PYTHON:
        return op.type in _STAYS
    tensors = list(op.inputs) + list(op.outputs)
    if any(tensor.dtype.base_dtype in (tf.string, tf.resource, tf.variant) for tensor in tensors):
        return True
    given = Dependence(lambda source: draws_data(source) or holds_variable(source) and _is_floating(source))
    return not any(given(tensor) for tensor in op.inputs)


def _is_floating(variable: tf.Operation) -> bool:
    return tf.as_dtype(variable.get_attr("dtype")).is_floating


def _takes_handle(op: tf.Operation, variables: Dict[tf.Tensor, tf.Operation]) -> bool:
    """Whether an op takes the handle of a variable, as a function does that reads it."""
    handles = [source for source in op.inputs if source.dtype == tf.resource and source in variables]
    return bool(handles) and op.type not in _LOOKUPS


def _with_shapes(members: Set[tf.Operation]) -> Set[tf.Operation]:
    """The ops, and the ops outside that compute their shapes: the batches of all ranks need other shapes than one's."""
    found = set(members)
    known: Dict[tf.Operation, bool] = {}
    stack = [source.op for op in members for source in op.inputs if source.op not in members]
    while stack:
        op = stack.pop()
        if op not in found and _computes_with_shapes(op, known):
            found.add(op)
            stack += [source.op for source in op.inputs if op.type not in _SHAPES]
    return found


def _computes_with_shapes(op: tf.Operation, known: Dict[tf.Operation, bool]) -> bool:
    """Whether an op is computed from shapes and constants alone, and from at least one shape."""
    if op not in known:
        known[op] = op.type in _SHAPES
        if op.type in _SHAPE_ARITHMETIC and all(output.dtype.is_integer for output in op.outputs):
            sources = [source.op for source in op.inputs if source.op.type != "Const"]
            known[op] = bool(sources) and all(_computes_with_shapes(source, known) for source in sources)
    return known[op]


def _variable_tensors(variables: Iterable[tf.Operation]) -> Dict[tf.Tensor, tf.Operation]:
    """Maps references, handles and read values to the ops of their variables."""
    found = {}
    for variable in variables:
        tensor = variable.outputs[0]
        found[tensor] = variable
        for consumer in tensor.consumers():
            if consumer.type in op_types.READS and tf_compat.control_flow_context_of(consumer) is None:
                found[consumer.outputs[0]] = variable
    return found


def _initialization(ordered: List[tf.Operation]) -> Set[tf.Operation]:
    """The ops that compute initial values, and the ops that only initializers need."""
    if not ordered:
        return set()
    graph, members = ordered[0].graph, set(ordered)
    found: Set[tf.Operation] = set()
    stack: List[tf.Operation] = []
    for name in (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.LOCAL_VARIABLES):
        for variable in graph.get_collection(name):
            found.add(variable.initializer)
            stack.append(variable.initial_value.op)
    while stack:  # an initial value, even if other ops take it, such as a moving average
        op = stack.pop()
        if op in members and op not in found and op.type not in op_types.VARIABLES:
            found.add(op)
            stack += [source.op for source in op.inputs]
    for op in reversed(ordered):
        consumers = [consumer for output in op.outputs for consumer in output.consumers()]
        if consumers and all(consumer in found for consumer in consumers) and op.type not in op_types.VARIABLES:
            found.add(op)
    return found


def _depending(
    inside: List[tf.Operation], variables: Dict[tf.Tensor, tf.Operation], members: Set[tf.Operation]
) -> Set[tf.Operation]:
    """The ops that depend on a variable, on data or on a tensor from outside."""
    found: Set[tf.Operation] = set()
    for op in inside:
        if any(source in variables or draws_data(source.op) or source.op not in members for source in op.inputs):
            found.add(op)
    stack = list(found)
    candidates = set(inside)
    while stack:
        for output in stack.pop().outputs:
            for consumer in output.consumers():
                if consumer in candidates and consumer not in found:
                    found.add(consumer)
                    stack.append(consumer)
    return found


def _drawn_for(inside: List[tf.Operation], lowered: Set[tf.Operation]) -> Set[tf.Operation]:
    """The ops that `lowered` need and whose values differ from run to run: random ops, and ops that depend on them."""
    varying: Set[tf.Operation] = set()
    for op in inside:
        if op not in lowered and (
            tf_compat.is_stateful(op.graph, op.type) or any(source.op in varying for source in op.inputs)
        ):
            varying.add(op)
    needed: Set[tf.Operation] = set()
    for op in reversed(inside):
        if op in lowered or op in needed:
            needed.update(source.op for source in op.inputs if source.op in varying)
    return needed
