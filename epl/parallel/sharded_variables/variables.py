"""Variables of a split: the user's variable object becomes the shard that this rank holds.

    before   v: "fc/kernel" [10, 8]                  every op and list of the user holds v
    after    v: "EPL_SPLIT/fc/kernel" [10, 4]        the same object, `v.name` is still "fc/kernel:0"

TensorFlow can neither delete an op of a graph nor rename it, so the shard is an op of another name. `SaveSliceInfo`
corrects what TensorFlow derives from that name (the scope of a slot, a key of a checkpoint): the shard is saved as a
slice of the full variable, under the name of the full variable.

This file has the new variable, the object, and the ops that used the full variable; `initial_values.py` has initial
values, `slots.py` slots, `savers.py` checkpoints. The lowering reads the shard, and replaces the ops in `Shard.reads`
and `Shard.users`.
"""

import contextlib
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import NOT_COPIED
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.graph import Graph
from epl.parallel.sharded_variables import initial_values
from epl.parallel.sharded_variables.late_writes import write_whole
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.sharded_variables import Shard, ShardedVariables, objects_of
from epl.utils import tf_compat
from epl.utils.errors import PlanError

SCOPE = "EPL_SPLIT"  # the name scope of shards, for people who read the graph
ASKED = "_epl_asked"  # an attribute of slots: the name by which an optimizer asked for it

INITIALIZED = frozenset(["IsVariableInitialized", "VarIsInitializedOp"])
_SIMPLE_WRITES = op_types.PLAIN_ASSIGNS | frozenset(
    ["AssignAdd", "AssignSub", "AssignAddVariableOp", "AssignSubVariableOp"]
)


class _ShardObject:
    """The methods of a user's variable object that differ after it has become a shard."""

    _epl_full: Tuple[str, Tuple[int, ...], Placement, Resharder]

    @property
    def name(self) -> str:
        """The name of the full variable."""
        return self._epl_full[0] + ":0"

    @property
    def _shared_name(self) -> str:
        """The name of the op: slots are asked for by it, which TensorFlow 1.15 does by itself."""
        return self.op.name  # type: ignore[attr-defined]

    def assign(
        self, value: Any, use_locking: Optional[bool] = None, name: Optional[str] = None, read_value: bool = True
    ) -> Any:
        """As before; a value of the full shape is cut to the shards."""
        variable: Any = self
        graph = Graph.of(variable.graph)
        if graph is not None and graph.rewritten is not None:
            with tf.name_scope(name or "Assign"):
                written = write_whole(graph, variable.op.name, value)
            return written if read_value else written.op
        return super().assign(self._part(value), use_locking, name, read_value)  # type: ignore[misc]

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """As before; a value of the full shape is cut to this rank's shard."""
        return super().assign_add(self._part(delta), *args, **kwargs)  # type: ignore[misc]

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """As before; a value of the full shape is cut to this rank's shard."""
        return super().assign_sub(self._part(delta), *args, **kwargs)  # type: ignore[misc]

    def load(self, value: Any, session: Any = None) -> None:
        """As before: writes the value of the full variable."""
        load(self, self._epl_full[1], value, session)

    def _part(self, value: Any) -> tf.Tensor:
        _, full_shape, placement, resharder = self._epl_full
        tensor = tf.convert_to_tensor(value, self.dtype.base_dtype)  # type: ignore[attr-defined]
        if not tensor.shape.is_fully_defined() or tuple(tensor.shape.as_list()) != full_shape:
            return tensor
        if tuple(self.shape.as_list()) == full_shape:  # type: ignore[attr-defined]  # this rank may have all of it
            return _cut_if_full(tensor, full_shape, placement, resharder)
        return initial_values.cut(tensor, full_shape, placement, resharder)


def assigned(
    original: Callable[..., Any],
    ref: Any,
    value: Any,
    validate_shape: Optional[bool] = None,
    use_locking: Optional[bool] = None,
    name: Optional[str] = None,
) -> Any:
    """`tf.assign`: a shard gets its part of a value of the full shape, as by the method of the variable."""
    if isinstance(ref, _ShardObject):
        return ref.assign(value, use_locking, name)
    return original(ref, value, validate_shape, use_locking, name)


