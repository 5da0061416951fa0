"""Repeated blocks of a model, such as the layers of a transformer, found by the name scopes they were built in.

Scopes are blocks if they compute the same: op types, FLOPs and parameters. Names only say where a block begins and
ends. If the data does not pass through the blocks one after the other, the model has no blocks.
"""

from collections import Counter
from typing import Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from epl.ir.view import GraphView
from epl.parallel.costs.costs import Costs

MIN_BLOCKS = 4  # fewer are no pattern
MIN_SHARE = 0.5  # of the time of the model; if the blocks take less, balance by time is better
_MAX_DEPTH = 20  # of name scopes

Block = List[int]  # nodes, in creation order


def find_blocks(view: GraphView, nodes: Collection[int], costs: Costs) -> List[Block]:
    """The largest set of equal scopes that make up most of the time, or [].

    Args:
      view: the graph.
      nodes: the forward ops to look at.
      costs: their costs.
    """
    total = sum(costs.step_seconds[node] for node in nodes)
    ordered = sorted(nodes)
    parts = {node: view.nodes[node].name.split("/") for node in ordered}
    for depth in range(1, _MAX_DEPTH):
        scopes: Dict[Tuple[str, ...], Block] = {}
        for node in ordered:
            if len(parts[node]) > depth:
                scopes.setdefault(tuple(parts[node][:depth]), []).append(node)
        equal: Dict[object, List[Block]] = {}
        for block in scopes.values():
            equal.setdefault(_signature(view, block, costs), []).append(block)
        best: List[Block] = max(equal.values(), key=lambda blocks: _seconds(blocks, costs), default=[])
        if len(best) >= MIN_BLOCKS and _seconds(best, costs) >= MIN_SHARE * total > 0:
            return best
    return []


def stages_of_blocks(
    blocks: Sequence[Block],
    of_node: Sequence[int],
    order: Sequence[int],
    producers: Mapping[int, Sequence[int]],
    fed: Collection[int],
    num_stages: int,
) -> Optional[Dict[int, int]]:
    """The stage of each unit when every stage gets the same number of blocks.

        units    embed  block 0  block 1  pool  block 2  block 3  head
        stages     0       0        0      0       1        1       1

    Args:
      blocks: as `find_blocks` gives them.
      of_node: the unit of each node.
      order: the units, in topological order.
      producers: the units that each unit takes something from.
      fed: the units that the data passes through. Others, such as variables, go with the unit that they stand before.
      num_stages: the number of stages.

    Returns:
      unit -> stage, or None: the number of blocks is no multiple of the stages, or the data does not pass through one
      block after the other.
    """
    if len(blocks) % num_stages:
        return None
    passed = _blocks_passed(_in_order(blocks, of_node, order, fed), order, producers, fed)
    if passed is None:
        return None
    stages: Dict[int, int] = {}
    following = num_stages - 1
    for unit in reversed(order):
        if unit in passed:
            following = max(0, passed[unit]) * num_stages // len(blocks)
        stages[unit] = following
    backwards = any(stages[producer] > stages[unit] for unit in order for producer in producers[unit])
    return None if backwards else stages


def _signature(view: GraphView, block: Block, costs: Costs) -> object:
    """The properties that equal blocks share. Ops that take no time may differ: the first layer may read a shape."""
    counts = Counter(view.types[node] for node in block if costs.seconds[node])
    flops = sum(costs.flops[node] for node in block)
    return (tuple(sorted(counts.items())), flops, sum(costs.parameters[node] for node in block))


def _seconds(blocks: Sequence[Block], costs: Costs) -> float:
    return sum(costs.step_seconds[node] for block in blocks for node in block)


def _in_order(
    blocks: Sequence[Block], of_node: Sequence[int], order: Sequence[int], fed: Collection[int]
) -> Dict[int, int]:
    """The block of each fed unit, numbered in the order in which the data meets them; the first of several."""
    rank = {unit: at for at, unit in enumerate(order)}
    fed_units = [{of_node[node] for node in block if of_node[node] in fed} for block in blocks]
    fed_units.sort(key=lambda units: min([rank[unit] for unit in units] or [-1]))
    number: Dict[int, int] = {}
    for at, units in enumerate(fed_units):
        for unit in units:
            number.setdefault(unit, at)
    return number


def _blocks_passed(
    number: Mapping[int, int], order: Sequence[int], producers: Mapping[int, Sequence[int]], fed: Collection[int]
) -> Optional[Dict[int, int]]:
    """The last block that the data has passed through at each fed unit, -1 for none; None if they are no chain."""
    passed: Dict[int, int] = {}
    linked = {0}
    for unit in order:
        if unit not in fed:
            continue
        before = max([passed[producer] for producer in producers[unit] if producer in passed] or [-1])
        own = number.get(unit, before)
        if own == before + 1:
            linked.add(own)
        passed[unit] = own
    return passed if len(linked.intersection(number.values())) == len(set(number.values())) else None
