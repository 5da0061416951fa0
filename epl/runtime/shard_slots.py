"""Slots of shards: what an optimizer keeps per element of a variable is a shard of the same kind.

TensorFlow's slot creator takes the shape of the variable object, which is the shard's, and copies its SaveSliceInfo.
Left to this module are slots that are created in other ways (Keras' optimizers, users with tf.get_variable), names, and
parts whose sizes differ between ranks: the shape of a slot is then another on each rank, and so is its initial value.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.split.conversions import Exchange, is_uneven
from epl.parallel.split.layouts import Layout
from epl.runtime.shard_initial import Redraw, local_shape
from epl.runtime.shard_savers import Held
from epl.runtime.shard_variables import SCOPE, beside, is_shard, mark_shard, objects_of
from epl.utils.errors import PlanError

Slots = NamedTuple(
    "Slots",
    [
        ("held", Dict[str, Held]),
        ("shapes", Dict[str, Tuple[Tuple[int, ...], ...]]),
        ("seeds", Dict[str, Tuple[int, ...]]),
    ],
)
Slots.__doc__ = """The variables that are parts, by the names of their ops.

Attributes:
  held: what they are parts of; shards are among them.
  shapes, seeds: what differs between ranks, as in `Shard`; shards are not among them.
"""


def adopt_slots(written: Mapping[str, Layout], exchange: Exchange) -> Slots:
    """Makes the variables that updates of shards write known as parts.

    Their objects get the names of the single-device program and SaveSliceInfo, so that a Saver that is made from now on
    knows them. To be called once behind each `apply_gradients`.

    Args:
      written: op name of a variable -> layout (`Updates.variables` of epl/parallel/split/updates.py).
      exchange: of this rank.

    Returns:
      What they are parts of, and what differs between ranks.

    Raises:
      PlanError: the initial value of a slot has the size of this rank's part, and EPL cannot make it in others.
    """
    slots = Slots({}, {}, {})
    graph = tf.get_default_graph()
    for name, layout in sorted(written.items()):
        op = graph.get_operation_by_name(name)
        shape = [dim.size for dim in op.get_attr("shape").dim]
        assert layout.sizes is not None
        assert shape[layout.dim] in (layout.sizes[exchange.rank], -1), (name, shape, layout)
        full_shape = tuple(shape[: layout.dim] + [sum(layout.sizes)] + shape[layout.dim + 1 :])
        objects = objects_of(op)
        if not objects:  # a sum of gradients, which no checkpoint has
            if is_uneven(layout):
                slots.shapes[name] = _shapes(full_shape, layout)
            continue
        # TensorFlow has named the slot behind the shard.
        held = slots.held[name] = Held(name.replace(SCOPE + "/", "", 1), full_shape, layout)
        if any(is_shard(variable) for variable in objects):
            continue
        for variable in objects:
            mark_shard(variable, *held, exchange=exchange)
        if is_uneven(layout):
            _resize(op, held, exchange, written, slots)
    return slots


def _resize(op: tf.Operation, held: Held, exchange: Exchange, written: Mapping[str, Layout], slots: Slots) -> None:
    """Lets the initial value follow the size of the part."""
    shapes = _shapes(held.full_shape, held.layout)
    slots.shapes[op.name] = shapes
    for assign in _initializers(op):
        value = assign.inputs[1]
        redraw = Redraw(shapes[exchange.rank], shapes, exchange)
        with beside(op), tf.name_scope("Initializer"):
            part = redraw.build(value)
        if part is not None:
            assign._update_input(1, part)
            slots.seeds.update(redraw.seeds)
        elif not _depends_on_parts(value, written):
            raise PlanError(
                "The initial value of {!r} has the size of a part of a variable that is split in parts of different "
                "sizes, {}, and comes from {}, which EPL cannot make in other sizes. Begin with zeros, a number, or "
                "what is computed from the variable; or choose a size that {} divides.".format(
                    held.full_name, held.layout, redraw.unknown, exchange.ranks
                )
            )


def _shapes(full_shape: Sequence[int], layout: Layout) -> Tuple[Tuple[int, ...], ...]:
    """The shapes of the parts, by rank."""
    return tuple(local_shape(full_shape, layout, rank) for rank in range(len(layout.sizes or ())))


def _initializers(op: tf.Operation) -> List[tf.Operation]:
    """The assignments that the variable objects name as their initializers."""
    found: List[Any] = [variable.initializer for variable in objects_of(op)]
    return list({getattr(one, "op", one) for one in found})


def _depends_on_parts(value: tf.Tensor, written: Mapping[str, Layout]) -> bool:
    """Whether a value is computed from a variable that is a part, so that it has the right size on every rank."""
    stack, seen = [value.op], set()
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            if op.type in op_types.VARIABLES and op.name in written:
                return True
            stack.extend(tensor.op for tensor in op.inputs)
    return False
