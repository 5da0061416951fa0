"""The algorithms of NCCL as steps: rings, and for all-reduce a tree, also one over machines.

A ring visits devices in the order of the levels, so one message leaves and one enters each node. Where nodes have
several network adapters, as many rings as devices of a node leave each node from different devices:

    node 0  0 1 2 3   node 1  4 5 6 7        ring 0    0 1 2 3 | 4 5 6 7 |        ring 1    1 2 3 0 | 5 6 7 4 |

Its tree over machines is counted as a reduce-scatter in each node, an all-reduce of the shards between nodes, and an
all-gather in each node: a node sends and receives as many bytes so.
"""

from typing import List, Optional, Sequence, Tuple

from epl.planner.machine.collective_steps import (
    Algorithm,
    Devices,
    Fastest,
    HopChain,
    Rounds,
    RoundSequence,
    each,
    equally_many,
    merged,
    teams_of,
    words,
)
from epl.planner.machine.routes import Message, Routes


class NcclAlgorithms:
    """Each method takes ordered devices, at least two."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def build(self, kind: str, devices: Devices) -> Algorithm:
        """The algorithms of a kind of collective."""
        if kind == "all-reduce":
            return self._all_reduce(devices)
        if kind == "broadcast":
            return Fastest((("ring", self._chain(kind, devices, 1.0)),))
        if kind == "all-to-all":
            direct = Rounds(
                words(kind, "direct", ""), len(devices) - 1, 1.0 / len(devices), self._routes.exchange([devices])
            )
            return Fastest((("direct", direct),))
        return Fastest(tuple(("ring", one) for one in self._rings(kind, devices, 1)))

    def _all_reduce(self, devices: Devices) -> Algorithm:
        options: List[Tuple[str, Algorithm]] = [("ring", one) for one in self._rings("all-reduce", devices, 2)]
        options.append(("tree", self._tree([devices], 1.0, "")))
        nested = self._over_parts(devices)
        return Fastest((*options, *([("hierarchical", nested)] if nested else [])))

    def _over_parts(self, devices: Devices) -> Optional[Algorithm]:
        parts = self._routes.parts_inside(devices)
        between = self._routes.between(parts) if parts else ""
        if parts and equally_many(parts):
            scatter = each(lambda part: self._ring("reduce-scatter", [part], 1, 1.0, ""), parts)
            gather = each(lambda part: self._ring("all-gather", [part], 1, 1.0, ""), parts)
            return RoundSequence((scatter, self._across(teams_of(parts), 1.0 / len(parts[0]), between), gather))
        if parts:
            first = tuple(part[0] for part in parts)
            reduce = each(lambda part: self._chain("reduce", part, 1.0), parts)
            broadcast = each(lambda part: self._chain("broadcast", part, 1.0), parts)
            return RoundSequence((reduce, self._across([first], 1.0, between), broadcast))
        return None

    def _across(self, teams: Sequence[Devices], share: float, where: str) -> Algorithm:
        ring = self._ring("all-reduce", teams, 2, share, where)
        return Fastest((("ring", ring), ("tree", self._tree(teams, share, where))))

    def _rings(self, what: str, devices: Devices, turns: int) -> List[Rounds]:
        """One ring, and as many as a node has devices."""
        found = [self._ring(what, [devices], turns, 1.0, "")]
        parts = self._routes.parts_inside(devices)
        if parts and equally_many(parts):
            count = len(parts[0])
            rings = [sum((part[turn:] + part[:turn] for part in parts), ()) for turn in range(count)]
            found.append(self._ring(what, rings, turns, 1.0 / count, f" by {count} rings"))
        return found

    def _ring(self, what: str, teams: Sequence[Devices], turns: int, share: float, where: str) -> Rounds:
        size = len(teams[0])
        channels = self._routes.channels([hop for team in teams for hop in zip(team, team[1:] + team[:1])])
        return Rounds(words(what, "ring", where), turns * (size - 1), share / size, channels)

    def _chain(self, what: str, devices: Devices, share: float) -> HopChain:
        hops = self._routes.channels(list(zip(devices, devices[1:])))
        return HopChain(words(what, "ring", ""), len(devices) - 1, share, hops)

    def _tree(self, teams: Sequence[Devices], share: float, where: str) -> RoundSequence:
        """A binomial tree, up and down: in each round, every device with bytes sends them half as far as before."""
        size = len(teams[0])
        distance = 1 << (size - 1).bit_length()
        rounds = []
        while distance > 1:
            distance //= 2
            messages: List[Message] = []
            for team in teams:
                messages += [(team[at], team[at + distance]) for at in range(0, size - distance, 2 * distance)]
            rounds.append(Rounds(words("all-reduce", "tree", where), 2, share, self._routes.channels(messages)))
        return RoundSequence(tuple(merged(rounds)))
