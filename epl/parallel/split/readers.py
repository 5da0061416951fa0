"""Ops outside of a split that compute with its variables alone: weight decay, norms for a summary.

    with epl.split(n): kernel = ...                      ops of the split
    decay = tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
                      `-- belongs to the split as well   `-- takes other variables, too

Inside of the split they are computed on shards; outside they would need the full variable on every device.
"""

from typing import Iterable, List, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.sharding.rules import all as all_rules  # noqa: F401  (fills the registry)
from epl.parallel.sharding.rules.registry import RULES
from epl.utils import tf_compat


def with_readers(marked: Iterable[tf.Operation]) -> List[tf.Operation]:
    """The ops of a split, and the ops elsewhere that take only its variables, constants, and each other.

    Args:
      marked: the ops of the split TaskGraph, of the forward phase.
    """
    found = set(marked)
    values: Set[tf.Tensor] = set()
    for variable in [op for op in found if op.type in op_types.VARIABLES]:
        reads = [op for op in variable.outputs[0].consumers() if op.type in op_types.READS]
        values.update(op.outputs[0] for op in reads)
    stack = [consumer for value in values for consumer in value.consumers()]
    while stack:
        op = stack.pop()
        if op not in found and _computes_with(op, values):
            found.add(op)
            values.update(op.outputs)
            stack += [consumer for output in op.outputs for consumer in output.consumers()]
    return sorted(found, key=tf_compat.op_id)


def _computes_with(op: tf.Operation, values: Set[tf.Tensor]) -> bool:
    return (
        op.type in RULES
        and tf_compat.control_flow_context_of(op) is None
        and all(tensor in values or tensor.op.type == "Const" for tensor in op.inputs)
        and not any(_is_kept(consumer) for output in op.outputs for consumer in output.consumers())
    )


def _is_kept(consumer: tf.Operation) -> bool:
    """Whether an op writes a variable or a file: its inputs stay where they are."""
    return consumer.type in op_types.WRITES or consumer.type in op_types.OF_SCRIPT
