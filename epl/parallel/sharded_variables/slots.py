"""Slots of shards: a variable that an optimizer keeps per element of a variable is cut in the same way.

The variables that an optimizer makes while it applies gradients are watched: a variable for a shard gets the name that
it would have for the full variable, and is a shard itself if it has the shape of one. Other slots are shards if updates
write shards into them. Where the sizes of shards differ, shape and initial value of a slot differ between ranks.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.sharded_variables.initial_values import Redraw, local_shapes, restored_shard, static_shape
from epl.parallel.sharded_variables.variables import (
    ASKED,
    SCOPE,
    beside,
    initializer_of,
    is_shard,
    mark_shard,
    note_slice,
)
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.resharding import Resharder, is_uneven
from epl.parallel.sharding.shard_owner import NewVariable
from epl.parallel.sharding.sharded_variables import Shard, ShardInfo, Slots, objects_by_op
from epl.utils import tf_compat
from epl.utils.errors import PlanError


class SlotPlacements(NamedTuple):
    """The placements of variables that were made for shards, by the names of their ops.

    Attributes:
      parts: of those that have the shape of the shard.
      of_rows: of others, if rows of a sparse gradient are written into them.
    """

    parts: Dict[str, Placement]
    of_rows: Dict[str, Placement]


@contextlib.contextmanager
def watched_slots() -> Iterator[List[NewVariable]]:
    """Gives variables that are made inside the names that they have on one device; yields a list of them."""
    made: List[NewVariable] = []

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        asked = kwargs.get("name") or ""
        outer, scope, name = asked.rpartition(SCOPE + "/")
        variable = next_creator(**dict(kwargs, name=outer + name if scope else kwargs.get("name")))
        made.append(NewVariable(variable, name if scope else variable.op.name))
        return variable

    with _stored_as_asked(), tf.variable_creator_scope(create):
        yield made


@contextlib.contextmanager
def _stored_as_asked() -> Iterator[None]:
    """Inside, `tf.get_variable` finds slots of shards by the names it is asked for; outside by those of one device.

    tf.train.init_from_checkpoint needs the latter; an optimizer in a scope that is entered again shares its slots.
    """
    stored = tf_compat.stored_variables()
    for name, variable in list(stored.items()):
        if hasattr(variable, ASKED):
            stored[getattr(variable, ASKED)] = stored.pop(name)
    try:
        yield
    finally:
        for asked in [name for name in stored if SCOPE + "/" in name]:
            outer, _, name = asked.rpartition(SCOPE + "/")
            variable = stored[outer + name] = stored.pop(asked)
            setattr(variable, ASKED, asked)
            if is_shard(variable):
                note_slice(variable)  # TensorFlow replaces the slice info of a slot that it finds again


def slot_placements(made: Sequence[NewVariable], shards: Sequence[Shard]) -> SlotPlacements:
    """Finds slots of shards; those of another shape lose the slice info that TensorFlow's slot creator gave them."""
    found = SlotPlacements({}, {})
    for variable, name in made:
        primary = _primary(name, shards)
        if primary is None:
            continue
        shape, part = variable.shape.as_list(), primary.variable.shape.as_list()
        if shape == part:
            found.parts[variable.op.name] = primary.placement
            continue
        variable._set_save_slice_info(None)
        if shape and primary.placement.dim == 0 and shape[0] == part[0]:
            found.of_rows[variable.op.name] = primary.placement
    return found


def _primary(name: str, shards: Sequence[Shard]) -> Optional[Shard]:
    """The shard that a variable of this name was made for."""
    of_name = [one for one in shards if name.startswith(one.name + "/")]
    return max(of_name, key=lambda one: len(one.name)) if of_name else None


