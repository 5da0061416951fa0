"""A few cells of a grid of settings in which every pair of values meets."""

import itertools
from typing import Any, Callable, List, Sequence, Set, Tuple


def pairwise(grid: Sequence[Tuple[Any, ...]], cost: Callable[[Any], int]) -> List[Any]:
    """Chooses cells, cheap ones first, in which every pair of values meets that meets in the grid.

    Args:
        grid: tuples of settings, the same ones in each.
        cost: what a cell costs, to compare.

    Returns:
        The chosen cells.
    """
    ordered = sorted(grid, key=lambda cell: (cost(cell), cell))
    missing: Set[Tuple[Any, ...]] = set().union(*map(_pairs, ordered))
    chosen: List[Any] = []
    while missing:
        chosen.append(max(ordered, key=lambda cell: len(_pairs(cell) & missing)))
        missing -= _pairs(chosen[-1])
    return chosen


def _pairs(cell: Tuple[Any, ...]) -> Set[Tuple[Any, ...]]:
    return set(itertools.combinations(enumerate(cell), 2))
