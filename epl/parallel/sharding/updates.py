"""Ops on the gradients of shards: norms and clipping, and the variables that updates write.

Between tf.gradients and apply_gradients a user computes with gradients as if they were full tensors. Most ops work on
shards unchanged. An op that sums over a shard gives a partial sum, which an all-reduce makes the full sum:

    shard      --> L2Loss --> [partial sum] --> all-reduce --+
                                                             +--> Pack --> Sum --> Sqrt        tf.global_norm
    REPLICATED --> L2Loss -----------------------------------+

The rules of the partitioner say what an op does with a shard. Ops whose rules emit other ops are rebuilt; an op without
a rule is rebuilt on full tensors. A full tensor that meets shards of its shape is cut like them. Nothing is
differentiated after this. Partial sums that do not depend on each other go in one collective.
"""

from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import copy_op
from epl.ir.colocation import phase_of
from epl.ir.taskgraph import Phase
from epl.parallel.sharding.placements import PARTIAL, REPLICATED, Placement
from epl.parallel.sharding.resharding import Resharder, Resharders, hidden
from epl.parallel.sharding.rules import all as all_rules  # noqa: F401  (fills the registry)
from epl.parallel.sharding.rules.emission import RankEmission
from epl.parallel.sharding.rules.registry import Choice, OpInfo, TensorInfo, choices_of
from epl.parallel.sharding.slices import slice_along
from epl.parallel.sharding.sparse_rows import (
    LOCAL_ROWS,
    NO_ROWS,
    LocalRows,
    placement_of_rows,
    refuse_rows,
    refuse_rows_of_whole,
)
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_HAND_ON = op_types.SWITCHES | op_types.MERGES | op_types.ENTERS | op_types.EXITS | op_types.NEXT_ITERATIONS
_PASSES = op_types.READS | _HAND_ON
# Other modules handle these ops on a variable or its value.
_STAY = (op_types.OF_SCRIPT - op_types.PYTHON) | op_types.STATE_QUERIES | {"TensorListPushBack"}
_SHAPES = frozenset(["Shape", "ShapeN", "Size"])
_OTHER_SHAPE_WHOLE = frozenset(["Reshape", "TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate"])
_REDUCTIONS = frozenset(["All", "Any", "EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod", "Sum"])


class RebuiltOp(NamedTuple):
    """An op that is rebuilt.

    Attributes:
      op: of the user.
      choice: of its rule; None: no rule knows the op, so it computes on full tensors.
      placements: of its inputs.
    """

    op: tf.Operation
    choice: Optional[Choice]
    placements: Tuple[Placement, ...]


class ReductionRound(NamedTuple):
    """Ops and sums that must be built before the ops of the next round.

    Attributes:
      ops: are rebuilt in this order.
      partial_sums: tensors that are summed over the ranks after that.
    """

    ops: List[RebuiltOp]
    partial_sums: List[tf.Tensor]


class Updates(NamedTuple):
    """How the shards of gradients flow through the user's ops.

    Attributes:
      placements: of the tensors that are shards.
      variables: op name -> placement, of the variables that shards are written into.
      rounds: the ops and sums to build.
      cuts: (op, index of an input) that is a full tensor where the op takes a shard -> placement of the shard.
    """

    placements: Dict[tf.Tensor, Placement]
    variables: Dict[str, Placement]
    rounds: List[ReductionRound]
    cuts: Dict[Tuple[tf.Operation, int], Placement]


