"""The Emission that rules build with: copies of ops on other tensors, and the conversions of one rank."""

from typing import Any, Callable, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import Layout
from epl.parallel.sharding.resharding import Exchange
from epl.parallel.sharding.rules.registry import Emission

# Facts about an op's place in the user's graph, which a copy on other tensors does not share.
NOT_COPIED = ("_class", "_output_shapes")


class RankEmission(Emission):
    """Builds what stands for one op of the unsplit program, for one rank, into the default graph."""

    def __init__(
        self,
        op: tf.Operation,
        exchange: Exchange,
        rows: Optional[Callable[[], tf.Tensor]] = None,
        over_rows: bool = False,
    ) -> None:
        """Builds nothing yet.

        Args:
          op: of the unsplit program.
          exchange: of the rank.
          rows: gives how many rows of the batch each rank has, as an int64 vector; needed if the op has a batch.
          over_rows: whether what is summed is of rows that are cut along the batch.
        """
        self._op = op
        self._exchange = exchange
        self._rows = rows
        self._over_rows = over_rows
        self.rank = exchange.rank
        self.ranks = exchange.ranks

    def same(self, inputs: Sequence[tf.Tensor], **attrs: Any) -> List[tf.Tensor]:
        """The op with other inputs, and with other attributes where given; its outputs."""
        return list(copy_op(self._op, inputs, attrs).outputs)

    def own(self, values: Sequence[Any], dtype: tf.DType) -> tf.Tensor:
        """A constant that differs between ranks: `values` by rank. Nothing else may depend on the rank."""
        return self._exchange.own(values, dtype)

    def own_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """The size of a dimension that holds the batches of all ranks -> how much of it is this rank's; an integer."""
        if self._rows is None:
            raise ValueError("{}: how many rows of a batch each rank has is not known.".format(self._op.name))
        return self._exchange.own_share(rows, self._rows())

    def enter(self, tensor: tf.Tensor) -> tf.Tensor:
        """FULL, for use by an op that computes a part."""
        return self._exchange.enter(tensor)

    def sum_partial(self, tensor: tf.Tensor) -> tf.Tensor:
        """PARTIAL -> FULL."""
        return self._exchange.sum_partial(self._exchange.addend(tensor) if self._over_rows else tensor)

    def gather(self, tensor: tf.Tensor, layout: Layout) -> tf.Tensor:
        """A shard -> FULL."""
        return self._exchange.gather(tensor, layout)

    def cut(self, tensor: tf.Tensor, layout: Layout) -> tf.Tensor:
        """FULL -> this rank's part, by a layout with sizes."""
        return self._exchange.cut(tensor, layout)

    def all_max(self, tensor: tf.Tensor) -> tf.Tensor:
        """The largest of all ranks, element by element."""
        return self._exchange.all_max(tensor)

    def all_min(self, tensor: tf.Tensor) -> tf.Tensor:
        """The smallest of all ranks, element by element."""
        return self._exchange.all_min(tensor)


def copy_op(op: tf.Operation, inputs: Sequence[tf.Tensor], attrs: Dict[str, Any]) -> tf.Operation:
    """An op like `op` in the default graph, with other inputs, and with other attributes where given."""
    values = {name: value for name, value in op.node_def.attr.items() if name not in NOT_COPIED}
    values.update({name: _attr_value(value) for name, value in attrs.items()})
    name = op.name.split("/")[-1]
    return tf.get_default_graph().create_op(op.type, list(inputs), name=name, attrs=values, op_def=op.op_def)


def _attr_value(value: Any) -> tf.AttrValue:
    """A Python value as an attribute."""
    if isinstance(value, tf.AttrValue):
        return value
    if isinstance(value, bool):
        return tf.AttrValue(b=value)
    if isinstance(value, int):
        return tf.AttrValue(i=value)
    if isinstance(value, float):
        return tf.AttrValue(f=value)
    if isinstance(value, tf.DType):
        return tf.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return tf.AttrValue(shape=value.as_proto())
    if isinstance(value, (str, bytes)):
        return tf.AttrValue(s=value.encode() if isinstance(value, str) else value)
    listed = [_attr_value(element) for element in value]
    field = listed[0].WhichOneof("value") if listed else "i"
    return tf.AttrValue(list=tf.AttrValue.ListValue(**{field: [getattr(element, field) for element in listed]}))