def adopt_slots(written: Mapping[str, Placement], resharder: Resharder, owner: str) -> Slots:
    """Makes the variables that updates of shards write known as shards.

    Their objects get the names of the single-device program and SaveSliceInfo, so that Savers which are made later know
    them. To be called once after each `apply_gradients`.

    Args:
      written: op name of a variable -> placement (`Updates.variables` of epl/parallel/sharding/updates.py).
      resharder: of this rank.
      owner: as in ShardInfo.

    Returns:
      The shards that they hold, and the differences between ranks.

    Raises:
      PlanError: the initial value of a slot has the size of this rank's shard, and EPL cannot build it in other sizes.
    """
    slots = Slots({}, {}, {})
    graph = tf.get_default_graph()
    members = objects_by_op(graph)
    for name, placement in sorted(written.items()):
        op = graph.get_operation_by_name(name)
        shape = [dim.size for dim in op.get_attr("shape").dim]
        assert placement.sizes is not None
        full_shape = tuple(shape[: placement.dim] + [placement.size] + shape[placement.dim + 1 :])
        static = static_shape(full_shape, placement, resharder)
        assert shape[placement.dim] in (static[placement.dim], -1), (name, shape, placement)
        objects = members.get(op)
        if not objects:  # a sum of gradients, which no checkpoint has
            if is_uneven(placement):
                slots.shapes[name] = local_shapes(full_shape, placement)
            continue
        info = slots.variables[name] = ShardInfo(name.replace(SCOPE + "/", "", 1), full_shape, placement, owner)
        if any(is_shard(variable) for variable in objects):
            continue
        for variable in objects:
            mark_shard(variable, info.full_name, full_shape, placement, resharder)
        if is_uneven(placement):
            _resize(objects, info, resharder, written, slots)
    return slots


def _resize(
    objects: List[Any], info: ShardInfo, resharder: Resharder, written: Mapping[str, Placement], slots: Slots
) -> None:
    """Builds the initial value of a slot, given by its Python objects, in the size of each rank's shard."""
    op = objects[0].op
    shapes = local_shapes(info.full_shape, info.placement)
    static = static_shape(info.full_shape, info.placement, resharder)
    slots.shapes[op.name] = shapes
    for assign in _initializers(objects):
        value = assign.inputs[1]
        redraw = Redraw(static, shapes, static, resharder)
        with beside(op), tf.name_scope("Initializer"):
            part = redraw.build(value)
        if part is not None:
            tf_compat.set_input(assign, 1, part)
            slots.seeds.update(redraw.seeds)
        elif not _depends_on_parts(value, written):
            raise PlanError(
                "The initial value of {!r} has the size of a part of a variable that is split in parts of different "
                "sizes, {}, and comes from {}, which EPL cannot make in other sizes. Begin with zeros, a number, or "
                "what is computed from the variable; or choose a size that {} divides.".format(
                    info.full_name, info.placement, redraw.unknown, resharder.ranks
                )
            )


def follow_initial_values() -> None:
    """Lets shards with initial values from a checkpoint (tf.train.init_from_checkpoint) read their slices only."""
    graph = tf.get_default_graph()
    members = [member for key in graph.get_all_collection_keys() for member in graph.get_collection_ref(key)]
    for variable in filter(is_shard, members):
        initializer = initializer_of(variable)
        with beside(variable.op):
            part = restored_shard(initializer.inputs[1], *variable._epl_full[1:])
        if part is not None:
            tf_compat.set_input(initializer, 1, part)


def _initializers(objects: List[Any]) -> List[tf.Operation]:
    """The assignments that the variable objects name as their initializers."""
    found: List[Any] = [variable.initializer for variable in objects]
    return list({getattr(one, "op", one) for one in found})


def _depends_on_parts(value: tf.Tensor, written: Mapping[str, Placement]) -> bool:
    """Whether a value is computed from a variable that is a shard, so that it has the right size on every rank."""
    stack, seen = [value.op], set()
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            if op.type in op_types.VARIABLES and op.name in written:
                return True
            stack.extend(tensor.op for tensor in op.inputs)
    return False
