"""Barriers: control edges that a run can leave out, by feeding a placeholder.

    ops --> placeholder with default --> merge --> assertion --> what waits

It is what it is because of TensorFlow: feeding an op does not cut its own control edges, unless it is a placeholder; of
an op that nothing but control edges leave, the dependency optimizer makes one with control edges alone, unless it has
side effects, which an assertion has; it removes edges that a longer way makes superfluous, also where that way leads
through what is fed, but follows none through a merge; and a constant that an Enter waits for is taken for the one that
enters the loop by the loop optimizer, which crashes.
"""

from typing import NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.rewriting.plan_nodes import PlanNodes
from epl.utils import tf_compat


def build_barrier(waits_for: Sequence[tf.Operation]) -> Tuple[str, tf.Operation]:
    """The name of the tensor to feed, True, and the op to wait for; built where the caller is building."""
    done = tf.placeholder_with_default(tf.constant(True), [], name="barrier")
    tf_compat.add_control_inputs(done.op, waits_for)
    passed = tf.raw_ops.Merge(inputs=[done]).output
    return done.name, tf.raw_ops.Assert(condition=passed, data=[passed], name="passed")


class Barrier(NamedTuple):
    """A barrier among NodeDefs.

    Attributes:
      node: the placeholder, to be fed True; the barrier waits for what it waits for.
      merged: name of the merge; an edge from it stays, whatever makes it superfluous.
      passed: name of the op to wait for.
    """

    node: tf.NodeDef
    merged: str
    passed: str


def add_barrier(added: PlanNodes, suffix: str, waits_for: Sequence[str]) -> Barrier:
    """The same, added as NodeDefs whose names end in `suffix`; names of ops are given, and given back."""
    inputs = [added.constant(True, tf.bool)] + ["^" + name for name in waits_for]
    done = added.add("barrier" + suffix, "PlaceholderWithDefault", inputs, dtype=tf.bool)
    done.attr["shape"].shape.SetInParent()
    merged = added.add("merged" + suffix, "Merge", [done.name], T=tf.bool)
    merged.attr["N"].i = 1
    passed = added.add("passed" + suffix, "Assert", [merged.name, merged.name])
    passed.attr["T"].list.type.append(tf.bool.as_datatype_enum)
    return Barrier(done, merged.name, passed.name)
