"""Builds the program of one rank, as the search has decided, into the default graph.

    user's graph      x ──▶ MatMul ──▶ Relu ──▶ MatMul ──▶ ...        variables w1, w2
    one rank          x ──▶ enter ──▶ MatMul ──▶ Relu ──▶ MatMul ──▶ all-reduce ──▶ ...     shards of w1, w2

The ops of the user's graph stay but are not needed any more, except for loops and branches, which take the new tensors.
The caller creates the shards of variables, and redirects ops outside of the split to the new tensors.
"""

from typing import Callable, ContextManager, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import copy_op
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.parallel.sharding.placements import PARTIAL, REPLICATED, Placement
from epl.parallel.sharding.resharding import Resharder, is_uneven, with_gradient
from epl.parallel.sharding.rules.emission import RankEmission
from epl.parallel.sharding.rules.lookup import look_up
from epl.parallel.sharding.rules.registry import TensorInfo
from epl.parallel.split.program import ENTRY, RESULT, VARIABLE, Program, Step
from epl.parallel.split.region import calls_python
from epl.parallel.split.resharding_paths import PLAIN, Form, Resharding, route, wanted_form
from epl.parallel.split.search import Decision, native_placement, output_form, placements_of
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

# (op of a variable, its placement) -> the value of this rank's shard.
MakeVariable = Callable[[tf.Operation, Placement], tf.Tensor]


