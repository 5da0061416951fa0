"""Variables of a user that ZeRO holds in parts: the object stays what it was, and its op becomes a name for the whole.

    user      v [10, 8] --> matmul, Saver, assign, ...           whenever these are built
    runs      EPL_SPLIT/v [5, 8] --> all-gather --> matmul       Saver: a slice;  assign: the rows of this rank

The optimizer alone gets the part. Whatever else takes the user's op is given the part or the gathered whole before the
graph runs first, and so the model may be differentiated, evaluated and shown before and behind apply_gradients.
"""

from typing import Any, List, NamedTuple, NoReturn, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.colocation import phase_of
from epl.ir.taskgraph import Phase
from epl.parallel.sharded_variables.initial_values import part_of, restored_part, source_of
from epl.parallel.sharded_variables.variables import (
    Users,
    asks_whether_initialized,
    beside,
    initializer_of,
    is_choice,
    is_shard,
    make_part,
    only_saves,
    refuse_load,
    wait_instead,
)
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.sharded_variables import Shard
from epl.parallel.sharding.sparse_rows import refuse_rows_of_whole
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_LOOKUPS = frozenset(["ResourceGather", "ResourceGatherNd"])
_PLAIN_USES = op_types.READS | frozenset(
    ["Assign", "AssignAdd", "AssignAddVariableOp", "AssignSub", "AssignSubVariableOp", "AssignVariableOp"]
    + ["IsVariableInitialized", "SaveV2", "VarIsInitializedOp", "VariableShape"]
)


class Use(NamedTuple):
    """Where the value of a variable is taken.

    Attributes:
      consumer, position: the op, and which of its inputs.
      value: what it takes.
      part: the same of the part.
    """

    consumer: tf.Operation
    position: int
    value: tf.Tensor
    part: tf.Tensor


class WeightPlaceholder(NamedTuple):
    """What is taken in place of a whole until it is known when that is gathered (v2).

    Attributes:
      tensor: has the shape of the whole.
      variable: the variable.
    """

    tensor: tf.Tensor
    variable: "ZeroVariable"


def why_whole(variable: Any) -> str:
    """Why a trained variable cannot be cut; "" if it can be."""
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
    """What a variable object of the user can no longer do."""

    _epl_cut: Tuple[int, Tuple[int, ...]]

    def load(self, value: Any, session: Any = None) -> None:
        """Refused: it would write the part of one rank alone."""
        refuse_load(self.op.name, *self._epl_cut)  # type: ignore[attr-defined]


