"""Matched collectives: ops that are one collective, one for each rank of this process. They run when all have come."""

from typing import Dict, List, Sequence, Tuple

from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES


def collectives_of(view: GraphView, order: Sequence[int]) -> List[Tuple[int, ...]]:
    """The collectives of a step.

    Args:
      view: of the graph.
      order: the nodes that run; of ops of one rank with the same key, the first matches the first of other ranks.

    Returns:
      The nodes of each collective.
    """
    of_rank: Dict[Tuple[bytes, bytes, int], int] = {}
    found: Dict[Tuple[bytes, bytes, int], List[int]] = {}
    for node in order:
        if view.types[node] in COLLECTIVE_OP_TYPES:
            attrs = view.nodes[node].attr
            communicator, key, rank = attrs["communicator"].s, attrs["key"].s, attrs["rank"].i
            turn = of_rank.get((communicator, key, rank), 0)
            of_rank[communicator, key, rank] = turn + 1
            found.setdefault((communicator, key, turn), []).append(node)
    return [tuple(nodes) for nodes in found.values()]
