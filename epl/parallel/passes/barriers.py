"""Barriers: control edges that a run can leave out, by feeding a placeholder.

    ops --> placeholder with default --> merge --> assertion --> what waits

TensorFlow keeps the control edges of a fed op, unless it is a placeholder. The merge keeps TensorFlow's optimizer from
taking edges away that lead past the barrier as well: it follows nothing through a merge.
"""

from typing import Sequence, Tuple

import tensorflow.compat.v1 as tf


def build_barrier(waits_for: Sequence[tf.Operation]) -> Tuple[str, tf.Operation]:
    """The name of the tensor to feed, True, and the op to wait for; built where the caller is building."""
    done = tf.placeholder_with_default(tf.constant(True), [], name="barrier")
    done.op._add_control_inputs(list(waits_for))
    passed = tf.raw_ops.Merge(inputs=[done]).output
    return done.name, tf.raw_ops.Assert(condition=passed, data=[passed], name="passed")
