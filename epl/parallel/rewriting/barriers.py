"""Barriers: control edges that a run can leave out, by feeding a placeholder.

    ops --> placeholder with default --> merge --> assertion --> ops that wait

TensorFlow is the reason for each op. A feed cuts the control inputs of a placeholder, not those of another op. The
dependency optimizer turns an op without data consumers into a NoOp, unless it has side effects, as an assertion has. It
also removes edges that a longer path makes superfluous, even if that path leads through a fed op; but it follows no
path through a merge. And the loop optimizer crashes if an Enter waits for a constant, which it takes for the Enter's
input.
"""

from typing import NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.rewriting.plan_nodes import PlanNodes
from epl.utils import tf_compat


def build_barrier(waits_for: Sequence[tf.Operation]) -> Tuple[str, tf.Operation]:
    """Builds a barrier in the current scope; returns the name of the tensor to feed (True), and the op to wait for."""
    done = tf.placeholder_with_default(tf.constant(True), [], name="barrier")
    tf_compat.add_control_inputs(done.op, waits_for)
    passed = tf.raw_ops.Merge(inputs=[done]).output
    return done.name, tf.raw_ops.Assert(condition=passed, data=[passed], name="passed")


class Barrier(NamedTuple):
    """A barrier as NodeDefs.

    Attributes:
      node: the placeholder, to be fed True; its control inputs are the ops before the barrier.
      merged: name of the merge; TensorFlow keeps an edge from it, even a superfluous one.
      passed: name of the op to wait for.
    """

    node: tf.NodeDef
    merged: str
    passed: str


def add_barrier(added: PlanNodes, suffix: str, waits_for: Sequence[str]) -> Barrier:
    """Adds a barrier as NodeDefs whose names end in `suffix`; `waits_for` has names of ops."""
    inputs = [added.constant(True, tf.bool)] + ["^" + name for name in waits_for]
    done = added.add("barrier" + suffix, "PlaceholderWithDefault", inputs, dtype=tf.bool)
    done.attr["shape"].shape.SetInParent()
    merged = added.add("merged" + suffix, "Merge", [done.name], T=tf.bool)
    merged.attr["N"].i = 1
    passed = added.add("passed" + suffix, "Assert", [merged.name, merged.name])
    passed.attr["T"].list.type.append(tf.bool.as_datatype_enum)
    return Barrier(done, merged.name, passed.name)
