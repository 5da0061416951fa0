"""Ops that compute what an op before them does: common subexpressions, which are computed once.

    x ──┬──▶ Reshape ──▶ MatMul q              x ──▶ Reshape ──┬──▶ MatMul q
        ├──▶ Reshape ──▶ MatMul k     becomes                  ├──▶ MatMul k
        └──▶ Reshape ──▶ MatMul v                              └──▶ MatMul v

Where each is an op of its own, so are the conversions of what it takes and gives: three all-reduces in the backward
pass instead of one.
"""

from typing import Dict, Hashable, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import NOT_COPIED
from epl.utils import tf_compat


class EqualOps:
    """The ops that were seen, and which of them are equal."""

    def __init__(self) -> None:
        self._seen: Dict[Tuple[Hashable, ...], tf.Operation] = {}
        self._first: Dict[tf.Operation, tf.Operation] = {}

    def find(self, op: tf.Operation, inputs: Sequence[Hashable], shapes: Sequence[Hashable]) -> Optional[tf.Operation]:
        """An op that was seen before and gives the same values, None if there is none; remembers the op.

        Args:
          op: the op. One with state, as those that draw random numbers have, is equal to no other.
          inputs: what it takes; equal only for tensors with the same values.
          shapes: what is known of its outputs.
        """
        if not op.outputs or tf_compat.is_stateful(op.graph, op.type):
            return None
        attrs = tuple(
            (name, value.SerializeToString(deterministic=True))
            for name, value in sorted(op.node_def.attr.items())
            if name not in NOT_COPIED
        )
        controls = frozenset(self.first(before) for before in op.control_inputs)
        found = self._seen.setdefault((op.type, tuple(inputs), tuple(shapes), attrs, controls), op)
        if found is op:
            return None
        self._first[op] = found
        return found

    def first(self, op: tf.Operation) -> tf.Operation:
        """The op whose values an op has: that which was seen first, itself if it has no equal."""
        return self._first.get(op, op)
