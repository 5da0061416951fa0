"""How a value of a split grows when every rank is fed the same rows: where nothing is trained, each of n ranks has all.

    rows 0 1 2  on each of n ranks       mean, largest: as of one device        sum, count: n times that

A value that is n^k times as large as on one device has the growth k.
"""

from typing import Dict, List, Optional

from epl.parallel.split.program import Program, Step

# Over the batch, of values that do not grow.
_SUMS = frozenset(["Sum", "L2Loss", "MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum"])
_SAME = frozenset(["Mean", "Max", "Min", "All", "Any"])
# Of values that grow.
_LINEAR = frozenset(
    ["Identity", "StopGradient", "Cast", "Neg", "Reshape", "Squeeze", "ExpandDims", "Transpose", "Sum", "Mean"]
)
_ADDITIONS = frozenset(["Add", "AddV2", "AddN", "Sub"])
_PRODUCTS = {"Mul": 1, "RealDiv": -1, "Div": -1, "DivNoNan": -1}


def growth_of_values(program: Program) -> Dict[int, int]:
    """The growth of the values that grow, by number; those of which it is not known are left out."""
    known: Dict[int, Optional[int]] = {}
    for step in program.steps:
        found = _growth(program, step, [known.get(number, 0) for number in step.inputs])
        known.update(dict.fromkeys(step.outputs, found))
    return {number: growth for number, growth in known.items() if growth}


def _growth(program: Program, step: Step, of_inputs: List[Optional[int]]) -> Optional[int]:
    """Of the outputs of an op; None if not known."""
    kind, first = step.op.type, of_inputs[0] if of_inputs else 0
    if None in of_inputs or -1 in step.inputs:
        return None
    has_rows = [number >= 0 and program.values[number].batch is not None for number in step.inputs]
    if any(has_rows) and any(program.values[number].batch is None for number in step.outputs):
        return None if any(of_inputs) else 1 if kind in _SUMS else 0 if kind in _SAME else None
    if not any(of_inputs):
        return 0
    if any(program.values[number].tensor.dtype.is_bool for number in step.outputs):
        return None
    if kind in _LINEAR and not any(of_inputs[1:]) or kind in _ADDITIONS and len(set(of_inputs)) == 1:
        return first
    if kind in _PRODUCTS:
        assert first is not None and of_inputs[1] is not None
        return first + _PRODUCTS[kind] * of_inputs[1]
    return None
