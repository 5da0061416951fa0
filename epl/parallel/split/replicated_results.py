"""Finds the values of a split that are the same as on one device if every rank computes with the same rows.

    rows a b on each of n ranks     value of a row, mean, maximum: same as on one device     sum, count: n times that

This is for runs in which the copies cannot be dropped: see epl/parallel/sharding/replicated_rows.py.
"""

from typing import Any, Mapping, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.ir.colocation import phase_of
from epl.ir.taskgraph import Phase
from epl.parallel.split.batch_dims import traced
from epl.parallel.split.program import Program, Step

_SAME = frozenset(["Mean", "Max", "Min", "All", "Any"])


def first_changed(program: Program, roots: Sequence[Any], numbers: Mapping[tf.Tensor, int]) -> Optional[tf.Tensor]:
    """A tensor of the user that one of the roots depends on and that may differ from its value on one device, or None.

    Args:
      program: of the split.
      roots: tensors; gradients are not traced.
      numbers: tensor -> number of its value in the program.
    """
    changed = changed_values(program)
    stack = [root for root in roots if isinstance(root, tf.Tensor)]
    seen: Set[tf.Tensor] = set()
    while stack:
        tensor = stack.pop()
        if tensor in seen or phase_of(tensor.op) == Phase.BACKWARD:
            continue
        seen.add(tensor)
        if numbers.get(tensor) in changed:
            return program.values[numbers[tensor]].tensor
        if tensor not in numbers:
            stack.extend(tensor.op.inputs)
    return None


def changed_values(program: Program) -> Set[int]:
    """The numbers of the values that may differ from those on one device."""
    changed: Set[int] = set()
    for step in program.steps:
        if not _is_same(program, step, changed):
            changed.update(step.outputs)
    return changed


def _is_same(program: Program, step: Step, changed: Set[int]) -> bool:
    if -1 in step.inputs or not changed.isdisjoint(step.inputs):
        return False
    if all(program.values[number].batch is None for number in step.inputs):
        return True
    if step.kept:
        return False
    if step.op.type in _SAME or step.op.type == "Reshape":
        return True
    dims = traced(step.info)
    return dims is not None and None not in dims