def trace_updates(
    tf_graph: tf.Graph,
    parts: Mapping[tf.Tensor, Placement],
    variables: Mapping[str, Placement],
    ranks: int,
    after: int,
    built: Collection[tf.Operation] = (),
    branches: Sequence[Any] = (),
    local_rows: LocalRows = NO_ROWS,
) -> Updates:
    """Follows shards through the ops of the user after the backward pass. Changes nothing.

    Args:
      tf_graph: the graph.
      parts: tensors that differ between ranks: the gradients of shards. Local rows (values of a sparse gradient of a
        table that is cut by rows) are shard(0, None).
      variables: op name -> placement, of the shards.
      ranks: devices of the group.
      after: number of the last op that the partitioner built itself (`tf_compat.last_op_id`); only newer ops are
        visited.
      built: ops that it built later.
      branches: control-flow contexts that may have collectives: all ranks take them together, or none does.
      local_rows: facts about sparse gradients, next to `parts`.

    Raises:
      PlanError: shards meet in another branch, or in a loop; or local rows are written, or computed with, in a way that
        EPL has no rule for.
    """
    known = dict(variables)
    new = tf_compat.ops_since(tf_graph, after)
    ordered = _ordered([op for op in new if op not in built and phase_of(op) != Phase.BACKWARD])
    while True:
        tracer = _Tracer(parts, known, ranks, branches, local_rows)
        for op in ordered:
            tracer.visit(op)
        if tracer.written.keys() <= known.keys():
            return tracer.result()
        known.update(tracer.written)


def _ordered(ops: Sequence[tf.Operation]) -> List[tf.Operation]:
    """Producers before consumers. (TensorFlow creates the Switch and Enter ops of a branch after the ops inside.)"""
    waiting = dict.fromkeys(ops, False)  # whether its producers are on the stack already
    ordered: Dict[tf.Operation, None] = {}
    stack = list(reversed(ops))
    while stack:
        op = stack[-1]
        if op in ordered or waiting[op]:
            ordered[stack.pop()] = None
            continue
        waiting[op] = True
        stack.extend(t.op for t in op.inputs if not waiting.get(t.op, True))
    return list(ordered)


