"""Counters that need no initializer: one that was never written is 0, and a new session begins with it."""

from typing import Any, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.accumulation.sums import new_variable

HOST = "/device:CPU:0"  # of what decides about control flow


def at_start() -> Any:
    """Ops made inside wait for nothing but their inputs, and are in no branch."""
    return tf.control_dependencies(None)


def new_counter() -> Tuple[tf.Tensor, tf.Tensor]:
    """The handle of a variable that counts, and its value as a run begins."""
    with at_start(), tf.device(HOST):
        handle = new_variable(tf.int64, [])
        value = tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64),
            lambda: tf.constant(0, tf.int64),
        )
        value.set_shape([])
        return handle, value
