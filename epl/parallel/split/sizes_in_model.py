"""What in a split may count on the number of rows of one device, where the model has it as a number.

    x of 32 rows on each of 2 devices       in the split are 64 rows
    tf.reduce_sum(losses) / 32              told: a sum over 64 rows
    tf.range(1) * 128, for 1 row            told: 0 for all rows
    [h[i] for i in range(32)]               told: all are rows of the first device

Only the user knows what a number stands for. What does not fit together is refused where it is built, and what has one
number for each row is seen to by `continued_ranges.py`.
"""

from typing import List, Optional, Set

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.split.continued_ranges import lengths_of_ranges
from epl.parallel.split.program import ENTRY, Program, Step
from epl.utils import tf_compat
from epl.utils.source_line import user_line

_TOLD = 3  # ops; the others are counted

_SCALES = frozenset(["Div", "Mul", "RealDiv"])
_SUMS = frozenset(["Add", "AddV2"])  # in which one number is added to those of all rows
_PICKS = frozenset(["Gather", "GatherV2", "StridedSlice"])  # rows by number


def doubts(program: Program) -> List[str]:
    """Sentences about what may count on the rows of one device: constants, and ops on which the loss depends."""
    rows: Set[int] = set()
    for value in program.values:
        if value.kind == ENTRY and value.info.batch is not None:
            rows.add(value.tensor.shape[value.info.batch].value or 0)
    rows.discard(0)
    made: Set[int] = set()  # numbers of values that are made of rows, and have none
    found = [
        f"split: {tensor.op.type} {tensor.op.name!r} ({user_line(tensor.op)}) has a whole number for each row of one "
        f"device, and they grow from row to row: the rows of each of the {program.ranks} devices get the same. If they "
        "are numbers of rows, make them by tf.range()."
        for tensor, dim in program.own.items()
        if tensor not in program.growth and _may_be_numbers(tensor, dim)
    ]
    for step in program.steps if rows else ():
        has_rows = [number >= 0 and program.values[number].batch is not None for number in step.inputs]
        without = [number for number in step.outputs if program.values[number].batch is None]
        if any(has_rows) or made.intersection(step.inputs):
            made.update(without)
        what = _one_row(program, step, has_rows) if 1 in rows else None
        if what is None and any(program.values[number].trained for number in without):
            what = _scale(program, step, rows - {1}, made) or _pick(program, step, has_rows)
        if what is not None:
            found.append(
                f'split: {step.op.type} "{step.op.name}" ({user_line(step.op)}) may count on the rows of one device: '
                f"it {what}. In the split are the rows of all {program.ranks} devices: if the number stands for rows "
                "of the batch, take tf.shape() of the batch."
            )
    more = len(found) - _TOLD
    return found[:_TOLD] + [f"split: {more} more op(s) of these kinds"] * (more > 0)


def _may_be_numbers(tensor: tf.Tensor, dim: int) -> bool:
    """Whether whole numbers, if they are known, grow from row to row, not each time."""
    value = tf_compat.evaluate_constant(tensor) if tensor.dtype.is_integer else None
    steps = np.zeros(0) if value is None else np.diff(value.astype(np.int64), axis=dim)
    return bool(steps.any() and (steps >= 0).all())


def _one_row(program: Program, step: Step, has_rows: List[bool]) -> Optional[str]:
    """Of one row, a number is also that of all rows."""
    if step.op.type in _SUMS and any(has_rows):
        for number, tensor in zip(step.inputs, step.op.inputs):
            if number in program.fixed and 1 in lengths_of_ranges(tensor):
                return "takes the number of a row, and the batch of a device has 1 row"
    return None


def _scale(program: Program, step: Step, rows: Set[int], made: Set[int]) -> Optional[str]:
    if step.op.type in _SCALES and made.intersection(step.inputs):
        for number, tensor in zip(step.inputs, step.op.inputs):
            scale = tf_compat.evaluate_constant(tensor) if number in program.fixed and tensor.shape.ndims == 0 else None
            for count in rows if scale else ():
                if scale == count or abs(scale * count - 1) < 1e-6:
                    return f"scales by {scale:g} what is computed from rows, and the batch of a device has {count} rows"
    return None


def _pick(program: Program, step: Step, has_rows: List[bool]) -> Optional[str]:
    is_fixed = step.op.type in _PICKS and has_rows[0] and program.fixed.issuperset(step.inputs[1:])
    return "takes rows of the batch by numbers that the model has" if is_fixed else None