class _Tracer:
    """One pass over the ops, producers first: finds the placement of each output."""

    def __init__(
        self,
        parts: Mapping[tf.Tensor, Placement],
        variables: Mapping[str, Placement],
        ranks: int,
        branches: Sequence[Any],
        local_rows: LocalRows,
    ) -> None:
        self._placements = dict(parts)
        self._local_rows = local_rows
        self._astray: List[Tuple[tf.Operation, str]] = []  # writes of local rows into a variable that is no shard
        self._branches = branches
        self._variables = variables
        self._ranks = ranks
        self._waits: Dict[tf.Tensor, int] = {}  # the round in which a tensor can be computed, if not in the first
        self._rounds: List[ReductionRound] = []
        self._whole: Set[tf.Tensor] = set()  # tensors with the size of a full tensor, not of a shard
        self._cuts: Dict[Tuple[tf.Operation, int], Placement] = {}
        self.written: Dict[str, Placement] = dict(variables)

    def result(self) -> Updates:
        for op, variable in self._astray:
            refuse_rows(op, f"the variable {variable!r}, which is no part")
        return Updates(self._placements, self.written, self._rounds, self._cuts)

    def visit(self, op: tf.Operation) -> None:
        inputs = op.inputs
        if not inputs:
            return
        placements = [self._placement(tensor) for tensor in inputs]
        waits = max(self._waits.get(tensor, 0) for tensor in inputs) if self._waits else 0
        if all(placement == REPLICATED for placement in placements):
            outputs = [REPLICATED] * len(op.outputs)
        elif op.type in op_types.WRITES:
            outputs = self._write(op, placements)
        elif op.type in _PASSES:
            found = next(placement for placement in placements if placement != REPLICATED)
            outputs = [REPLICATED if _is_flag(op, tensor) else found for tensor in op.outputs]
        elif op.type in _STAY:
            outputs = [REPLICATED] * len(op.outputs)
        else:
            outputs = self._compute(op, placements, waits)
        if op.type in _SHAPES and any(placement.is_shard for placement in placements) or self._has_whole_size(op):
            self._whole.update(tensor for tensor, placement in zip(op.outputs, outputs) if placement == REPLICATED)
        for tensor, placement in zip(op.outputs, outputs):
            if waits:
                self._waits[tensor] = waits
            if placement == PARTIAL:
                _refuse_branch(op, self._branches)
                self._waits[tensor] = waits + 1
                self._round(waits).partial_sums.append(tensor)
            elif placement != REPLICATED:
                self._placements[tensor] = placement

    def _round(self, number: int) -> ReductionRound:
        self._rounds += [ReductionRound([], []) for _ in range(number + 1 - len(self._rounds))]
        return self._rounds[number]

    def _placement(self, tensor: tf.Tensor) -> Placement:
        found = self._placements.get(tensor)
        if found is not None:
            return found
        if tensor.op.type in op_types.READS:  # a read that is older than the ops that are visited
            tensor = tensor.op.inputs[0]
        return self._variables.get(tensor.op.name, REPLICATED)

    def _write(self, op: tf.Operation, placements: Sequence[Placement]) -> List[Placement]:
        """A variable that is written with a shard, or together with a variable that is one, is cut in the same way."""
        found = next((placement for placement in placements if placement.sizes is not None), None)
        if found is None:
            return self._write_rows(op)
        rows_of_whole = op.type in op_types.ROW_WRITES and found.dim == 0 and LOCAL_ROWS not in placements
        if placements[0].sizes is not None and (rows_of_whole or op.type in op_types.SLICE_WRITES):
            refuse_rows_of_whole(op, (_variable_of(op.inputs[0]) or op).name)
        shapes = [_shape_written(tensor) for tensor, placement in zip(op.inputs, placements) if placement == found]
        outer = 1 if found.dim > 0 and op.type in op_types.ROW_WRITES else 0  # it may write any number of rows
        for tensor in op.inputs:
            variable = _variable_of(tensor)
            if variable is not None and any(
                _variable_shape(variable)[outer:].is_compatible_with(shape[outer:]) for shape in shapes
            ):
                self._note(variable, found)
            elif self._placement(tensor) == REPLICATED:
                self._look_back(tensor, shapes[0], found)
        for index, tensor in enumerate(op.inputs):
            if any(tensor.shape[outer:].is_compatible_with(shape[outer:]) for shape in shapes):
                self._cut(op, index, found)
        return [found] * len(op.outputs)

    def _has_whole_size(self, op: tf.Operation) -> bool:
        """Whether an op's output has a full size.

        An input that is no scalar has one; or an input has one and all inputs are scalars.
        """
        if not self._whole:
            return False
        found = [tensor for tensor in op.inputs if tensor in self._whole]
        return bool(found) and (
            any(tensor.shape.ndims != 0 for tensor in found) or all(tensor.shape.ndims == 0 for tensor in op.inputs)
        )

    def _cut(self, op: tf.Operation, index: int, placement: Placement) -> None:
        """Notes an input that is a full tensor where the op takes a shard."""
        tensor = op.inputs[index]
        if placement.sizes is not None and tensor in self._whole and (tensor.shape.ndims or 0) > placement.dim:
            self._cuts[op, index] = placement

    def _write_rows(self, op: tf.Operation) -> List[Placement]:
        """Notes the variables that an op writes local rows into: slots by rows, or variables that are refused later."""
        for variable in [variable for variable in map(_variable_of, op.inputs) if variable is not None]:
            placement = self._local_rows.slots.get(variable.name)
            if placement is None:
                self._astray.append((op, variable.name))
            else:
                self._note(variable, placement)
        return [REPLICATED] * len(op.outputs)

    def _note(self, variable: tf.Operation, placement: Placement) -> None:
        self.written.setdefault(variable.name, placement)

    def _look_back(self, value: tf.Tensor, shape: tf.TensorShape, placement: Placement) -> None:
        """Notes the variables from which a shard is computed element by element: a sparse update writes their rows."""
        stack, seen = [value], set()
        while stack:
            tensor = stack.pop()
            op = tensor.op
            if tensor in seen or not tensor.shape.ndims or not tensor.shape.is_compatible_with(shape):
                continue
            seen.add(tensor)
            variable = _variable_of(op.inputs[0] if op.type in op_types.WRITES | op_types.READS else tensor)
            if variable is not None:
                self._note(variable, placement)
            elif all(not other.shape.ndims or other.shape.is_compatible_with(shape) for other in op.inputs):
                stack.extend(op.inputs)

    def _compute(self, op: tf.Operation, placements: Sequence[Placement], waits: int) -> List[Placement]:
        if LOCAL_ROWS in placements:
            of_rows = placement_of_rows(op, placements, self._local_rows.shapes, self._variables.values())
            if of_rows is not None:
                return [of_rows] * len(op.outputs)
        choice = self._choice(op, placements)
        if LOCAL_ROWS in placements and choice is None and any(placement.sizes is not None for placement in placements):
            refuse_rows(op, "a part of another size")
        rows = next((placement for placement in placements if placement.is_shard), REPLICATED)
        if all(placement.sizes is None for placement in placements) and (choice is None or op.type not in _REDUCTIONS):
            # Local rows, and the indices that say where they go, mean nothing on other ranks.
            return [rows if tensor.shape.ndims != 0 else REPLICATED for tensor in op.outputs]
        if choice is None:
            _refuse_handles(op, placements)
        if choice is None or choice.emit is not None:
            _refuse_branch(op, self._branches)
            self._round(waits).ops.append(RebuiltOp(op, choice, tuple(placements)))
        if choice is None:
            self._whole.update(op.outputs)
        return [REPLICATED] * len(op.outputs) if choice is None else list(choice.outputs)

    def _choice(self, op: tf.Operation, placements: Sequence[Placement]) -> Optional[Choice]:
        """The rule's choice for inputs in exactly these placements.

        If there is none, and the op computes on tensors of one shape, an input with the shape of a shard is a shard as
        well (a slot that no shard was written into yet): a full tensor would be larger.
        """
        parts = [
            (tensor.shape, placement) for tensor, placement in zip(op.inputs, placements) if placement != REPLICATED
        ]
        # A full tensor still has the static shape of a shard: a rule would broadcast it if the shard has one row.
        is_whole = parts[0][1].sizes is not None and any(t in self._whole and t.shape.ndims for t in op.inputs)
        found = None if is_whole else self._choice_of(op, placements)
        if found is None and all(
            tensor.shape.ndims == 0 or tensor.shape.is_compatible_with(parts[0][0])
            for tensor in list(op.inputs) + list(op.outputs)
        ):
            slots = [parts[0][1] if tensor.shape.ndims else REPLICATED for tensor in op.inputs]
            found = self._choice_of(op, [slot if own == REPLICATED else own for slot, own in zip(slots, placements)])
            for index, slot in enumerate(slots):
                if found is not None and slot != REPLICATED:
                    self._cut(op, index, slot)
        return self._choice_of(op, placements) if is_whole and found is None else found

    def _choice_of(self, op: tf.Operation, placements: Sequence[Placement]) -> Optional[Choice]:
        info = op_info(op, placements, self._ranks)
        return next((choice for choice in choices_of(info) if choice.inputs == tuple(placements)), None)


