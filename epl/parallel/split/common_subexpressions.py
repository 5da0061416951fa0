"""Common subexpressions: finds ops that compute the same as an earlier op, so that they are computed once.

    x ──┬──▶ Reshape ──▶ MatMul q              x ──▶ Reshape ──┬──▶ MatMul q
        ├──▶ Reshape ──▶ MatMul k     becomes                  ├──▶ MatMul k
        └──▶ Reshape ──▶ MatMul v                              └──▶ MatMul v

Three ops would each reshard their inputs and outputs: three all-reduces in the backward pass instead of one.
"""

from typing import Dict, Hashable, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import NOT_COPIED
from epl.utils import tf_compat

# Attributes that say nothing of what is computed. TensorFlow 2 marks an op that waits for others by the last one.
_SAY_NOTHING = (*NOT_COPIED, "_has_manual_control_dependencies")


class CommonSubexpressions:
    """The ops seen so far, and which of them compute the same."""

    def __init__(self) -> None:
        self._seen: Dict[Tuple[Hashable, ...], tf.Operation] = {}
        self._first: Dict[tf.Operation, tf.Operation] = {}

    def find(
        self,
        op: tf.Operation,
        node: tf.NodeDef,
        inputs: Sequence[Hashable],
        shapes: Sequence[Hashable],
        how: Hashable = (),
    ) -> Optional[tf.Operation]:
        """The earlier op that computes the same values, None if there is none; remembers the op.

        Args:
          op: the op. A stateful op, such as one that draws random numbers, is equal to no other.
          node: its definition.
          inputs: keys of its inputs; equal only for tensors with the same values.
          shapes: static shapes of its outputs.
          how: what else ops must have in common, such as the ratios in which they are cut.
        """
        if not op.outputs or tf_compat.is_stateful(op.graph, op.type):
            return None
        attrs = tuple(
            (name, value.SerializeToString(deterministic=True))
            for name, value in sorted(node.attr.items())
            if name not in _SAY_NOTHING
        )
        controls = frozenset(self.first(before) for before in op.control_inputs)
        found = self._seen.setdefault((op.type, tuple(inputs), tuple(shapes), attrs, controls, how), op)
        if found is op:
            return None
        self._first[op] = found
        return found

    def first(self, op: tf.Operation) -> tf.Operation:
        """The first op that computes the same as `op`; `op` itself if no earlier one does."""
        return self._first.get(op, op)