def _cut_if_full(
    value: tf.Tensor, full_shape: Tuple[int, ...], placement: Placement, resharder: Resharder
) -> tf.Tensor:
    """`initial_values.cut_if_full` by ops that are EPL's: the tracing of updates would take the value for a full one.

    Nothing redirects ops of EPL that wait for an op of the split, so these wait for none but their inputs.
    """
    graph = Graph.of(value.graph, may_create=True)
    assert graph is not None
    last = tf_compat.last_op_id(value.graph)
    with graph.building_own_ops():
        part = initial_values.cut_if_full(value, full_shape, placement, resharder)
    for op in tf_compat.ops_since(value.graph, last):
        if tf_compat.control_flow_context_of(op) is None:
            tf_compat.remove_control_inputs(op)
    return part


def shard_variable(variable: Any, placement: Placement, resharder: Resharder, seed: Optional[int] = None) -> Shard:
    """Makes `variable` the shard of this rank.

    Args:
      variable: a tf.Variable of the default graph, of either kind; the object keeps its identity.
      placement: a shard with sizes.
      resharder: of this rank; it keeps the constants that differ between ranks.
      seed: a number that all processes have, where the group has several: an initial value that is drawn without a seed
        would differ between them.

    Returns:
      The shard, with the ops that it replaced and those that are left to the caller.

    Raises:
      PlanError: the variable, or an op that was built from it, cannot work with a shard.
    """
    made = make_shard(variable, placement, resharder, seed)
    old, new = made.old, made.variable
    initializer = initializer_of(variable)
    read = variable.value() if tf_compat.is_reference(old.dtype) else None
    users = Users(old, new, made.full_shape, placement, resharder)
    if read is not None:
        users.reads.append((read, new.value()))
    users.replaced[initializer] = new.initializer
    users.redirect({initializer} | ({read.op} if read is not None else set()))
    wait_instead(users.replaced)
    for same in [variable] + objects_of(variable.op):
        _rebind(same, new)
    return made._replace(
        variable=variable, reads=tuple(users.reads), users=tuple(users.others), replaced=users.replaced
    )


def initializer_of(variable: Any) -> tf.Operation:
    """The op that gives a variable its initial value."""
    initializer = variable.initializer
    return initializer.op if isinstance(initializer, tf.Tensor) else initializer


def make_shard(variable: Any, placement: Placement, resharder: Resharder, seed: Optional[int] = None) -> Shard:
    """A new variable that is this rank's shard; `variable` and the ops that use it stay as they are.

    Args, Raises: see `shard_variable`.

    Returns:
      The shard, without reads, users and replaced ops yet.
    """
    full_shape = _checked_shape(variable, placement)
    old, name = variable.op.outputs[0], variable.op.name
    if seed is not None:
        initial_values.share_seed(variable.initial_value, seed)
    with beside(variable.op):
        new, seeds = _shard(variable, full_shape, placement, resharder)
    mark_shard(new, name, full_shape, placement, resharder)
    shapes = initial_values.local_shapes(full_shape, placement)
    return Shard(name, new, placement, full_shape, old, (), (), {}, {new.op.name: shapes}, seeds)


def _checked_shape(variable: Any, placement: Placement) -> Tuple[int, ...]:
    """The shape of the full variable; refuses a variable that cannot be split."""
    if not isinstance(variable, tf_compat.VARIABLE_CLASSES):
        raise PlanError(
            "{!r} is a {}, which EPL cannot split. Make it with tf.get_variable or tf.Variable.".format(
                variable.name, type(variable).__name__
            )
        )
    if is_shard(variable):
        raise PlanError(f"{variable.name!r} is split already: one tf.gradients call has lowered it.")
    if variable._get_save_slice_info() is not None:
        raise PlanError(
            "{!r} is a part of a variable that a partitioner has cut, and epl.split would cut it again. Remove the "
            "partitioner from its variable scope.".format(variable.name)
        )
    if variable.constraint is not None:
        raise PlanError(
            "{!r} has a constraint, a function of the whole variable, and the variable is split. Remove the "
            "constraint, or keep the layer out of epl.split.".format(variable.name)
        )
    if not variable.shape.is_fully_defined():
        raise PlanError(
            f"{variable.name!r} has the shape {variable.shape}: only a variable of known shape can be split."
        )
    shape = tuple(variable.shape.as_list())
    assert placement.is_shard and placement.size == shape[placement.dim], (placement, shape)
    return shape