class Lowering:
    """The program of one rank.

    It is one class because building an op, resharding its inputs and counting the rows of batches all read and extend
    the same table of the tensors built so far.

    Attributes:
      tensors: tensor of the user's graph -> the tensor that replaces it on this rank, and its placement.
    """

    def __init__(
        self,
        program: Program,
        decision: Decision,
        resharder: Resharder,
        variable: MakeVariable,
        prefix: str = "",
        device: Optional[str] = None,
        entry: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
        stage_of: Callable[[tf.Operation], int] = lambda op: 0,
    ) -> None:
        """Builds the program.

        Args:
          program: the unsplit program of the region.
          decision: the choice for each of its steps.
          resharder: of the rank.
          variable: makes the value of the rank's shard of a variable.
          prefix: name scope that ends with a slash; the scopes of the user's ops are repeated under it.
          device: of the new ops.
          entry: maps a tensor from outside to the one that the program takes; may be called again for the same.
          stage_of: the stage of an op of the user.

        Raises:
          PlanError: an op cannot be built for the batches of all ranks.
        """
        self._program = program
        self._resharder = resharder
        self._variable = variable
        self._prefix = prefix
        self._device = device
        self._entry = entry
        self._homes = _homes(program, stage_of)
        self._there: Dict[int, Dict[Form, tf.Tensor]] = {}
        self._rows: Dict[int, tf.Tensor] = {}
        self._controls: Dict[tf.Operation, List[tf.Operation]] = {}
        with tf.control_dependencies(None):
            for step, choice in zip(program.steps, decision.choices):
                self._build(step, choice)
            self._set_predicates()
        self.tensors: Dict[tf.Tensor, Tuple[tf.Tensor, Placement]] = {}
        for user_tensor, number in program.number.items():
            if number in self._there:
                native, tensor = next(iter(self._there[number].items()))
                self.tensors[user_tensor] = (tensor, native.placement)

    def whole(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor of the user's graph in the placement REPLICATED; a tensor outside of the split as it is."""
        return self._later(tensor, PLAIN) if tensor in self._program.number else tensor

    def local_rows(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor of the user's graph with the rows of this rank's batch; REPLICATED if it has no batch."""
        if tensor not in self._program.number:
            return tensor
        number = self._program.number[tensor]
        self._program.outputs.add(number)
        return self._later(tensor, output_form(self._program, number) or PLAIN)

    def _later(self, tensor: tf.Tensor, wanted: Form) -> tf.Tensor:
        with tf.control_dependencies(None):
            return self._resharded(self._program.number[tensor], wanted)

    # ---- Resharding.

    def _take(self, number: int, placement: Placement, of_part: bool) -> tf.Tensor:
        value = self._program.values[number]
        if number not in self._there:
            native = native_placement(self._program, number, placement)
            self._there[number] = {Form(native, False): self._source(number, native)}
        return self._resharded(number, wanted_form(value, placement, of_part))

    def _source(self, number: int, placement: Placement) -> tf.Tensor:
        value = self._program.values[number]
        if value.kind == ENTRY:
            with self._at(number):
                tensor = value.tensor if self._entry is None else self._entry(value.tensor)
                if value.tensor not in self._program.growth:
                    return tensor
                batches_before = self._resharder.own(range(self._program.ranks), tensor.dtype)
                return tensor + self._program.growth[value.tensor] * batches_before
        with self._scopes(value.tensor.op):
            return self._resharder.hide_size(self._variable(value.tensor.op, placement), placement)

    def _resharded(self, number: int, wanted: Form) -> tf.Tensor:
        value, forms = self._program.values[number], self._there[number]
        path = route(value, self._program.ranks, tuple(forms), wanted)
        if path is None:
            raise ValueError(f"{value.tensor.name} cannot be had as {wanted.placement}")
        for resharding in path:
            with self._scopes(value.tensor.op), self._at(number):
                forms[resharding.target] = self._reshard(number, forms[resharding.source], resharding)
        return forms[wanted]

    def _reshard(self, number: int, tensor: tf.Tensor, resharding: Resharding) -> tf.Tensor:
        resharder, source, target = self._resharder, resharding.source.placement, resharding.target.placement
        if resharding.kind == "enter":
            return resharder.enter(tensor)
        if resharding.kind == "sum":
            return resharder.sum_partial(tensor)
        if resharding.kind == "gather":
            return resharder.gather(tensor, source)
        if resharding.kind == "gather entered":
            return resharder.gather_entered(tensor, source)
        if resharding.kind == "cut":
            return resharder.cut(tensor, target, self._rows_along(number, tensor, target))
        if resharding.kind == "scatter":
            return resharder.reduce_scatter(tensor, target, self._rows_along(number, tensor, target))
        batch = target if target.sizes is None else source
        return resharder.move(tensor, source, target, self._rows_along(number, tensor, batch, batch is source))

    # ---- Rows of the batch.

    def _rows_of(self, entry: int) -> tf.Tensor:
        """The number of rows of an entry on each rank, an int64 vector."""
        if entry not in self._rows:
            value = self._program.values[entry]
            batch = value.info.batch or 0
            size = value.tensor.shape[batch].value
            with self._scopes(value.tensor.op), self._at(entry):
                if size is None:
                    self._rows[entry] = self._resharder.row_counts(value.tensor, batch)
                else:
                    self._rows[entry] = tf.constant([size] * self._program.ranks, tf.int64)
        return self._rows[entry]

    def _rows_along(
        self, number: int, tensor: tf.Tensor, placement: Placement, is_part: bool = False
    ) -> Optional[tf.Tensor]:
        """The size of the sharded batch dimension on each rank; None if the placement has sizes.

        The dimension may be a multiple of the batch, such as batch * positions after a reshape, or a part of it.
        """
        if placement.sizes is not None:
            return None
        rows = self._rows_of(self._program.values[number].rows_of)
        size = tf.shape(tensor, out_type=tf.int64)[placement.dim]
        if is_part:
            own = rows[self._resharder.own(range(self._program.ranks), tf.int32)]
        else:
            own = self._resharder.total_rows(rows)
        return rows * size // tf.maximum(own, 1)

    # ---- Ops.

    def _build(self, step: Step, choice: int) -> None:
        if step.kept:
            self._keep(step)
            return
        into, out = placements_of(step, choice)
        inputs = [self._take(number, placement, choice >= 0) for number, placement in zip(step.inputs, into)]
        before = [self._program.equal.first(op) for op in step.op.control_inputs]
        controls = [new for op in before for new in self._controls.get(op, [op])]
        try:
            with self._scopes(step.op), tf.control_dependencies(controls):
                outputs = self._emit_full(step, inputs) if choice < 0 else self._emit_part(step, choice, inputs)
            for output, info, placement in zip(outputs, step.info.outputs, out):
                output.set_shape(_local_shape(info.shape, info.batch, placement))
        except (ValueError, TypeError) as error:
            raise PlanError(
                'split: {} "{}" ({}) cannot be built on {} devices: {}. If the size of one device\'s batch is written '
                "into the model as a number, use tf.shape() or -1 for it. If a placeholder before it holds no rows of "
                "the batch, call epl.keep_whole(placeholder) before gradients are taken.".format(
                    step.op.type, step.op.name, user_line(step.op), self._program.ranks, str(error).split("\n")[0]
                )
            ) from error
        for number, output, placement in zip(step.outputs, outputs, out):
            self._there[number] = {Form(placement, False): output}
            wanted = output_form(self._program, number)
            if wanted is not None:
                self._resharded(number, wanted)

    def _emit_part(self, step: Step, choice: int, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        entries = [self._program.values[number].rows_of for number in step.inputs + step.outputs]
        into, out = placements_of(step, choice)
        over_rows = any(placement.is_shard and placement.sizes is None for placement in into)
        emission = RankEmission(step.op, self._resharder, lambda: self._rows_of(max(entries)), over_rows)
        emit = step.choices[choice].emit
        outputs = emission.same(inputs) if emit is None else emit(emission, step.info, inputs)
        if over_rows:
            outputs = [self._resharder.partial_sum(o) if to == PARTIAL else o for o, to in zip(outputs, out)]
        self._controls[step.op] = [output.op for output in outputs]
        return outputs

    def _emit_full(self, step: Step, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        if step.op.type in ("ResourceGather", "ResourceGatherNd"):  # its input is the value of the variable
            outputs = look_up(step.info, inputs)
        elif step.op.type == "Reshape" and None not in self._target(step):
            outputs = [tf.reshape(inputs[0], self._target(step))]
        else:
            copied = copy_op(step.op, inputs, {})
            self._controls[step.op] = [copied]
            outputs = list(copied.outputs)
        if step.draws:
            outputs = [self._drawn(step, *one) for one in zip(outputs, step.info.outputs)]
        self._controls.setdefault(step.op, [output.op for output in outputs])
        return outputs

    def _drawn(self, step: Step, output: tf.Tensor, info: TensorInfo) -> tf.Tensor:
        """The numbers that rank 0 has drawn. A Python function keeps its gradient: that of the rank's own call."""
        drawn = self._resharder.broadcast(output)
        if not calls_python(step.op):
            return drawn
        drawn = with_gradient(output, drawn, lambda gradient: gradient)
        return drawn if info.shape is None else tf.ensure_shape(drawn, [None] * len(info.shape))

    def _target(self, step: Step) -> List[Optional[int]]:
        """The target shape of a reshape for the batches of all ranks; [None] without a batch or if it is not known."""
        info, batch = step.info.outputs[0], self._program.values[step.outputs[0]].batch
        if batch is None or info.shape is None:
            return [None]
        return [-1 if dim == batch.dim else size for dim, size in enumerate(info.shape)]

    def _keep(self, step: Step) -> None:
        """Keeps an op of a loop or branch, and lets it take the new tensors in full."""
        if step.draws and not step.info.attrs["seed"] and not step.info.attrs["seed2"]:
            raise PlanError(
                'split: {} "{}" ({}) draws random numbers in a loop or a branch, which is computed on each of the {} '
                "devices and would differ. Give it a seed (tf.set_random_seed), or draw outside of the loop.".format(
                    step.op.type, step.op.name, user_line(step.op), self._program.ranks
                )
            )
        for position, number in enumerate(step.inputs):
            value = self._program.values[number] if number >= 0 else None
            if value is None or value.kind == VARIABLE or step.op.inputs[position] not in self._program.number:
                continue  # or it takes the new tensor already
            if value.kind == RESULT and value.tensor is self._there[number].get(PLAIN):
                continue  # the output of an op that is kept as well
            tensor = self._take(number, REPLICATED, False)
            if tensor is step.op.inputs[position]:
                continue
            try:
                tf_compat.set_input(step.op, position, tensor)
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                raise PlanError(
                    'split: the loop or branch with "{}" ({}) takes {} with the batch of all {} devices, which does '
                    "not fit: {}. Leave the batch dimension open (None).".format(
                        step.op.name, user_line(step.op), value.tensor.name, self._program.ranks, error
                    )
                ) from error
        for number in step.outputs:
            self._there[number] = {PLAIN: self._program.values[number].tensor}

    def _set_predicates(self) -> None:
        """Replaces the predicates in control-flow contexts, from which gradients of branches take them."""
        for step in self._program.steps:
            for context, predicate in tf_compat.predicates_of(step.op) if step.kept else ():
                if predicate in self._program.number:
                    tf_compat.set_predicate(context, self._take(self._program.number[predicate], REPLICATED, False))

    def _scopes(self, op: tf.Operation) -> "_Scopes":
        scope = self._prefix + "".join(part + "/" for part in op.name.split("/")[:-1])
        return _Scopes(scope, self._device, op)

    def _at(self, number: int) -> ContextManager[None]:
        """Ops created inside belong to the TaskGraph of a value; for an entry, of the first op that takes it."""
        op = self._homes.get(number, self._program.values[number].tensor.op)
        return in_taskgraph(op.graph, taskgraph_index(op))


def _homes(program: Program, stage_of: Callable[[tf.Operation], int]) -> Dict[int, tf.Operation]:
    """Maps each entry to the first op that takes it, in the order of the stages."""
    homes: Dict[int, tf.Operation] = {}
    for step in sorted(program.steps, key=lambda step: stage_of(step.op)):
        for number in step.inputs:
            if number >= 0 and program.values[number].kind == ENTRY:
                homes.setdefault(number, step.op)
    return homes


class _Scopes:
    """The name scope, the device and the TaskGraph of the ops that are built."""

    def __init__(self, scope: str, device: Optional[str], op: tf.Operation) -> None:
        self._scopes = [
            tf.name_scope(scope or None),
            tf.device(None),
            tf.device(device),
            in_taskgraph(op.graph, taskgraph_index(op)),
        ]

    def __enter__(self) -> None:
        for scope in self._scopes:
            scope.__enter__()

    def __exit__(self, *error: object) -> None:
        for scope in reversed(self._scopes):
            scope.__exit__(*error)


def _local_shape(
    shape: Optional[Tuple[Optional[int], ...]], batch: Optional[int], placement: Placement
) -> tf.TensorShape:
    """The static shape of a shard, as far as it is the same on every rank."""
    if shape is None:
        return tf.TensorShape(None)
    sizes = list(shape)
    if placement.is_shard:
        sizes[placement.dim] = None if placement.sizes is None or is_uneven(placement) else placement.sizes[0]
    return tf.TensorShape(sizes)
