"""Topological order: each node after the nodes that it waits for (Kahn 1962), otherwise by number."""

import heapq
from typing import Callable, Iterable, List, Mapping


def topological_order(waiting: Mapping[int, int], released: Callable[[int], Iterable[int]]) -> List[int]:
    """Orders nodes; the nodes of a cycle, and all nodes after them, are left out.

    Args:
      waiting: by node, the number of nodes that it waits for.
      released: returns the nodes that wait for a node, each as often as it counts that node.
    """
    left = dict(waiting)
    ready = sorted(node for node, count in left.items() if not count)  # sorted, so a heap
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for other in released(node):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, other)
    return order