@contextlib.contextmanager
def beside(op: tf.Operation) -> Iterator[None]:
    """Ops created inside have names under SCOPE, are in the TaskGraph of `op`, and wait for nothing."""
    with in_taskgraph(op.graph, taskgraph_index(op)), tf.control_dependencies(None):
        with tf.name_scope(f"{SCOPE}/{op.name}/"):
            yield


def _shard(
    variable: Any, full_shape: Tuple[int, ...], placement: Placement, resharder: Resharder
) -> Tuple[Any, Dict[str, Tuple[int, ...]]]:
    """A variable of the shape of the shard; and the seeds of the ops that draw its initial value."""
    name = variable.op.name
    with tf.name_scope("Initializer"):
        part, seeds = initial_values.initial_shard(variable.initial_value, full_shape, placement, resharder, name)
    with tf.name_scope(None):
        new = type(variable)(
            initial_value=part,
            trainable=False,  # else it would join a collection, where the user's object is already
            collections=[],
            caching_device=getattr(variable, "_caching_device", None),
            name=SCOPE + "/" + name,
            dtype=variable.dtype.base_dtype,
            synchronization=variable.synchronization,
            aggregation=variable.aggregation,
        )
    new._trainable = variable.trainable
    return new, seeds


def mark_shard(
    variable: Any, name: str, full_shape: Tuple[int, ...], placement: Placement, resharder: Resharder
) -> None:
    """Makes a variable object act as a shard of the full variable: its name, its slice in checkpoints, its assigns.

    Args:
      variable: of the shape of this rank's shard.
      name: of the full variable, without ":0".
      full_shape: its shape.
      placement: how it is cut.
      resharder: of this rank.
    """
    own: Any = type(variable)
    metaclass: Any = type(own)
    variable.__class__ = metaclass(own.__name__, (_ShardObject, own), {})
    variable._epl_full = (name, full_shape, placement, resharder)
    note_slice(variable)


def note_slice(variable: Any) -> None:
    """Tells TensorFlow which slice of which variable a shard is, for checkpoints."""
    name, full_shape, placement, resharder = variable._epl_full
    offset, shape = initial_values.static_slice(full_shape, placement, resharder)
    variable._set_save_slice_info(tf.Variable.SaveSliceInfo(name, list(full_shape), list(offset), list(shape)))


def load(variable: Any, full_shape: Sequence[int], value: Any, session: Optional[tf.Session]) -> None:
    """`variable.load(value, session)` of a sharded variable: runs an assignment, which is built by the first call."""
    session = session or tf.get_default_session()
    if session is None:
        raise ValueError("{!r}.load needs a session: give it one, or open one by `with`.".format(variable.name))
    fed = vars(variable).get("_epl_load")
    if fed is None:
        tf_graph = variable.graph
        with tf_compat.unfinalized(tf_graph), tf_graph.as_default(), tf.control_dependencies(None):
            placeholder = tf.placeholder(variable.dtype.base_dtype, full_shape)
            fed = variable._epl_load = (placeholder, variable.assign(placeholder, read_value=False))
    session.run(fed[1], {fed[0]: value})


