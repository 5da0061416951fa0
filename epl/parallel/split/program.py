"""The unsplit program of a region: shapes, batches and constants of its tensors, and the choices of its ops.

The unsplit program computes on the concatenated batches of all ranks. The user's graph has the shapes of one rank's
batch. The sharding rules trace the dimension that grows: they say where the rows of a sharded batch go.
"""

from typing import Any, Callable, Container, Dict, Hashable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ops.compression import compressible
from epl.parallel.costs.backward import Constant
from epl.parallel.costs.op_times import OpTimes, times_on
from epl.parallel.costs.shapes import TensorType
from epl.parallel.sharding.rules import all as all_rules  # noqa: F401  (fills the registry)
from epl.parallel.sharding.rules.registry import Choice, OpInfo, Shape, TensorInfo, choices_of
from epl.parallel.split.batch_dims import Batch, guessed, is_ambiguous, reshaped, traced
from epl.parallel.split.common_subexpressions import CommonSubexpressions
from epl.parallel.split.continued_ranges import growth_over_batch
from epl.parallel.split.divisibility import granularities
from epl.parallel.split.region import (
    Dependence,
    Region,
    batch_dimension,
    calls_python,
    draws_data,
    draws_numbers,
    holds_variable,
    rows_of_data,
)
from epl.parallel.split.shape_inference import OpenShape, closed_shape, open_shapes, shape_of
from epl.parallel.split.step_times import FullOp, OpTensor, step_seconds
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

ENTRY, VARIABLE, RESULT = "entry", "variable", "result"

# The ratios in which an op is cut, by rank of the group; () for balanced shards, None for an op outside of all splits.
Ratios = Callable[[tf.Operation], Optional[Tuple[int, ...]]]

_CONSTANT_ELEMENTS = 1024
_OWN_GRADIENT = "_gradient_op_type"  # an attribute: see tf.Graph.gradient_override_map
_NO_GRADIENT = frozenset(["StopGradient", "PreventGradient", "Sign", "Floor", "Ceil", "Round", "Rint", "ZerosLike",
                          "OnesLike"])  # fmt: skip


class Value(NamedTuple):
    """A tensor of the unsplit program.

    Attributes:
      tensor: that of the user's graph; for a variable, its reference or handle.
      kind: ENTRY, VARIABLE or RESULT.
      info: shape and dtype, and the batch dimension if it can be sharded.
      batch: its position, even if it cannot be sharded.
      rows_of: number of the entry whose rows are its batch; -1 without a batch.
      closed: its shape for costs, with an assumed size for an open batch.
      differentiable: whether a gradient may be taken through it.
      trained: whether gradients of variables depend on its gradient; for costs.
      in_half: whether all-to-alls send it as float16; for costs.
    """

    tensor: tf.Tensor
    kind: str
    info: TensorInfo
    batch: Optional[Batch]
    rows_of: int
    closed: Tuple[int, ...]
    differentiable: bool
    trained: bool
    in_half: bool


class Step(NamedTuple):
    """An op of the unsplit program.

    Attributes:
      op: that of the user's graph.
      inputs, outputs: numbers of the values; -1 for an input from inside a loop.
      info: what its sharding rule is given.
      choices: how it can be computed on shards.
      kept: whether it stays as it is and takes REPLICATED tensors.
      draws: whether it draws random numbers, or is a Python function that may.
      seconds: time to compute it in full, forward and backward, as `step_seconds` has it; 0 before `Program.train`.
    """

    op: tf.Operation
    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]
    info: OpInfo
    choices: Tuple[Choice, ...]
    kept: bool
    draws: bool
    seconds: float


