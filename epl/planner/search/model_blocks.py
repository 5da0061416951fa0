"""The blocks of a model: parts of its forward pass, one after the other, that a plan may compute in different ways.

    forward pass   x   w1 conv  b1 add relu pool   w2 conv ...      in the order in which the data meets it
    blocks         [ block 0                     ][ block 1 ...     one begins before each variable of two dimensions

Units of `auto_partition` stay whole. Blocks that compute the same are a class: what is good for one is good for all.
"""

import bisect
import functools
import operator
from typing import Dict, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.auto_partition import units as partition_units
from epl.parallel.plan.strategy import ForwardOp
from epl.parallel.strategy.record import ForwardPass
from epl.utils import linear_partition

MOST_BLOCKS = 64  # of neighbours that take little time several are one block


class ModelBlocks(NamedTuple):
    """The blocks of a forward pass.

    Attributes:
      of_op: the block of each op.
      classes: the class of each block; those of equal blocks are equal.
      has_branches: whether a layer needs nothing of a block before its own, and could be computed at the same time.
    """

    of_op: Tuple[int, ...]
    classes: Tuple[int, ...]
    has_branches: bool

    def __len__(self) -> int:
        return len(self.classes)


def find_blocks(graph: Graph, found: ForwardPass, seconds: Sequence[float], most: int = MOST_BLOCKS) -> ModelBlocks:
    """The blocks of a model.

    Args:
      graph: the model.
      found: its forward pass.
      seconds: of each op, for the size of blocks where there are too many.
      most: the number of blocks, at most.
    """
    needed = found.view.ancestors(list(found.nodes))
    units = partition_units.find_units(graph.tf_graph, found.view, needed)
    order = partition_units.order_units(found.view, units, needed).order
    place_of = {unit: place for place, unit in enumerate(order)}
    places = [place_of[units.of_node[node]] for node in found.nodes]
    begins = {
        place for place, op in zip(places, found.ops) if op.type in op_types.VARIABLES and _is_matrix(graph, op.name)
    }
    starts = sorted(begins)[1:]  # what comes before the first layer belongs to it
    return joined([bisect.bisect_right(starts, place) for place in places], found.ops, seconds, most)


def joined(of_op: Sequence[int], ops: Sequence[ForwardOp], seconds: Sequence[float], most: int) -> ModelBlocks:
    """Blocks of which there are at most `most`: neighbours are joined so that the longest is as short as it can be."""
    count = max(of_op, default=0) + 1
    if count > most:
        times = [1e-12] * count
        for block, time in zip(of_op, seconds):
            times[block] += time
        cuts = linear_partition.cut_chain(times, [0] * (count - 1), most)
        assert cuts is not None  # there are more blocks than that
        of_block = [bisect.bisect_right(cuts.starts, block) - 1 for block in range(count)]
        of_op, count = [of_block[block] for block in of_op], most
    return ModelBlocks(tuple(of_op), _classes(of_op, ops, count), _has_branches(of_op, ops))


def _classes(of_op: Sequence[int], ops: Sequence[ForwardOp], count: int) -> Tuple[int, ...]:
    computed: List[List[Tuple[str, Tuple[str, ...]]]] = [[] for _ in range(count)]
    for block, op in zip(of_op, ops):
        computed[block].append((op.type, op.outputs))
    numbers: Dict[Tuple[Tuple[str, Tuple[str, ...]], ...], int] = {}
    return tuple(numbers.setdefault(tuple(one), len(numbers)) for one in computed)


def _has_branches(of_op: Sequence[int], ops: Sequence[ForwardOp]) -> bool:
    """Whether some op that computes data with weights needs no data of a block before its own."""
    needed: Dict[int, int] = {}  # by op that depends on data, a bit for each block that it takes data of
    weights: Set[int] = set()
    for number, (block, op) in enumerate(zip(of_op, ops)):
        producers = [int(one.partition(":")[0]) for one in op.inputs]
        data = [one for one in producers if one in needed]
        is_variable = op.type in op_types.VARIABLES
        if data or not (producers or is_variable or op.type == "Const"):
            needed[number] = functools.reduce(operator.or_, [needed[one] | 1 << of_op[one] for one in data], 0)
        elif is_variable or weights & set(producers):
            weights.add(number)
        every = (1 << block) - 1
        if data and weights & set(producers) and needed[number] & every != every:
            return True
    return False


def _is_matrix(graph: Graph, name: str) -> bool:
    shape = tf.TensorShape(graph.tf_graph.get_operation_by_name(name).get_attr("shape"))
    return shape.ndims is not None and shape.ndims > 1
