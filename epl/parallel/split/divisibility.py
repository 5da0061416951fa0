"""The multiples in which a dimension can be cut that a reshape splits into several."""

from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.rules.registry import Shape


def granularities(
    ops: Sequence[tf.Operation], shape_of_tensor: Callable[[tf.Tensor], Optional[Shape]]
) -> Dict[int, Tuple[int, ...]]:
    """Maps sizes of dimensions that reshapes split or merge to the multiples in which they can be cut, 1 first.

    [n, 10 * 64] -> [n, 10, 64] is possible on shards if the dimension of 640 is cut in multiples of 64.
    """
    found: Dict[int, Set[int]] = {}
    for op in ops:
        if op.type == "Reshape":
            for one, other in _aligned(shape_of_tensor(op.inputs[0]) or (), shape_of_tensor(op.outputs[0]) or ()):
                whole, parts = (one, other) if len(one) == 1 else (other, one)
                if len(whole) == 1 and len(parts) > 1:
                    found.setdefault(whole[0], {1}).add(int(np.prod(parts[1:])))
    return {size: tuple(sorted(multiples)) for size, multiples in found.items()}


def _aligned(one: Shape, other: Shape) -> List[Tuple[List[int], List[int]]]:
    """Pairs of dimension groups with equal numbers of elements, from the last dimensions up to the first open one."""
    left, right = ([size for size in shape if size != 1] for shape in (one, other))
    groups: List[Tuple[List[int], List[int]]] = []
    while left and right:
        a: List[int] = []
        b: List[int] = []
        while not a or np.prod(a) != np.prod(b):
            shorter, rest = (a, left) if not a or (b and np.prod(a) < np.prod(b)) else (b, right)
            if not rest or not rest[-1]:
                return groups
            shorter.insert(0, rest.pop() or 0)
        groups.append((a, b))
    return groups