def refuse_reuse(variable: Any, shape: Any) -> None:
    """Raises PlanError if `variable`, a shard, is asked for in the shape of the full variable, to be shared."""
    if not is_shard(variable) or shape is None or callable(shape):
        return
    name, full_shape, _, resharder = variable._epl_full
    asked = tf.TensorShape(shape)
    has_all = variable.shape.is_compatible_with(full_shape) and not hasattr(variable, ASKED)
    if asked.is_compatible_with(full_shape) and (has_all or not asked.is_compatible_with(variable.shape)):
        raise PlanError(
            "The variable {!r} is asked for again (reuse) after tf.gradients, in the shape {}, and each of {} devices "
            "has a part of it by then. Build all that shares the variables of epl.split before the first tf.gradients "
            "or minimize, or in another tf.Graph that restores a checkpoint.".format(
                name, list(full_shape), resharder.ranks
            )
        )


def is_shard(variable: Any) -> bool:
    """Whether a variable object is a shard."""
    return isinstance(variable, _ShardObject)


def _rebind(same: Any, new: Any) -> None:
    """The object `same` becomes the variable `new`; it keeps attributes that others have set on it."""
    same.__class__ = new.__class__
    same.__dict__.update(new.__dict__)


class Users:
    """Redirects the ops that take the full variable to the shard.

    Attributes:
      reads: (value of the full variable, value of the shard) for each op that read the variable.
      others: ops that are left to the caller.
      replaced: op -> its replacement, which all ops that use it take; the caller lets ops wait for it.
    """

    def __init__(
        self, old: tf.Tensor, new: Any, full_shape: Tuple[int, ...], placement: Placement, resharder: Resharder
    ) -> None:
        self._old = old
        self._new = new
        self._target = new.op.outputs[0]
        self._cut = (full_shape, placement, resharder)
        self.reads: List[Tuple[tf.Tensor, tf.Tensor]] = []
        self.others: List[tf.Operation] = []
        self.replaced: Dict[tf.Operation, tf.Operation] = {}

    def redirect(self, done: Any) -> None:
        """Redirects all users except those in `done`; writes first, as reads may wait for them."""
        users = [op for op in self._old.consumers() if op not in done]
        reads = [op for op in users if op.type in op_types.READS]
        in_branches = any(op.type in op_types.SWITCHES for op in users)
        for op in users:
            if op.type in INITIALIZED:
                if not (in_branches and _chooses(op.outputs[0])):
                    self.use(op, self._copied(op, []))
            elif op.type in op_types.WRITES:
                self._write(op)
            elif op.type == "VariableShape":
                self.use(op, tf.constant(self._cut[0], op.outputs[0].dtype).op)
            elif op not in reads and op.type != "SaveV2":
                self.others.append(op)
        for op in reads:
            if not _is_saved(op.outputs[0]):
                self._read(op)

    def _read(self, op: tf.Operation) -> None:
        self.reads.append((op.outputs[0], self._copied(op, []).outputs[0]))

    def use(self, before: tf.Operation, after: tf.Operation) -> None:
        """Replaces an op by one whose output has the same shape."""
        for consumer in before.outputs[0].consumers():
            for index, tensor in enumerate(consumer.inputs):
                if tensor is before.outputs[0]:
                    tf_compat.set_input(consumer, index, after.outputs[0])
        self.replaced[before] = after

    def _write(self, op: tf.Operation) -> None:
        if op.type not in _SIMPLE_WRITES:
            self._refuse_write(op)
        value = op.inputs[1]
        with beside(op):
            after = self._copied(op, [initial_values.shard_of(value, *self._cut)])
        self.replaced[op] = after
        if op.outputs and op.outputs[0].consumers():
            self.reads.append((op.outputs[0], after.outputs[0]))

    def _refuse_write(self, op: tf.Operation) -> NoReturn:
        raise PlanError(
            "{!r} ({}) was built before tf.gradients and writes into {!r}, which is split over {} devices. Build "
            "it after tf.gradients or minimize, or keep the variable out of epl.split.".format(
                op.name, op.type, self._old.op.name, self._cut[2].ranks
            )
        )

    def _copied(self, op: tf.Operation, inputs: List[tf.Tensor]) -> tf.Operation:
        """A copy of the op on the shard and on other inputs; it waits for the same ops, or their replacements."""
        attrs = {key: value for key, value in op.node_def.attr.items() if key not in NOT_COPIED}
        with beside(op), tf.device(op.device):
            with tf.control_dependencies([self.replaced.get(before, before) for before in op.control_inputs]):
                return op.graph.create_op(op.type, [self._target] + inputs, name=op.type, attrs=attrs, op_def=op.op_def)