def op_info(op: tf.Operation, placements: Sequence[Placement], ranks: int) -> OpInfo:
    """What rules are told of an op on shards: its inputs have the shapes of the full tensors."""
    return OpInfo(
        type=op.type,
        name=op.name,
        attrs={name: op.get_attr(name) for name in op.node_def.attr if not name.startswith("_")},
        inputs=tuple(_whole(tensor, placement) for tensor, placement in zip(op.inputs, placements)),
        outputs=tuple(
            TensorInfo(None if t.shape.ndims is None else (None,) * t.shape.ndims, t.dtype.base_dtype)
            for t in op.outputs
        ),
        ranks=ranks,
        granularities={},
        ratios=next((placement.sizes for placement in placements if placement.sizes is not None), ()),
    )


def _whole(tensor: tf.Tensor, placement: Placement) -> TensorInfo:
    known = _shape_written(tensor)
    if known.ndims is None:
        return TensorInfo(None, tensor.dtype.base_dtype)
    shape = known.as_list()
    if placement.is_shard:
        shape[placement.dim] = placement.size
    constant = tf_compat.static_value(tensor) if tensor.shape.num_elements() in range(1, 1024) else None
    batch = placement.dim if placement.is_shard and placement.sizes is None else None
    return TensorInfo(tuple(shape), tensor.dtype.base_dtype, constant, batch)


