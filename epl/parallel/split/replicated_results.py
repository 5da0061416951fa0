"""Which values of a split are as of one device when every rank computes with the same rows.

    rows a b on each of n ranks     values of a row, mean, largest: as of one device     sum, count: n times that

For runs in which the copies cannot be dropped: see epl/parallel/sharding/replicated_rows.py.
"""

from typing import Any, Mapping, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.ir.colocation import phase_of
from epl.ir.taskgraph import Phase
from epl.parallel.split.batch_dims import traced
from epl.parallel.split.program import Program, Step

_SAME = frozenset(["Mean", "Max", "Min", "All", "Any"])


def first_changed(program: Program, roots: Sequence[Any], numbers: Mapping[tf.Tensor, int]) -> Optional[tf.Tensor]:
    """A tensor of the user that is not known to be as of one device, and on which one of the roots depends.

    Args:
      program: of the split.
      roots: tensors; not looked into if they are gradients.
      numbers: of the values of the program, by the tensors that have them.
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
    """The numbers of values that are not known to be as of one device."""
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