def wait_instead(replaced: Mapping[tf.Operation, tf.Operation]) -> None:
    """Ops that wait for a key wait for its value now.

    One call for many variables: TensorFlow can only remove all control inputs of an op, and the op that initializes all
    variables has thousands.
    """
    for waiting in dict.fromkeys(op for before in replaced for op in tf_compat.control_outputs(before)):
        controls = waiting.control_inputs
        tf_compat.remove_control_inputs(waiting)
        tf_compat.add_control_inputs(waiting, dict.fromkeys(replaced.get(op, op) for op in controls))


def wait_for_shards(shards: Iterable[Shard]) -> None:
    """Ops that wait for an op on a full variable wait for its replacement now."""
    wait_instead({before: after for shard in shards for before, after in shard.replaced.items()})


def _chooses(flag: tf.Tensor) -> bool:
    """Whether a flag chooses between a variable and its initial value, in `initialized_value` built before the split.

    The flag still asks for the full variable, which never has a value. So it chooses the initial value, unless the
    session feeds it: see `initialized_values`.
    """
    return any(
        op.type in op_types.SWITCHES or (op.type == "Identity" and _chooses(op.outputs[0])) for op in flag.consumers()
    )


class InitializedValue(NamedTuple):
    """`initialized_value` of a sharded variable: its value, or the initial value if it has none yet.

    Attributes:
      flags: choose the value if they are fed True; without a feed, the initial value.
      reads: the value, which the session feeds together with the flags.
      variable: the full variable, which has this value; for `fetch_value`.
      shard: name of the op of the shard.
      initializer: name of the op that gives the shard its initial value.
    """

    flags: Tuple[tf.Tensor, ...]
    reads: Tuple[tf.Tensor, ...]
    variable: tf.Tensor
    shard: str
    initializer: str


def initialized_values(variables: ShardedVariables) -> List[InitializedValue]:
    """The `initialized_value`s that were built for variables before they were cut."""
    found = []
    for shard in variables.shards:
        flags = [op.outputs[0] for op in shard.old.consumers() if op.type in INITIALIZED and _chooses(op.outputs[0])]
        if not flags:
            continue
        taken = [op.outputs[1] for op in shard.old.consumers() if is_choice(op)]
        reads = [op.outputs[0] for value in taken for op in value.consumers() if op.type in op_types.READS]
        name, initializer = shard.variable.op.name, initializer_of(shard.variable).name
        found.append(InitializedValue(tuple(flags), tuple(reads), shard.old, name, initializer))
    return found


def is_choice(op: tf.Operation) -> bool:
    """Whether an op is the switch of an `initialized_value`, which leads a variable with a value to its read."""
    if op.type != ("Switch" if op.inputs[0].dtype == tf.resource else "RefSwitch"):
        return False
    question = _question(op.inputs[1])
    if question.type not in INITIALIZED or question.inputs[0] is not op.inputs[0]:
        return False
    return all(taker.type in op_types.READS for taker in op.outputs[1].consumers())


def asks_whether_initialized(flag: tf.Tensor) -> bool:
    """Whether a flag tells if a variable has a value."""
    return _question(flag).type in INITIALIZED


def _question(flag: tf.Tensor) -> tf.Operation:
    """The op that computes a flag."""
    op = flag.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


def _is_saved(value: tf.Tensor) -> bool:
    """Whether a value goes into checkpoints and nowhere else; `savers.py` handles these."""
    consumers = value.consumers()
    return bool(consumers) and all(map(only_saves, consumers))


def only_saves(op: tf.Operation) -> bool:
    """Whether an op writes checkpoints, or hands a value to such ops alone."""
    return op.type == "SaveV2" or (op.type == "Identity" and _is_saved(op.outputs[0]))
