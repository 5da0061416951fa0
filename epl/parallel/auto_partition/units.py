"""The units of a partition (ops that must stay together), and the order in which they can be cut.

These are units: a loop, a conditional, a variable with all ops that take its reference or handle, colocated ops, a
staging area, and ops that would otherwise form a cycle. The order is topological. Ops that the data passes through come
in the order of creation. A variable comes where the data first meets it, however early it was created. An op that
computes from variables alone comes right after the last of them.

    created    w1 w2 l2(w1) l2(w2) x f g loss        f = x * w1, g = f * w2, loss = g + l2(w1) + l2(w2)
    ordered    x w1 l2(w1) f w2 l2(w2) g loss
"""

from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.ir.walks import topological_order
from epl.parallel.costs import loops as costs_loops

# Ops that bring data into the graph; they are always in the first stage. (A PlaceholderWithDefault may be anything.)
INPUTS = op_types.DATA_SOURCES | frozenset(["Placeholder", "PlaceholderV2"])

_LAST = float("inf")


class Units(NamedTuple):
    """A division of all nodes of a graph.

    Attributes:
      of_node: the unit of each node: the index of one of its members.
      members: unit -> its nodes, in creation order.
    """

    of_node: List[int]
    members: Dict[int, List[int]]


class Ordered(NamedTuple):
    """The units that a forward pass runs.

    Attributes:
      order: all of them, in topological order, the pinned ones first.
      producers: the units from which each unit takes data or control.
      pinned: the units that bring data into the graph, and the units that these need.
      fed: the units that the data passes through.
    """

    order: List[int]
    producers: Dict[int, Sequence[int]]
    pinned: Set[int]
    fed: Set[int]


class UnionFind:
    """Disjoint sets of 0 .. size - 1."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        """The member that represents the set of `item`."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, items: Iterable[int]) -> None:
        """Merges the sets of `items` into one."""
        first = -1
        for item in items:
            root = self.find(item)
            if first < 0:
                first = root
            self._parent[root] = first


def find_units(tf_graph: tf.Graph, view: GraphView, needed: Collection[int]) -> Units:
    """Divides the nodes of a graph into units; units with a node of `needed` form no cycles."""
    sets = UnionFind(len(view))
    _join_control_flow(view, sets)
    _join_handles(tf_graph, view, sets)
    _join_colocated(view, sets)
    _join_circles(view, sets, needed)
    members: Dict[int, List[int]] = {}
    of_node = [sets.find(node) for node in range(len(view))]
    for node, unit in enumerate(of_node):
        members.setdefault(unit, []).append(node)
    return Units(of_node, members)


def input_pipeline(view: GraphView, units: Units, nodes: Collection[int]) -> Set[int]:
    """The units that bring data into the graph, and the units that these need."""
    found: Set[int] = set()
    stack = [units.of_node[node] for node in nodes if view.types[node] in INPUTS]
    while stack:
        unit = stack.pop()
        if unit not in found:
            found.add(unit)
            stack.extend(units.of_node[p] for node in units.members[unit] for p in view.producers[node])
    return found


def order_units(view: GraphView, units: Units, needed: Collection[int]) -> Ordered:
    """The units with a node of `needed`, in the order that the module describes, the input pipeline first."""
    producers = _unit_producers(view, units, needed)
    created = _topological(producers)
    pinned = input_pipeline(view, units, needed)
    fed = _fed(units, producers, created, pinned, view)
    rank = {unit: at for at, unit in enumerate(created)}
    # A variable or constant comes with the first unit on the way of the data that needs it, directly or indirectly.
    position: Dict[int, float] = {unit: rank[unit] if unit in fed else _LAST for unit in created}
    for unit in reversed(created):
        for producer in producers[unit]:
            if producer not in fed:
                position[producer] = min(position[producer], position[unit])
    for unit in created:  # the units that compute from them follow
        if unit not in fed and producers[unit]:
            position[unit] = max(position[producer] for producer in producers[unit])
    order = sorted(created, key=lambda unit: (unit not in pinned, position[unit], unit in fed, rank[unit]))
    return Ordered(order, producers, pinned, fed)


# ---- what stays together


def _join_control_flow(view: GraphView, sets: UnionFind) -> None:
    """Joins each loop and each conditional with all ops inside."""
    frames = costs_loops.loop_frames(view)
    loops: Dict[str, List[int]] = {}
    for node, names in frames.items():
        loops.setdefault(names[0], []).append(node)
    for members in loops.values():
        sets.join(members)
    if any(node not in frames for node in view.of_types(["Switch", "RefSwitch"])):
        _join_conditionals(view, frames, sets)


