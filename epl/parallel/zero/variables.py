"""Variables of the user that ZeRO shards: the variable object stays as it is, and its op represents the full variable.

    user      v [10, 8] --> matmul, Saver, assign, ...           whenever these are built
    runs      EPL_SPLIT/v [5, 8] --> all-gather --> matmul       Saver: a slice;  assign: the rows of this rank

The optimizer gets the shard at once. All other ops that use the user's op are redirected to the shard or to the
gathered full value before the first run. So the script may build gradients, evaluation and summaries of the model
before or after apply_gradients.
"""

from typing import Any, List, NamedTuple, NoReturn, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.colocation import phase_of
from epl.ir.graph import Graph
from epl.ir.taskgraph import Phase
from epl.parallel.sharded_variables.initial_values import restored_shard, shard_of, source_of
from epl.parallel.sharded_variables.late_users import refuse_late
from epl.parallel.sharded_variables.late_writes import write_whole
from epl.parallel.sharded_variables.variables import (
    Users,
    asks_whether_initialized,
    beside,
    initializer_of,
    is_choice,
    is_shard,
    load,
    make_shard,
    only_saves,
    wait_instead,
)
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.shard_owner import ZERO
from epl.parallel.sharding.sharded_variables import Shard
from epl.parallel.sharding.sparse_rows import refuse_rows_of_whole
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_SAVES_OF_V1 = frozenset(["Save", "SaveSlices"])
_LOOKUPS = frozenset(["ResourceGather", "ResourceGatherNd"])
_PLAIN_USES = op_types.READS | op_types.STATE_QUERIES | frozenset(
    ["Assign", "AssignAdd", "AssignAddVariableOp", "AssignSub", "AssignSubVariableOp", "AssignVariableOp", "SaveV2"]
)  # fmt: skip


class Use(NamedTuple):
    """An op that reads the value of a variable.

    Attributes:
      consumer, position: the op, and the index of the input.
      value: the tensor that it reads.
      part: the corresponding tensor of the shard.
    """

    consumer: tf.Operation
    position: int
    value: tf.Tensor
    part: tf.Tensor


class WeightPlaceholder(NamedTuple):
    """A placeholder for a full weight, until the pass that schedules its all-gathers replaces it (v2).

    Attributes:
      tensor: the placeholder; it has the full shape.
      variable: the variable.
    """

    tensor: tf.Tensor
    variable: "ZeroVariable"


def why_full(variable: Any) -> str:
    """Why a trained variable cannot be sharded; "" if it can be."""
    if not isinstance(variable, tf_compat.VARIABLE_CLASSES):
        return f"is a {type(variable).__name__}"
    if is_shard(variable) or variable._get_save_slice_info() is not None:
        return "is a part already"
    if variable.constraint is not None:
        return "has a constraint"
    if not variable.shape.is_fully_defined():
        return f"has the shape {variable.shape}"
    for op in variable.op.outputs[0].consumers():
        if op.type not in _PLAIN_USES | _LOOKUPS and not is_choice(op):
            return f"is taken by {op.name!r} ({op.type})"
    return ""


class _WholeObject:
    """Mixed into the class of a sharded variable object: TensorFlow's `load` feeds the initializer."""

    _epl_full_shape: Tuple[int, ...]

    def load(self, value: Any, session: Any = None) -> None:
        """As before: writes the value of the full variable."""
        load(self, self._epl_full_shape, value, session)


