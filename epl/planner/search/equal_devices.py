"""Names of the devices of a group by which plans that differ in names alone are one plan.

    2 nodes of 2 equal devices      blocks on devices 3, 3, 2, 0      are named      0, 0, 1, 2

The devices of a group are the leaves of a tree: nodes, then the groups of their links, then devices. Parts of it that
have the same shape, with devices of the same kinds, can change places: what a plan names first is the first of them.
"""

import itertools
from typing import Dict, Hashable, List, Sequence, Set, Tuple

from epl.planner.machine.machine import Machine
from epl.planner.machine.routes import Routes

_Part = Tuple[Hashable, ...]  # of the tree: the way to it from the root, which is ()


class EqualDevices:
    """The devices of the groups of one job.

    A place of a group stands for the devices there of all groups, which do the same.
    """

    def __init__(self, machine: Machine, devices: Sequence[int]) -> None:
        """Takes a job.

        Args:
          machine: of the job.
          devices: of each rank, its number in the machine.
        """
        kinds, routes = machine.placed_devices(), Routes(machine)
        self._ways = [routes.path(device) for device in devices]
        nodes = [machine.nodes[way[0]] for way in self._ways]
        links = [(tuple(level.link for level in node.levels), node.network) for node in nodes]
        self._leaves = list(zip([kinds[device] for device in devices], links))
        self._trees: Dict[Tuple[int, Tuple[Hashable, ...]], _Tree] = {}

    def names(self, group: int, named: Sequence[int], shares: Sequence[Hashable]) -> Dict[int, int]:
        """The name of each place that a plan names.

        Args:
          group: devices of a group.
          named: places, in the order in which the plan names them first.
          shares: by place, what it has of all else in the plan: places of different shares are not equal.
        """
        key = group, tuple(shares)
        if key not in self._trees:
            ways = [tuple(itertools.zip_longest(*self._ways[place::group])) for place in range(group)]
            leaves = [(tuple(self._leaves[place::group]), share) for place, share in enumerate(shares)]
            self._trees[key] = _Tree(ways, leaves)
        return self._trees[key].names(named)


class _Tree:
    def __init__(self, ways: Sequence[_Part], leaves: Sequence[Hashable]) -> None:
        """Takes the way to each place, which need not be of the same length, and what it is."""
        depth = max(map(len, ways))
        self._ways = [(*way, *[None] * (depth - len(way)), place) for place, way in enumerate(ways)]
        self._inside: Dict[_Part, List[_Part]] = {}
        self._shapes: Dict[_Part, int] = {}
        numbers: Dict[Hashable, int] = {}
        for way, leaf in zip(self._ways, leaves):
            self._shapes[way] = numbers.setdefault((leaf,), len(numbers))
        for length in range(depth, -1, -1):
            for way in self._ways:
                inside = self._inside.setdefault(way[:length], [])
                if way[: length + 1] not in inside:
                    inside.append(way[: length + 1])
            for part in {way[:length]: None for way in self._ways}:
                shape = tuple(sorted(self._shapes[one] for one in self._inside[part]))
                self._shapes[part] = numbers.setdefault(shape, len(numbers))

    def names(self, named: Sequence[int]) -> Dict[int, int]:
        found: Dict[_Part, _Part] = {(): ()}
        taken: Set[_Part] = set()
        for place in named:
            way = self._ways[place]
            for length in range(1, len(way) + 1):
                part = way[:length]
                if part not in found:
                    equal = (one for one in self._inside[found[way[: length - 1]]] if self._is_free(one, part, taken))
                    found[part] = next(equal)
                    taken.add(found[part])
        return {place: self._ways.index(found[self._ways[place]]) for place in named}

    def _is_free(self, part: _Part, for_part: _Part, taken: Set[_Part]) -> bool:
        return part not in taken and self._shapes[part] == self._shapes[for_part]
