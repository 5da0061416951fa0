"""Evidence of the ops of a model on first dimensions: which cannot be the rows of a batch, and which cannot be cut.

A dimension cannot be the rows if it is dropped by ops that pick some of its elements (`keep[0]`), or by ops that keep
another dimension which may be the rows: a table that all rows attend to, `softmax(rows * table^T) * table`. It may
still be the rows if the model takes the diagonal, as a loss over pairs of one batch does.

A dimension cannot be cut if values that are fed, and would be cut themselves, index its rows.
"""

import itertools
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from epl.parallel.sharding.forward_shapes import ASKS_SHAPE, ForwardShapes, Numbers, Shape, Shapes
from epl.parallel.sharding.row_numbers import counts_over_all, counts_rows

_CROSS_ENTROPIES = frozenset(["SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"])
_DIAGONALS = frozenset(["MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"])
GATHERS = frozenset(["Gather", "GatherV2", "GatherNd"])
# Op type -> the input that has the group of each row.
_GROUPS = {
    **{"UnsortedSegment" + how: 1 for how in ("Sum", "Max", "Min", "Prod")},
    **{"Segment" + how: 1 for how in ("Sum", "Mean", "Max", "Min", "Prod")},
    "ScatterNd": 0,
}
# Ops that take each row by itself, or hide what happens to the rows.
_OF_EACH = frozenset(
    ["Enter", "If", "PartitionedCall", "Select", "SelectV2", "StatefulPartitionedCall", "StatelessIf"]
    + ["StatelessWhile", "Switch", "Where", "While"]
)
_PICKS = frozenset(["StridedSlice", "Slice", "Gather", "GatherV2", "GatherNd", "ResourceGather"])


def find_no_rows(forward: ForwardShapes, shapes: Shapes, candidates: Set[int], firsts: Set[int]) -> Set[int]:
    """The numbers of `candidates` that cannot be the rows, given that others of `firsts` may be."""
    candidates = candidates - _paired(forward, shapes, candidates, firsts)
    picked: Dict[int, List[bool]] = {number: [] for number in candidates}
    beside: Dict[int, Set[int]] = {number: set() for number in candidates}
    for name, tensors in forward.inputs.items():
        op_type = forward.types[name]
        if op_type in ASKS_SHAPE or name in forward.in_batches:
            continue
        taken = {size for tensor in tensors for size in shapes.get(tensor) or ()}
        outputs = [output for output in _outputs(name, shapes) if output in forward.taken]
        given = {size for output in outputs for size in shapes[output] or ()}
        is_known = not _is_open(shapes, outputs)
        for number in candidates:
            if not _holds(taken, number) or _holds(given, number):
                continue
            picked[number].append(is_known and op_type in _PICKS)
            if is_known and op_type not in _GROUPS:  # its output has groups, which its inputs do not have
                beside[number].update(other for other in firsts if other != number and _holds(given, other))
    only_picked = {number for number, are in picked.items() if are and all(are)}
    summed = {n for n, others in beside.items() if any(n not in beside.get(other, ()) for other in others)}
    return only_picked if firsts == only_picked | summed else only_picked | summed


def find_vectors(
    forward: ForwardShapes,
    shapes: Shapes,
    sizes: Mapping[str, Tuple[int, ...]],
    numbers: Numbers,
    candidates: Set[int],
    others: Set[int],
) -> Set[int]:
    """The candidates that only one vector has, of which the model takes some values by constant indices.

    A model may take the first row of a batch like that, too, as in `x[:, : lengths[0]]`. So all that it computes from
    the vector must lose the dimension in the end; and there must be `others` that may be the rows.
    """
    vectors = {
        of[0]
        for name, of in sizes.items()
        if len(of) == 1 and name in forward.indexed and _goes_away(forward, shapes, name)
    }
    alone = {number for number in vectors & candidates if sum(one % number == 0 for one in numbers.values()) == 1}
    return alone if others - alone else set()


def find_named_rows(
    forward: ForwardShapes, shapes: Shapes, candidates: Set[int], firsts: Set[int]
) -> Tuple[Set[Tuple[int, Optional[int]]], Set[int]]:
    """The `grouped` of Dimensions, and the candidates whose rows fed values index.

    Groups whose number the graph does not say count only where they meet others of `firsts`.
    """
    grouped: Set[Tuple[int, Optional[int]]] = set()
    picked: Set[int] = set()
    for name, tensors in forward.inputs.items():
        op_type = forward.types[name]
        if op_type not in _GROUPS and not (op_type in GATHERS and forward.takes_rows(name)):
            continue
        ids = tensors[_GROUPS.get(op_type, 1)]
        rows, groups, of_first = (_first(shapes.get(one)) for one in (ids, name + ":0", tensors[0]))
        if rows not in candidates or not forward.as_fed(ids):
            continue
        if op_type in GATHERS:
            picked |= candidates & {of_first}
        elif groups in candidates or (groups is None and _meets_others(forward, shapes, name, firsts - {rows})):
            grouped.add((rows, groups))
    return grouped, picked.union(rows for rows, groups in grouped if rows == groups)