class ZeroVariable:
    """A variable of the user, and the part that stands for it.

    Attributes:
      made: the part.
      reads: (value that was read, value of the part), once `redirect` was called.
    """

    def __init__(self, variable: Any, placement: Placement, resharder: Resharder, seed: int) -> None:
        """Makes the part; `seed`: as in `shard_variable`."""
        self._variable = variable
        part = make_part(variable, placement, resharder, seed)
        self._cut = part.full_shape, placement, resharder
        self._users = _Users(part.old, part.variable, *self._cut)
        self._seen: Set[tf.Operation] = set()
        self._initializer = initializer_of(variable)
        self._initial_value = self._initializer.inputs[1]
        self.made: Shard = part._replace(replaced=self._users.replaced)
        own: Any = type(variable)
        metaclass: Any = type(own)
        variable.__class__ = metaclass(own.__name__, (_WholeObject, own), {})
        variable._epl_cut = (resharder.ranks, part.full_shape)

    @property
    def reads(self) -> List[Tuple[tf.Tensor, tf.Tensor]]:
        """(Value that was read, value of the part)."""
        return self._users.reads

    def redirect(self) -> List[Use]:
        """Gives those who take the user's variable the part; returns who takes its value, which is left to the caller.

        Raises:
          PlanError: an op takes the variable in a way that the part cannot stand for.
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
        """What writes into the part where the script wrote into the variable, but for its initial value."""
        own = initializer_of(self.made.variable)
        return {op for op in self._users.replaced.values() if op is not own and op.type in op_types.WRITES}

    @property
    def is_written_by_script(self) -> bool:
        """Whether there are assignments to it, but for those that read a checkpoint."""
        assigned = [op.inputs[1] for op in self.writes() if len(op.inputs) > 1]
        return any(source_of(value).op.type not in op_types.CHECKPOINT_READS for value in assigned)

    def updates(self) -> List[tf.Operation]:
        """What takes the part itself to update it, or leads it to where that is done."""
        consumers = set(self.made.variable.op.outputs[0].consumers()) - {initializer_of(self.made.variable)}
        of_updates = op_types.WRITES | op_types.SWITCHES
        return [op for op in consumers if op.type in of_updates and phase_of(op) == Phase.APPLY]

    def placeholder(self) -> tf.Tensor:
        """A tensor of the shape of the whole, and as constant in a step: the part, filled up."""
        with beside(self.made.old.op), tf.device(self.made.variable.device):
            part = self.made.variable.read_value()
            missing = [[0, whole - own] for whole, own in zip(self.made.full_shape, part.shape.as_list())]
            return tf.pad(part, missing, name="placeholder")

    def lookups(self) -> List[tf.Operation]:
        """Ops that take rows out of the user's variable; for `give_rows`."""
        return [op for op in self._users.others if op.type in _LOOKUPS]

    def give_rows(self, lookup: tf.Operation, whole: tf.Tensor) -> None:
        """Takes the rows out of the gathered whole."""
        part = self.made.variable.op
        with beside(lookup), part.graph.colocate_with(part, ignore_existing=True):  # as a lookup in a variable is
            if lookup.type == "ResourceGather":
                rows = tf.gather(whole, lookup.inputs[1], batch_dims=lookup.get_attr("batch_dims"))
            else:
                rows = tf.gather_nd(whole, lookup.inputs[1])
        tf_compat.add_control_inputs(rows.op, lookup.control_inputs)
        self._users.use(lookup, rows.op)

    def follow_late(self) -> None:
        """Sees to Savers and the like that were built behind the first run.

        Raises:
          PlanError: another op takes the variable.
        """
        replaced, taken = dict(self._users.replaced), self._taken()
        self._users.is_late = True
        self._follow()
        for before, after in replaced.items():
            if before.type == "VariableShape" or (before.outputs and asks_whether_initialized(before.outputs[0])):
                self._users.use(before, after)
            wait_instead(before, after)
        for consumer in [consumer for value in taken for consumer in value.consumers()]:
            if consumer not in self._seen and not only_saves(consumer):
                refuse_late(consumer, self.made.name)

    def _taken(self) -> List[tf.Tensor]:
        """What the user's ops took, or may take yet, that others stand for."""
        return [value for value, _ in self.reads] + [out for op in self._users.replaced for out in op.outputs]

    def _follow(self) -> None:
        initializers = {self._initializer}
        if not self._users.is_late:
            initializers.add(initializer_of(self._variable))
            self._follow_initial_value()
        for one in initializers:
            self._users.replace(one, initializer_of(self.made.variable))
        done = self._seen | initializers
        consumers = self.made.old.consumers()
        self._users.redirect(done)
        if not self._users.is_late:
            self._seen.update(consumer for value in self._taken() for consumer in value.consumers())
        for op in self._users.others:
            if op in done or (is_choice(op) and not self._users.is_late):
                continue
            if op.type not in _LOOKUPS and not is_choice(op):
                raise PlanError(
                    "{!r} ({}) takes {!r}, of which each device has a part (zero.level), as something else than its "
                    "value. Read the variable outside of the loop, branch or function, before minimize or "
                    "apply_gradients, or set zero.level to ''.".format(op.name, op.type, self.made.name)
                )
            if self._users.is_late:
                refuse_late(op, self.made.name)
        self._seen.update(consumers)  # what is refused is refused in the next run, too

    def _follow_initial_value(self) -> None:
        """Lets the part begin with what the variable was given since it was cut (tf.train.init_from_checkpoint)."""
        value = initializer_of(self._variable).inputs[1]
        if value is not self._initial_value:
            self._initial_value = value
            with beside(self.made.old.op):
                tf_compat.set_input(initializer_of(self.made.variable), 1, part_of(value, *self._cut))


class _Users(Users):
    """As for a split; behind the first run only what writes and reads checkpoints is new."""

    is_late = False

    def _read(self, op: tf.Operation) -> None:
        if self.is_late:
            for consumer in op.outputs[0].consumers():
                refuse_late(consumer, self._old.op.name)
        super()._read(op)

    def _refuse_write(self, op: tf.Operation) -> NoReturn:
        refuse_rows_of_whole(op, self._old.op.name)

    def _write(self, op: tf.Operation) -> None:
        if self.is_late and restored_part(op.inputs[1], *self._cut) is None:
            refuse_late(op, self._old.op.name)
        super()._write(op)


def refuse_late(op: tf.Operation, variable: str) -> None:
    """Raises PlanError for an op that was built too late to take a variable."""
    raise PlanError(
        "{!r} ({}) takes {!r} and was built behind the first Session.run. With zero.level each device has a part of "
        "it: build what computes with it before the first run, or fetch the variable.".format(
            op.name, op.type, variable
        )
    )