def _join_conditionals(view: GraphView, frames: costs_loops.Frames, sets: UnionFind) -> None:
    """Joins the ops between a Switch and the Merge that closes it; a Switch of a loop belongs to the loop."""
    back = frozenset(["NextIteration", "RefNextIteration"])
    forward = {n: [p for p in producers if view.types[p] not in back] for n, producers in enumerate(view.producers)}
    depth: Dict[int, int] = {}  # number of conditionals around the output of a node
    for node in _topological(forward):
        around = max([depth[p] for p in forward[node]] or [0])
        if around:
            sets.join([node] + [p for p in forward[node] if depth[p]])
        if node not in frames:
            around += {"Switch": 1, "RefSwitch": 1, "Merge": -1, "RefMerge": -1}.get(view.types[node], 0)
        depth[node] = max(0, around)


def _join_handles(tf_graph: tf.Graph, view: GraphView, sets: UnionFind) -> None:
    """Joins references and handles with their variables: they cannot leave the device of the variable."""
    held: Set[Tuple[int, int]] = set()
    for node, definition in enumerate(view.nodes):
        for at, output in enumerate(tf_graph.get_operation_by_name(definition.name).outputs):
            if output.dtype == tf.resource or output.dtype != output.dtype.base_dtype:
                held.add((node, at))
    for node in range(len(view)):
        sets.join([node] + [producer for producer, output in data_inputs(view, node) if (producer, output) in held])


def _join_colocated(view: GraphView, sets: UnionFind) -> None:
    """Joins ops that are colocated with another op, and the ops of one staging area."""
    areas: Dict[bytes, int] = {}
    for node, definition in enumerate(view.nodes):
        if "_class" in definition.attr:
            names = [name[len(b"loc:@") :].decode() for name in definition.attr["_class"].list.s]
            sets.join([node] + [view.index[name] for name in names if name in view.index])
        if definition.op in op_types.STAGING:
            area = (
                definition.attr["container"].s + b"/" + (definition.attr["shared_name"].s or definition.name.encode())
            )
            sets.join([node, areas.setdefault(area, node)])


def _join_circles(view: GraphView, sets: UnionFind, needed: Collection[int]) -> None:
    """Joins units that need each other through ops of `needed` (strongly connected components, by Kosaraju)."""
    producers: Dict[int, List[int]] = {}
    consumers: Dict[int, List[int]] = {}
    for node in needed:
        unit = sets.find(node)
        for producer in view.producers[node]:
            other = sets.find(producer)
            if other != unit:
                producers.setdefault(unit, []).append(other)
                consumers.setdefault(other, []).append(unit)
    if len(_topological(_closed(producers))) == len(_closed(producers)):
        return
    finished: List[int] = []
    seen: Set[int] = set()
    for unit in _closed(producers):
        finished.extend(_finishing(unit, producers, seen))
    seen = set()
    for unit in reversed(finished):
        sets.join([unit] + _finishing(unit, consumers, seen))


def _finishing(start: int, edges: Dict[int, List[int]], seen: Set[int]) -> List[int]:
    """What `start` reaches and was not seen before, each one after everything that it reaches."""
    if start in seen:
        return []
    seen.add(start)
    order = []
    stack = [(start, iter(edges.get(start, ())))]
    while stack:
        unit, rest = stack[-1]
        following = next((other for other in rest if other not in seen), None)
        if following is None:
            order.append(unit)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(edges.get(following, ()))))
    return order


def _closed(edges: Dict[int, List[int]]) -> Dict[int, Sequence[int]]:
    """`edges` with an entry for every end point."""
    return {unit: edges.get(unit, ()) for unit in set(edges).union(*edges.values())} if edges else {}


# ---- order


def _unit_producers(view: GraphView, units: Units, needed: Collection[int]) -> Dict[int, Sequence[int]]:
    """For each unit with a node of `needed`, the units from which these nodes take data or control."""
    producers: Dict[int, Dict[int, None]] = {}
    for node in sorted(needed):
        unit = units.of_node[node]
        found = producers.setdefault(unit, {})
        for producer in view.producers[node]:
            if units.of_node[producer] != unit:
                found[units.of_node[producer]] = None
    return {unit: list(found) for unit, found in producers.items()}


def _topological(producers: Mapping[int, Sequence[int]]) -> List[int]:
    """The keys, each after its producers, otherwise in the order of the mapping, without those in cycles."""
    units = list(producers)
    waiting = {at: len(set(producers[unit])) for at, unit in enumerate(units)}
    rank = {unit: at for at, unit in enumerate(units)}
    consumers: Dict[int, List[int]] = {}
    for unit, found in producers.items():
        for producer in set(found):
            consumers.setdefault(rank[producer], []).append(rank[unit])
    return [units[at] for at in topological_order(waiting, lambda at: consumers.get(at, ()))]


def _fed(
    units: Units, producers: Mapping[int, Sequence[int]], created: Sequence[int], pinned: Set[int], view: GraphView
) -> Set[int]:
    """The units that the data passes through.

    If nothing brings data into the graph, constants and random numbers count as data.
    """
    fed = set(pinned)
    if not fed:
        held = {units.of_node[node] for node in view.of_types(op_types.VARIABLES)}
        fed = {unit for unit in created if not producers[unit] and unit not in held}
    for unit in created:
        if any(producer in fed for producer in producers[unit]):
            fed.add(unit)
    return fed