def _paired(forward: ForwardShapes, shapes: Shapes, candidates: Set[int], firsts: Set[int]) -> Set[int]:
    """The candidates whose rows the model pairs with the rows at the same positions.

    It takes the diagonal of a matrix with an entry for each pair; or has the rows as classes of a cross entropy whose
    labels may count the rows of the batch. If the number of classes is no candidate, all that are not larger may be so.
    """
    found: Set[int] = set()
    for name, tensors in forward.inputs.items():
        op_type = forward.types[name]
        entries = (shapes.get(tensors[0]) or ())[-2:] if tensors else ()
        pairs = {number for number in firsts if _holds(entries, number)}
        if op_type in _DIAGONALS or (len(pairs) > 1 and op_type in GATHERS and _takes_diagonal(forward, shapes, name)):
            found |= candidates & pairs
        elif op_type in _CROSS_ENTROPIES and not counts_over_all(forward, tensors[1]):
            classes = entries[-1] if entries else None
            fitting = {number for number in candidates if classes is None or number <= classes}
            found |= candidates.intersection(entries) if classes in candidates else fitting
    return found


def _takes_diagonal(forward: ForwardShapes, shapes: Shapes, gather: str) -> bool:
    """Whether a gather takes entries of a matrix, or of a flat one, by row numbers that the model computes itself."""
    entries, ids = forward.inputs[gather][:2]
    if forward.types[gather] == "GatherNd":
        takes_entries = (shapes.get(ids) or (0,))[-1] != 1
    else:
        takes_entries = gather in forward.in_batches or len(shapes.get(entries) or ()) == 1
    return takes_entries and counts_rows(forward, ids)


def _goes_away(forward: ForwardShapes, shapes: Shapes, vector: str) -> bool:
    """Whether all tensors computed from a vector that have its dimension are known to lose it in the end."""
    number = _first(shapes[vector])
    takers = _takers(forward)
    found = {vector}
    stack = [vector]
    while stack:
        for name in takers.get(stack.pop(), ()):
            outputs = [output for output in _outputs(name, shapes) if output in forward.taken]
            if number is None or forward.types[name] in _OF_EACH or _is_open(shapes, outputs):
                return False
            new = {output for output in outputs if _holds(shapes[output] or (), number)} - found
            found |= new
            stack += new
    return True


def _meets_others(forward: ForwardShapes, shapes: Shapes, grouping: str, others: Set[int]) -> bool:
    """Whether groups, or tensors computed from them, meet a dimension of `others`, or other fed numbers index them.

    They do not if the numbers that grouped the rows gather the groups back to the rows, or if they are summed away.
    """
    takers = _takers(forward)
    numbers = forward.as_fed(forward.inputs[grouping][_GROUPS[forward.types[grouping]]])
    found = {grouping + ":0"}
    stack = list(found)
    while stack:
        tensor = stack.pop()
        for name in takers.get(tensor, ()):
            tensors = forward.inputs[name]
            pickers = forward.as_fed(tensors[1]) if forward.types[name] in GATHERS and tensors[0] == tensor else set()
            if pickers:
                if pickers != numbers:
                    return True
                continue
            outputs = [output for output in _outputs(name, shapes) if output in forward.taken]
            beside = [size for one in tensors + outputs if one not in found for size in shapes.get(one) or ()]
            if any(_holds(beside, other) for other in others):
                return True
            new = {output for output in outputs if _is_open(shapes, [output])} - found
            found |= new
            stack += new
    return False


def _takers(forward: ForwardShapes) -> Dict[str, List[str]]:
    """Name of a tensor -> names of the nodes that take its values."""
    takers: Dict[str, List[str]] = {}
    for name, tensors in forward.inputs.items():
        for tensor in tensors if forward.types[name] not in ASKS_SHAPE else ():
            takers.setdefault(tensor, []).append(name)
    return takers


def _is_open(shapes: Shapes, tensors: Iterable[str]) -> bool:
    """Whether a dimension of any of the tensors is unknown."""
    return any(shape is None or None in shape for shape in (shapes[tensor] for tensor in tensors))


def _first(shape: Shape) -> Optional[int]:
    return shape[0] if shape else None


def _holds(sizes: Iterable[Optional[int]], number: int) -> bool:
    return any(size is not None and size > 0 and size % number == 0 for size in sizes)


def _outputs(name: str, shapes: Shapes) -> Iterator[str]:
    for at in itertools.count():
        output = f"{name}:{at}"
        if output not in shapes:
            return
        yield output