def _variable_of(tensor: tf.Tensor) -> Optional[tf.Operation]:
    """The variable op whose reference or handle a tensor is, through loops and branches."""
    seen: Set[tf.Operation] = set()
    while tensor.op.type in _HAND_ON and tensor.op not in seen:
        seen.add(tensor.op)
        tensor = tensor.op.inputs[0]
    return tensor.op if tensor.op.type in op_types.VARIABLES else None


def _shape_written(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape of a tensor, or of the variable that it refers to."""
    variable = _variable_of(tensor)
    return tensor.shape if variable is None else _variable_shape(variable)


def _variable_shape(variable: tf.Operation) -> tf.TensorShape:
    return tf.TensorShape(variable.get_attr("shape"))


def _refuse_handles(op: tf.Operation, placements: Sequence[Placement]) -> None:
    """Raises PlanError for an op that no rule knows if it takes the handle of a shard: a handle cannot be gathered."""
    for tensor, placement in zip(op.inputs, placements):
        if placement != REPLICATED and tensor.dtype == tf.resource:
            raise PlanError(
                "{!r} ({}) takes a variable of which each device has a part ({}), and EPL has no rule for what it does "
                "with it. Let the update rule compute with the value, as `v.read_value()` gives it.".format(
                    op.name, op.type, placement
                )
            )


def _refuse_branch(op: tf.Operation, allowed: Sequence[Any]) -> None:
    context = tf_compat.control_flow_context_of(op)
    if context is not None and not any(context is other for other in allowed):
        raise PlanError(
            "{!r} ({}) is in a loop or branch, and combines parts of a gradient or variable that lie on several "
            "devices: they cannot meet there. Compute it outside of tf.cond and tf.while_loop.".format(op.name, op.type)
        )


def complete_updates(
    updates: Updates,
    resharder: Resharder,
    between_groups: Optional[Resharder] = None,
    in_branch: Optional[Callable[[Any], Resharders]] = None,
) -> Dict[tf.Tensor, tf.Tensor]:
    """Rebuilds ops, all-reduces partial sums, and gives the results to the ops that took the old tensors.

    Args:
      updates: from `trace_updates`, for the same graph.
      resharder: of this rank; the collectives that it has run first.
      between_groups: where several groups hold the same shards: moves data between the ranks with the same shard.
        Groups that lie on processes in different ways round sums differently, so that all take the sums of one.
      in_branch: gives both resharders of a control-flow context: collectives of a branch that is not taken never run,
        and no others may wait for them.

    Returns:
      Tensor of the user -> the tensor that has replaced it.

    Raises:
      PlanError: an op that no rule knows gives a tensor whose shape depends on the shards.
    """
    graph = tf.get_default_graph()
    replaced: Dict[tf.Tensor, tf.Tensor] = {}
    last = tf_compat.last_op_id(graph)

    def resharders_in(context: Any) -> Resharders:
        return (resharder, between_groups) if context is None or in_branch is None else in_branch(context)

    def cut_inputs(op: tf.Operation, own: Resharder) -> None:
        for index in [index for index in range(len(op.inputs)) if (op, index) in cuts]:
            tf_compat.set_input(op, index, _as_part(op.inputs[index], cuts.pop((op, index)), own))

    cuts = dict(updates.cuts)
    for one in updates.rounds:
        for rebuilt in one.ops:
            op, context = rebuilt.op, tf_compat.control_flow_context_of(rebuilt.op)
            own, _ = resharders_in(context)
            with tf.device(op.device), tf_compat.control_flow_context(graph, context):
                cut_inputs(op, own)
                made = _emitted(op, rebuilt.choice, own) if rebuilt.choice else _on_whole(op, own, rebuilt.placements)
            for before, after in zip(op.outputs, made):
                _replace(before, after, replaced, last)
        for context, partial_sums in _by_context(one.partial_sums):
            own, between = resharders_in(context)
            with tf.device(partial_sums[0].device), tf_compat.control_flow_context(graph, context):
                sums = own.all_reduce([replaced.get(tensor, tensor) for tensor in partial_sums], "sums")
                sums = sums if between is None else between.broadcast(sums)
            for before, after in zip(partial_sums, sums):
                _replace(before, after, replaced, last)
    for op in dict.fromkeys(op for op, _ in cuts):
        context = tf_compat.control_flow_context_of(op)
        with tf.device(op.device), tf_compat.control_flow_context(graph, context):
            cut_inputs(op, resharders_in(context)[0])
    return replaced


def _by_context(tensors: Sequence[tf.Tensor]) -> List[Tuple[Any, List[tf.Tensor]]]:
    """The tensors of each control-flow context."""
    found: Dict[int, Tuple[Any, List[tf.Tensor]]] = {}
    for tensor in tensors:
        context = tf_compat.control_flow_context_of(tensor.op)
        found.setdefault(id(context), (context, []))[1].append(tensor)
    return list(found.values())


def _emitted(op: tf.Operation, choice: Choice, resharder: Resharder) -> List[tf.Tensor]:
    assert choice.emit is not None
    return choice.emit(RankEmission(op, resharder), op_info(op, choice.inputs, resharder.ranks), list(op.inputs))


def _on_whole(op: tf.Operation, resharder: Resharder, placements: Sequence[Placement]) -> List[tf.Tensor]:
    """The op on gathered tensors."""
    # The output of an assign may be a reference.
    inputs = [
        t if placement == REPLICATED else resharder.gather(tf.identity(t), placement)
        for t, placement in zip(op.inputs, placements)
    ]
    made = list(copy_op(op, inputs, {}).outputs)
    if op.type in _OTHER_SHAPE_WHOLE:  # the result is cut where it meets shards
        return [_of_both_sizes(before, after) for before, after in zip(op.outputs, made)]
    cut = [str(placement) for placement in placements]
    for before, after in zip(op.outputs, made):
        if before.consumers() and not before.shape.is_compatible_with(after.shape):
            raise PlanError(
                "{!r} ({}) computes with a part of a gradient or variable that is split. EPL has no rule for ops of "
                "its type on what is cut so ({}), and what it gives has another shape on whole tensors, {}, than on "
                "parts, {}. Compute it before tf.gradients, or keep the variable out of epl.split.".format(
                    op.name, op.type, ", ".join(cut), after.shape, before.shape
                )
            )
    return made


def _as_part(tensor: tf.Tensor, placement: Placement, resharder: Resharder) -> tf.Tensor:
    """This rank's shard of a full tensor; a tensor that has the size of the shard is one already."""
    begin, size = resharder.own_range(placement, None)
    tensor = hidden(tensor, placement.dim)  # its static size may be that of the shard
    is_whole = tf.equal(tf.shape(tensor)[placement.dim], placement.size)
    return slice_along(tensor, placement.dim, tf.where_v2(is_whole, begin, 0), size)


def _of_both_sizes(before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """`after`, with unknown static sizes where they differ from those of `before`."""
    for dim in range(after.shape.ndims or 0):
        if before.shape.ndims == after.shape.ndims and not before.shape[dim].is_compatible_with(after.shape[dim]):
            after = hidden(after, dim)
    return after


def _replace(before: tf.Tensor, after: tf.Tensor, replaced: Dict[tf.Tensor, tf.Tensor], last: int) -> None:
    """Gives `after` to the user's ops that take `before`; `last` is the number of the user's newest op."""
    source = replaced.get(before, before)
    for consumer in source.consumers():
        if tf_compat.op_id(consumer) <= last:
            for index, tensor in enumerate(consumer.inputs):
                if tensor is source:
                    tf_compat.set_input(consumer, index, after)
    replaced[before] = after


def _is_flag(op: tf.Operation, tensor: tf.Tensor) -> bool:
    """Whether an output tells which branch was taken."""
    return op.type in op_types.MERGES and tensor is op.outputs[1]