class Program:
    """The unsplit program of a region, as values and steps in order.

    It is one class because one walk over the ops fills all tables together: the batch and the choices of an op need the
    values, numbers and common subexpressions of the ops before it.

    Attributes:
      values: by number.
      steps: in the order of creation.
      number: tensor of the user's graph -> number of its value; reads of a variable have the number of the variable.
      exits: numbers of the region outputs: values that ops outside take.
      equal: common subexpressions: ops that compute the same as an earlier op are no steps, and have its values.
      fixed: numbers of the values that depend on neither data nor variables.
      ranks: devices in the group.
      own: fixed tensor of one rank's batch size -> its dimension of the rows.
      growth: of those that are numbers of rows -> by how much they grow from rank to rank.
    """

    def __init__(
        self,
        region: Region,
        ranks: int,
        times: Optional[OpTimes] = None,
        half: bool = False,
        ratios: Ratios = lambda op: (),
        whole: Container[tf.Tensor] = (),
        shapes: Optional[Dict[tf.Tensor, OpenShape]] = None,
    ) -> None:
        """Reads a region.

        Args:
          region: of a split TaskGraph.
          ranks: devices in the group.
          times: of ops on a device of the group; None: on a CPU.
          half: whether all-to-alls send floats as float16.
          ratios: gives the ratios of the TaskGraph of an op.
          whole: tensors from outside that hold no rows of a batch, and are the same on all ranks.
          shapes: `open_shapes` of the region, if they are known.
        """
        self.ranks = ranks
        self._ratios = ratios
        self._half = half
        self._region = region
        self._inside = frozenset(region.ops)
        self._times = times or times_on("cpu")
        self._whole = whole
        self._data_rows: Dict[tf.Tensor, Optional[int]] = {}
        self._depends_on_data = Dependence(beside=whole)
        self._depends_on_variables = Dependence(holds_variable)
        self._shapes = open_shapes(region) if shapes is None else shapes
        self._granularities = granularities(region.ops, self._shape)
        self.own: Dict[tf.Tensor, int] = {}
        self._read()
        while set(self._found_own) - set(self.own):
            self.own.update(self._found_own)
            self._read()
        grown = ((tensor, growth_over_batch(tensor, dim)) for tensor, dim in self.own.items())
        self.growth = {tensor: growth for tensor, growth in grown if growth is not None}
        self.outputs = {self.number[tensor] for tensor in region.outputs if tensor in self.number}
        for number in self.outputs & self._unsure:
            tensor = self.values[number].tensor
            if tensor.shape.ndims != 0:
                raise PlanError(
                    "split: cannot tell which dimension of {} ({}), {}, holds the batch, and ops outside of epl.split "
                    "take it. Take those ops into the scope, or reshape the tensor in it so that its other dimensions "
                    "are known.".format(tensor.name, user_line(tensor.op), tensor.shape)
                )

    def _read(self) -> None:
        self.values: List[Value] = []
        self.steps: List[Step] = []
        self.number: Dict[tf.Tensor, int] = {}
        self._ratios_of_values: Dict[int, Tuple[int, ...]] = {}
        self._found_own: Dict[tf.Tensor, int] = {}
        self._unsure: Set[int] = set()  # numbers of values whose batch dimension is not known
        self.fixed: Set[int] = set()
        self.equal = CommonSubexpressions()
        for op in self._needed(_in_order(self._region)):
            self._add_step(op)

    def _needed(self, ops: List[tf.Operation]) -> List[tf.Operation]:
        """The ops without those that compute tensors of `own` alone: these are entries, and each rank has its own."""
        dropped: Set[tf.Operation] = set()
        for op in reversed(ops):
            consumers = [consumer for output in op.outputs if output not in self.own for consumer in output.consumers()]
            if self.own and op.outputs and all(consumer in dropped for consumer in consumers):
                if consumers or any(output in self.own for output in op.outputs):
                    dropped.add(op)
        return [op for op in ops if op not in dropped]

    def train(self, objective: Sequence[tf.Tensor]) -> None:
        """Notes the losses as region outputs, what no loss depends on as not trained, and how long ops take.

        Args:
          objective: what is differentiated; what of it is outside of the split needs all that leaves it.
        """
        losses = [y for y in objective if y in self.number]
        if len(losses) < len(objective):
            losses += [tensor for tensor in self._region.outputs if tensor in self.number]
        reached = {self.number[loss] for loss in losses}
        self.outputs |= reached
        for step in reversed(self.steps):
            if any(number in reached and self.values[number].trained for number in step.outputs):
                reached.update(step.inputs)
        for number, value in enumerate(self.values):
            if value.trained and number not in reached:
                self.values[number] = value._replace(trained=False)
        self._set_seconds()

    def steps_of_ops(self) -> Dict[tf.Operation, int]:
        """Maps ops of the user to the number of the step that computes them, or the same as they do."""
        steps = {step.op: number for number, step in enumerate(self.steps)}
        firsts = {op: self.equal.first(op) for op in self._region.ops}
        return {op: steps[first] for op, first in firsts.items() if first in steps}

    # ---- Values.

    def result(self, tensor: tf.Tensor) -> Optional[Value]:
        """The value of a tensor of the user that the split computes; None for other tensors."""
        number = self.number.get(tensor)
        value = None if number is None else self.values[number]
        return value if value is not None and value.kind == RESULT else None

    def _add(self, value: Value) -> int:
        self.values.append(value)
        self.number[value.tensor] = len(self.values) - 1
        return len(self.values) - 1

    def _in_half(self, info: TensorInfo) -> bool:
        return self._half and compressible(info.dtype)

    def _input(self, tensor: tf.Tensor) -> int:
        """The number of an input of an op; -1 if it comes from inside a loop."""
        if tensor in self.number:
            return self.number[tensor]
        if tensor in self.own:
            return self._entry(tensor, self.own[tensor])
        if tensor in self._region.variables:
            return self._variable(tensor, self._region.variables[tensor])
        return -1 if tensor.op in self._inside else self._entry(tensor, batch_dimension(tensor, self._depends_on_data))

    def _variable(self, tensor: tf.Tensor, variable: tf.Operation) -> int:
        handle = variable.outputs[0]
        if handle not in self.number:
            is_resource = handle.dtype == tf.resource
            dtype = tf.as_dtype(variable.get_attr("dtype"))
            shape = shape_of(tf.TensorShape(variable.get_attr("shape")) if is_resource else handle.shape)
            info = TensorInfo(shape, dtype)
            floating = _has_gradient(dtype)
            closed = closed_shape(shape, None, self.ranks)
            self._add(Value(handle, VARIABLE, info, None, -1, closed, floating, floating, self._in_half(info)))
        self.number[tensor] = self.number[handle]
        return self.number[handle]

    def _entry(self, tensor: tf.Tensor, batch: Optional[int]) -> int:
        dtype = tensor.dtype.base_dtype
        info = TensorInfo(self._concatenated(shape_of(tensor.shape), batch), dtype, _constant(tensor), batch)
        fixed = not self._depends_on_data(tensor) and not self._depends_on_variables(tensor)
        differentiable = _has_gradient(dtype) and not fixed
        trained = differentiable and not draws_data(tensor.op)
        if fixed and batch is None:
            self.fixed.add(len(self.values))
        closed = closed_shape(shape_of(tensor.shape), batch, self.ranks)
        rows_of = -1 if batch is None else len(self.values)
        place = None if batch is None else Batch(batch, 1)
        return self._add(
            Value(tensor, ENTRY, info, place, rows_of, closed, differentiable, trained, self._in_half(info))
        )

    def _shape(self, tensor: tf.Tensor) -> Optional[Shape]:
        """The static shape in the user's graph, completed by shape inference."""
        shape = shape_of(tensor.shape)
        if tensor not in self._shapes:
            return shape
        found = self._shapes[tensor].shape
        if shape is None or found is None:
            return found if shape is None else shape
        return tuple(new if size is None else size for size, new in zip(shape, found))

    def _concatenated(self, shape: Optional[Shape], batch: Optional[int]) -> Optional[Shape]:
        """A shape of the user's graph, with the batch dimension of all ranks together."""
        if shape is None or batch is None or shape[batch] is None:
            return shape
        return shape[:batch] + ((shape[batch] or 0) * self.ranks,) + shape[batch + 1 :]

    # ---- Steps.

    def _add_step(self, op: tf.Operation) -> None:
        inputs = tuple(self._input(tensor) for tensor in op.inputs)
        known = [self.values[number] for number in inputs if number >= 0]
        taken = tuple(value.info for value in known)
        outputs = tuple(
            TensorInfo(self._shape(output), output.dtype.base_dtype, _constant(output)) for output in op.outputs
        )
        kept, node = op in self._region.kept, op.node_def
        ratios = self._ratios_of(op, inputs)
        if not kept and min(inputs, default=-1) >= 0 and not self.fixed.issuperset(inputs):
            shapes = [info.shape for info in outputs]
            first = self.equal.find(op, node, [self._identity(number) for number in inputs], shapes, ratios)
            if first is not None:
                self.number.update(zip(op.outputs, [self.number[output] for output in first.outputs]))
                return
        bare = OpInfo(op.type, op.name, _attrs(op, node), taken, outputs, self.ranks, self._granularities, ratios)
        batches = self._batches(bare, known, kept)
        if any(number in self._unsure for number in inputs):
            self._unsure.update(range(len(self.values), len(self.values) + len(outputs)))
        if not kept and all(number in self.fixed for number in inputs):
            self.fixed.update(range(len(self.values), len(self.values) + len(outputs)))
        infos = tuple(
            info._replace(
                shape=self._concatenated(info.shape, batch and batch.dim),
                batch=batch.dim if batch is not None and batch.outer == 1 else None,
            )
            for info, batch in zip(outputs, batches)
        )
        rows_of = max([value.rows_of for value in known] or [-1])
        passes = op.type not in _NO_GRADIENT
        differentiable = passes and (kept or any(value.differentiable for value in known))
        trained = passes and any(value.trained for value in known)
        added = []
        for output, info, batch in zip(op.outputs, infos, batches):
            known_shape = self._shapes[output].closed if output in self._shapes else shape_of(output.shape)
            closed = closed_shape(known_shape, batch and batch.dim, self.ranks)
            floating = _has_gradient(info.dtype)
            rows = -1 if batch is None else rows_of
            leads = differentiable and floating, trained and floating
            added.append(self._add(Value(output, RESULT, info, batch, rows, closed, *leads, self._in_half(info))))
            self._ratios_of_values[added[-1]] = ratios
        full = bare._replace(outputs=infos)
        # A gradient function of the user's own takes full tensors: it may compute a norm.
        whole = kept or _OWN_GRADIENT in node.attr
        choices = () if whole else tuple(choices_of(full))
        draws = draws_numbers(op) or (calls_python(op) and not kept)
        self.steps.append(Step(op, inputs, tuple(added), full, choices, kept, draws, 0.0))

    def _ratios_of(self, op: tf.Operation, inputs: Sequence[int]) -> Tuple[int, ...]:
        """The ratios in which an op is cut; an op of no split, which reads variables, has those of its inputs."""
        own = self._ratios(op)
        if own is not None:
            return own
        for number in inputs:
            if number >= 0 and self.values[number].kind == VARIABLE:
                return self._ratios(self.values[number].tensor.op) or ()
            if number in self._ratios_of_values:
                return self._ratios_of_values[number]
        return ()

    def _identity(self, number: int) -> Hashable:
        """A key that two values share if they are always equal."""
        if number < 0 or self.values[number].kind != ENTRY:
            return number
        info = self.values[number].info
        if info.constant is None or info.constant.dtype == object:
            return number
        return (info.dtype, info.constant.shape, info.constant.tobytes(), info.batch)

    def _batches(self, op: OpInfo, inputs: Sequence[Value], kept: bool) -> List[Optional[Batch]]:
        """The position of the batch in each output."""
        places = [value.batch for value in inputs]
        if all(place is None for place in places):
            return [None] * len(op.outputs)
        if op.type == "Reshape":
            return [reshaped(places[0], self._rows_of(inputs[0]), op.inputs[0].shape, op.outputs[0].shape)]
        # An op treats a dimension in the same way however often it runs through the batch.
        infos = [info._replace(batch=place and place.dim) for info, place in zip(op.inputs, places)]
        asked = op._replace(inputs=tuple(infos))
        dims = None if kept else traced(asked) or self._traced_with_own(asked, inputs)
        if dims is None:
            dims = guessed(asked)
            self._unsure.update(
                len(self.values) + at for at, info in enumerate(op.outputs) if is_ambiguous(asked, info)
            )
        outer = max([place.outer for place in places if place is not None])
        return [None if dim is None else Batch(dim, outer) for dim in dims]

    def _traced_with_own(self, op: OpInfo, inputs: Sequence[Value]) -> Optional[List[Optional[int]]]:
        """`traced`, with a fixed tensor of one rank's batch size, such as tf.zeros([32, 8]), as the rank's rows."""
        places = [(value.info.shape, value.batch) for value in inputs if value.info.shape is not None]
        rows = {(shape[batch.dim] or 0) // self.ranks for shape, batch in places if batch is not None} - {0, 1}
        for position, value in enumerate(inputs):
            if self.number[value.tensor] not in self.fixed:
                continue
            for dim, size in enumerate(value.info.shape or ()):
                own = value.info._replace(batch=dim, shape=self._concatenated(value.info.shape, dim))
                taken = op.inputs[:position] + (own,) + op.inputs[position + 1 :]
                dims = traced(op._replace(inputs=taken)) if size in rows else None
                if dims is not None:
                    self._found_own[value.tensor] = dim
                    return dims
        return None

    def _rows_of(self, value: Value) -> Optional[int]:
        """The number of rows of one rank's batch, if the user's graph has it as a static size.

        What enters may have a dimension of batch * positions: then it is that of the data.
        """
        if value.batch is None:
            return None
        entry = self.values[value.rows_of]
        if entry.tensor not in self._data_rows:
            self._data_rows[entry.tensor] = rows_of_data(entry.tensor, self._whole)
        size, rows = entry.tensor.shape[entry.info.batch or 0].value, self._data_rows[entry.tensor]
        return rows if size is not None and rows and size % rows == 0 else size

    # ---- Times.

    def _set_seconds(self) -> None:
        ops = [FullOp(step.op.node_def, self._op_inputs(step), self._op_outputs(step)) for step in self.steps]
        seconds = step_seconds(ops, self._times)
        self.steps = [step._replace(seconds=one) for step, one in zip(self.steps, seconds)]

    def _op_inputs(self, step: Step) -> Tuple[OpTensor, ...]:
        found = []
        for tensor, number in zip(step.op.inputs, step.inputs):
            dtype = tensor.dtype.base_dtype
            if number < 0:
                found.append(OpTensor(TensorType(shape_of(tensor.shape), dtype)))
                continue
            value = self.values[number]
            full = TensorType(value.closed, value.info.dtype)
            if dtype == tf.resource and value.kind == VARIABLE:
                found.append(OpTensor(TensorType((), dtype), None, value.trained, full))
            else:
                found.append(OpTensor(_full_type(value), _whole_numbers(value), value.trained))
        return tuple(found)

    def _op_outputs(self, step: Step) -> Tuple[OpTensor, ...]:
        values = [self.values[number] for number in step.outputs]
        return tuple(OpTensor(_full_type(value), trained=value.trained) for value in values)


def _full_type(value: Value) -> TensorType:
    return TensorType(None if value.info.shape is None else value.closed, value.info.dtype)


def _whole_numbers(value: Value) -> Constant:
    constant = value.info.constant
    if constant is None or constant.ndim > 1 or value.info.dtype not in (tf.int32, tf.int64):
        return None
    return tuple(int(one) for one in constant.ravel())


def _in_order(region: Region) -> List[tf.Operation]:
    """The ops in the order of creation, but each after its inputs: an op of a branch may be older than its input."""
    ordered: List[tf.Operation] = []
    done: Set[tf.Operation] = set()
    inside = frozenset(region.ops)
    for op in region.ops:
        stack = [op]
        while stack:
            if stack[-1] in done:
                stack.pop()
                continue
            before = [source.op for source in stack[-1].inputs if source.op in inside and source.op not in done]
            before = [other for other in before if other.type not in op_types.NEXT_ITERATIONS]
            if before:
                stack += before
            else:
                done.add(stack[-1])
                ordered.append(stack.pop())
    return ordered


def num_bytes(value: Value) -> int:
    """Bytes of the full tensor."""
    dtype = value.info.dtype
    return 0 if dtype in (tf.resource, tf.variant) else int(np.prod(value.closed or (1,))) * max(dtype.size, 1)


# ---- Dtypes, constants and attributes.


def _has_gradient(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_complex


def _constant(tensor: tf.Tensor) -> Optional[np.ndarray]:
    """The value of a small constant, or of a small integer that is computed from constants."""
    elements = tensor.shape.num_elements()
    if elements is None or elements > _CONSTANT_ELEMENTS:
        return None
    if tensor.op.type == "Const" or tensor.dtype in (tf.int32, tf.int64):
        return tf_compat.static_value(tensor)
    return None


def _attrs(op: tf.Operation, node: tf.NodeDef) -> Dict[str, Any]:
    return {name: op.get_attr(name) for name in node.attr if not name.startswith("_")}