class ZeroVariable:
    """A variable of the user, and the shard that replaces it.

    Attributes:
      made: the shard.
      reads: pairs (value that the user's graph reads, value of the shard), after `redirect`.
    """

    def __init__(self, variable: Any, placement: Placement, resharder: Resharder, seed: int) -> None:
        """Makes the shard; `seed`: as in `shard_variable`."""
        self._variable = variable
        part = make_shard(variable, placement, resharder, seed)
        self._cut = part.full_shape, placement, resharder
        self._users = _Users(part.old, part.variable, *self._cut)
        self._seen: Set[tf.Operation] = set()
        self._initializer = initializer_of(variable)
        self._initial_value = self._initializer.inputs[1]
        self.made: Shard = part._replace(replaced=self._users.replaced)
        own: Any = type(variable)
        metaclass: Any = type(own)
        variable.__class__ = metaclass(own.__name__, (_WholeObject, own), {})
        variable._epl_full_shape = part.full_shape

    @property
    def reads(self) -> List[Tuple[tf.Tensor, tf.Tensor]]:
        """Pairs (value that the user's graph reads, value of the shard)."""
        return self._users.reads

    def redirect(self) -> List[Use]:
        """Redirects the ops that use the user's variable to the shard; returns the uses of its value, for the caller.

        Ops that wait for a replaced op are left to the caller (`wait_for_shards`), here and in `follow_late`.

        Raises:
          PlanError: an op uses the variable in a way that the shard does not support.
        """
        self._follow()
        return [
            Use(consumer, position, value, part)
            for value, part in self.reads
            for consumer in value.consumers()
            for position, tensor in enumerate(consumer.inputs)
            if tensor is value
        ]

    def writes(self) -> Set[tf.Operation]:
        """The writes to the shard that replace the script's writes to the variable, except the initializer."""
        own = initializer_of(self.made.variable)
        return {op for op in self._users.replaced.values() if op is not own and op.type in op_types.WRITES}

    @property
    def is_written_by_script(self) -> bool:
        """Whether the script assigns to it, other than from a checkpoint."""
        assigned = [op.inputs[1] for op in self.writes() if len(op.inputs) > 1]
        return any(source_of(value).op.type not in op_types.CHECKPOINT_READS for value in assigned)

    def updates(self) -> List[tf.Operation]:
        """The ops that update the shard, and the switches that pass it into the branches where that is done."""
        consumers = set(self.made.variable.op.outputs[0].consumers()) - {initializer_of(self.made.variable)}
        of_updates = op_types.WRITES | op_types.SWITCHES
        return [op for op in consumers if op.type in of_updates and phase_of(op) == Phase.APPLY]

    def placeholder(self) -> tf.Tensor:
        """A tensor of the full shape that is constant within a step, as the full value is: the shard, padded."""
        with beside(self.made.old.op), tf.device(self.made.variable.device):
            part = self.made.variable.read_value()
            missing = [[0, full - own] for full, own in zip(self.made.full_shape, part.shape.as_list())]
            return tf.pad(part, missing, name="placeholder")

    def lookups(self) -> List[tf.Operation]:
        """The embedding lookups in the user's variable; for `give_rows`."""
        return [op for op in self._users.others if op.type in _LOOKUPS]

    def give_rows(self, lookup: tf.Operation, full: tf.Tensor) -> None:
        """Replaces a lookup in the user's variable by a gather of rows of the full value."""
        part = self.made.variable.op
        with beside(lookup), part.graph.colocate_with(part, ignore_existing=True):  # as a lookup in a variable is
            if lookup.type == "ResourceGather":
                rows = tf.gather(full, lookup.inputs[1], batch_dims=lookup.get_attr("batch_dims"))
            else:
                rows = tf.gather_nd(full, lookup.inputs[1])
        tf_compat.add_control_inputs(rows.op, lookup.control_inputs)
        self._users.use(lookup, rows.op)
        wait_instead({lookup: rows.op})

    def follow_late(self) -> None:
        """Redirects Savers and the like that were built after the first run.

        Raises:
          PlanError: another new op uses the variable.
        """
        replaced, taken = dict(self._users.replaced), self._taken()
        self._users.is_late = True
        self._follow()
        for before, after in replaced.items():
            if before.type == "VariableShape" or (before.outputs and asks_whether_initialized(before.outputs[0])):
                self._users.use(before, after)
        for consumer in [consumer for value in taken for consumer in value.consumers()]:
            if consumer not in self._seen and not only_saves(consumer):
                refuse_late(consumer, self.made.name, ZERO)

    def _taken(self) -> List[tf.Tensor]:
        """The replaced tensors that the user's ops read, or may read later."""
        return [value for value, _ in self.reads] + [out for op in self._users.replaced for out in op.outputs]

    def _follow(self) -> None:
        initializers = {self._initializer}
        if not self._users.is_late:
            initializers.add(initializer_of(self._variable))
            self._follow_initial_value()
        for one in initializers:
            self._users.replaced[one] = initializer_of(self.made.variable)
        done = self._seen | initializers
        consumers = self.made.old.consumers()
        self._users.redirect(done)
        if not self._users.is_late:
            self._seen.update(consumer for value in self._taken() for consumer in value.consumers())
        for op in self._users.others:
            if op in done or (is_choice(op) and not self._users.is_late):
                continue
            if op.type in _SAVES_OF_V1:
                raise PlanError(
                    f"{op.name!r} writes {self.made.name!r}, of which each device has a part (zero.level), in checkpoints "
                    "of the old format, which EPL cannot make of parts. Leave out write_version of the tf.train.Saver: "
                    "its default, tf.train.SaverDef.V2, can be restored by every TensorFlow since 0.12."
                )
            if op.type not in _LOOKUPS and not is_choice(op):
                raise PlanError(
                    "{!r} ({}) takes {!r}, of which each device has a part (zero.level), as something else than its "
                    "value. Read the variable outside of the loop, branch or function, before minimize or "
                    "apply_gradients, or set zero.level to ''.".format(op.name, op.type, self.made.name)
                )
            if self._users.is_late:
                refuse_late(op, self.made.name, ZERO)
        self._seen.update(consumers)  # after the loop: a refused op is refused in the next run, too

    def _follow_initial_value(self) -> None:
        """Gives the shard the initial value that the variable got since it was cut (tf.train.init_from_checkpoint)."""
        value = initializer_of(self._variable).inputs[1]
        if value is not self._initial_value:
            self._initial_value = value
            with beside(self.made.old.op):
                tf_compat.set_input(initializer_of(self.made.variable), 1, shard_of(value, *self._cut))


class _Users(Users):
    """As for a split, except that after the first run new ops may write whole values, save and restore, no more."""

    is_late = False

    def _read(self, op: tf.Operation) -> None:
        if self.is_late:
            for consumer in op.outputs[0].consumers():
                refuse_late(consumer, self._old.op.name, ZERO)
            written = [self.replaced[before] for before in op.control_inputs if before in self.replaced]
            if written:  # the value of an assignment
                self.replaced[op] = written[-1]
                return
        super()._read(op)

    def _refuse_write(self, op: tf.Operation) -> NoReturn:
        refuse_rows_of_whole(op, self._old.op.name)

    def _write(self, op: tf.Operation) -> None:
        if not self.is_late or restored_shard(op.inputs[1], *self._cut) is not None:
            super()._write(op)
            return
        graph = Graph.of(op.graph)
        if op.type not in op_types.PLAIN_ASSIGNS or graph is None:
            refuse_late(op, self._old.op.name, ZERO)
            return
        with beside(op), tf.control_dependencies([self.replaced.get(before, before) for before in op.control_inputs]):
            written = write_whole(graph, self._new.op.name, op.inputs[1]).op
        if op.outputs:
            self.use(op, written)
        self.replaced[op] = written
