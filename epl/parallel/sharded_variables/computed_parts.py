"""Tensors computed with the gradients of shards: a fetch gives the value of one device.

    shard of a gradient          all-gather
    local rows of a gradient     all-gather, after the first row of the rank's shard was added to the indices

The tracing of updates (epl/parallel/sharding/updates.py) says which tensors are shards.
"""

from typing import Dict, List, Mapping, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.sharding.placements import REPLICATED, Placement, offsets
from epl.parallel.sharding.sparse_rows import LOCAL_ROWS


class ComputedParts:
    """The placements of the tensors that are computed with gradients of shards.

    Attributes:
      placements: tensor -> its placement, which has no sizes for local rows of a sparse gradient.
    """

    def __init__(
        self,
        placements: Dict[tf.Tensor, Placement],
        rows: Mapping[tf.Tensor, Placement],
        shapes: Mapping[tf.Tensor, Placement],
    ) -> None:
        """Takes the result of a tracing.

        Args:
          placements: as `Updates.placements` of epl/parallel/sharding/updates.py.
          rows: values and indices of sparse gradients with local rows -> placement of their variable.
          shapes: the `dense_shape` of all sparse gradients, likewise.
        """
        self.placements = placements
        self._rows = rows
        self._shapes = shapes

    def ops(self) -> Set[str]:
        """Names of the ops that compute these tensors and write nothing."""
        return {tensor.op.name for tensor in self.placements if tensor.op.type not in op_types.WRITES}

    def placement(self, tensor: tf.Tensor) -> Placement:
        """The placement of a tensor; REPLICATED if all ranks have the same."""
        return self.placements.get(tensor, REPLICATED)

    def first_row(self, tensor: tf.Tensor, rank: int) -> int:
        """The row of the variable from which a rank's indices count; 0 for another tensor."""
        if tensor.dtype.is_floating or self.placements.get(tensor) != LOCAL_ROWS:
            return 0
        return offsets(self._variable(tensor).sizes or ())[rank]

    def full_shape(self, tensor: tf.Tensor) -> tf.Tensor:
        """The `dense_shape` of a sparse gradient for the full variable; another tensor unchanged."""
        if tensor not in self._shapes:
            return tensor
        variable = self._shapes[tensor]
        size = tf.constant([variable.size or 0], tensor.dtype)
        return tf.concat([tensor[: variable.dim], size, tensor[variable.dim + 1 :]], 0)

    def _variable(self, tensor: tf.Tensor) -> Placement:
        """The placement of the variable whose gradient has the local rows of a tensor."""
        seen: Set[tf.Tensor] = set()
        waiting: List[tf.Tensor] = [tensor]
        while waiting:
            one = waiting.pop()
            if one in self._rows:
                return self._rows[one]
            if one not in seen:
                seen.add(one)
                waiting.extend(source for source in one.op.inputs if self.placements.get(source) == LOCAL_ROWS)
        return LOCAL_ROWS
