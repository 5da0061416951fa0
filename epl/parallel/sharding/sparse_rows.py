"""Local rows in update rules: values and indices of the sparse gradient of a shard, which differ between ranks.

    indices, values  --> Gather(slot, indices)                        rows of the slot: local rows, too
                     --> UnsortedSegmentSum(.., .., shape[0])         a shard: the gradient made dense
                     --> ScatterUpdate(slot, indices, values)         writes a slot that is cut by rows

The indices count from the first row of the shard and mean nothing on other ranks: ops without a rule here are refused.
"""

from typing import Collection, Mapping, NamedTuple, NoReturn, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.sharding.placements import Placement, shard
from epl.utils import tf_compat
from epl.utils.errors import PlanError


class LocalRows(NamedTuple):
    """Facts about sparse gradients, next to their values and indices.

    Attributes:
      shapes: the `dense_shape` of one -> the placement of its variable.
      slots: op name of a variable made for a shard -> its placement, if rows of the gradient are written into it.
    """

    shapes: Mapping[tf.Tensor, Placement]
    slots: Mapping[str, Placement]


NO_ROWS = LocalRows({}, {})
LOCAL_ROWS = shard(0)  # the placement of values and indices

_LOOKUPS = frozenset(["Gather", "GatherNd", "GatherV2", "ResourceGather", "ResourceGatherNd"])
_DENSE = {"UnsortedSegmentSum": 2, "ScatterNd": 2, "SparseToDense": 1}  # -> the input that has the number of rows
_KEEPS_SIZE = (
    op_types.READS
    | op_types.SWITCHES
    | op_types.ENTERS
    | frozenset(["Cast", "ConcatV2", "Pack", "Reshape", "StridedSlice"])
)


def placement_of_rows(
    op: tf.Operation,
    placements: Sequence[Placement],
    shapes: Mapping[tf.Tensor, Placement],
    known: Collection[Placement],
) -> Optional[Placement]:
    """The placement of the output of an op that takes local rows.

    Args:
      op: takes local rows among its inputs.
      placements: of its inputs.
      shapes: as in `LocalRows`.
      known: the placements of the shards.

    Returns:
      shard(0, None) for local rows, a placement with sizes for a shard; None if it is neither.
    """
    if op.type in _DENSE:
        return _placement_of_size(op.inputs[_DENSE[op.type]], shapes, known)
    if placements[0].sizes is not None:
        if op.type.startswith("TensorScatter"):
            return placements[0]
        if op.type in _LOOKUPS and (op.type != "GatherV2" or tf_compat.static_value(op.inputs[2]) == 0):
            return LOCAL_ROWS
    return None


def _placement_of_size(
    size: tf.Tensor, shapes: Mapping[tf.Tensor, Placement], known: Collection[Placement]
) -> Optional[Placement]:
    """The placement whose shards have the size that a shape, or a number of rows, gives."""
    source = size
    while source not in shapes and source.op.type in _KEEPS_SIZE:
        source = source.op.inputs[0]
    if source in shapes:
        return shapes[source]
    value = tf_compat.static_value(size)
    if value is None or not value.size:
        return None
    rows = int(value.reshape([-1])[0])
    found = {one for one in known if one.dim == 0 and set(one.sizes or ()) == {rows}}
    return found.pop() if len(found) == 1 else None


def refuse_rows(op: tf.Operation, what: str) -> NoReturn:
    """Raises PlanError for an op that combines local rows with something else in a way that has no meaning."""
    raise PlanError(
        "{!r} ({}) computes with rows of a sparse gradient, of which each device has those of its own part, and with "
        "{}: EPL cannot tell where they belong. Let the update rule make gradients dense by tf.convert_to_tensor, and "
        "keep rows in slots of the variable; or set communication.sparse_as_dense.".format(op.name, op.type, what)
    )


def refuse_rows_of_whole(op: tf.Operation, variable: str) -> NoReturn:
    """Raises PlanError for a write of the script into some rows of a variable that is sharded."""
    raise PlanError(
        "{!r} ({}) writes rows or slices of {!r}, of which each device has a part: EPL cannot tell which of them are "
        "its own. Compute the whole value and run `v.assign(value)`.".format(op.name, op.type, variable)
    )
