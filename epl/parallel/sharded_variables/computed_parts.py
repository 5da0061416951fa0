"""What is computed with the gradients of parts, as the user fetches it: that of one device.

    part of a gradient     on each rank                          all-gather
    rows of a gradient     on each rank those of its own part    all-gather, indices counted from the part's first row

Which tensors are parts is known from the tracing of updates (epl/parallel/sharding/updates.py).
"""

from typing import Dict, List, Mapping, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.sharding.placements import REPLICATED, Placement, offsets
from epl.parallel.sharding.sparse_rows import LOCAL_ROWS


class ComputedParts:
    """How the tensors are cut that are computed with gradients of parts.

    Attributes:
      placements: tensor -> how it is cut; without sizes: rows of a sparse gradient.
    """

    def __init__(
        self,
        placements: Dict[tf.Tensor, Placement],
        rows: Mapping[tf.Tensor, Placement],
        shapes: Mapping[tf.Tensor, Placement],
    ) -> None:
        """Notes what is known.

        Args:
          placements: as `Updates.placements` of epl/parallel/sharding/updates.py.
          rows: values and indices of the sparse gradients of which each rank has rows -> how their variable is cut.
          shapes: the `dense_shape` of all sparse gradients, likewise.
        """
        self.placements = placements
        self._rows = rows
        self._shapes = shapes

    def ops(self) -> Set[str]:
        """Names of the ops that compute them and write nothing."""
        return {tensor.op.name for tensor in self.placements if tensor.op.type not in op_types.WRITES}

    def placement(self, tensor: tf.Tensor) -> Placement:
        """How the ranks hold a tensor; REPLICATED if all have the same."""
        return self.placements.get(tensor, REPLICATED)

    def first_row(self, tensor: tf.Tensor, rank: int) -> int:
        """What a rank's indices count from."""
        if tensor.dtype.is_floating or self.placements.get(tensor) != LOCAL_ROWS:
            return 0
        return offsets(self._variable(tensor).sizes or ())[rank]

    def whole_shape(self, tensor: tf.Tensor) -> tf.Tensor:
        """The `dense_shape` of a sparse gradient, of the whole variable; another tensor as it is."""
        if tensor not in self._shapes:
            return tensor
        variable = self._shapes[tensor]
        size = tf.constant([variable.size or 0], tensor.dtype)
        return tf.concat([tensor[: variable.dim], size, tensor[variable.dim + 1 :]], 0)

    def _variable(self, tensor: tf.Tensor) -> Placement:
        """How the variable is cut of whose gradient a tensor has rows."""
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
