"""Equal ranks are one class, which is simulated once; and which links their messages and collectives take.

    8 replicas on 4 x v100 and 4 x p100      2 classes      all collectives have one op for each class

Ranks are equal if their devices are of the same kinds and share the same cores, they have as many rows, the same
place in their group of a split, and groups and transfers that take as long. All ranks are taken to
send the same message at the same time: those that leave by a link of several ranks share it. Messages of one rank
follow each other on a link.
"""

import collections
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.machine import Device
from epl.planner.machine.routes import Channel
from epl.planner.prediction.cores import WorkerCores
from epl.planner.prediction.layout import StrategyLayout

_PROBES = (("all-reduce", 1.0), ("all-reduce", 1e9), ("all-gather", 1e9), ("all-to-all", 1e9))


class RankClass(NamedTuple):
    """Ranks that do the same at the same time.

    Attributes:
      ranks: their numbers.
      kinds: the kind of their device, by stage.
      rows: of a micro batch.
      group_rows: of a micro batch, of all ranks of their group of a split; `rows` without one.
      place: in their group; 0 if all ranks of a group do the same.
      group: the number of the class of their group; 0 without a split.
      cores: with which their device computes, by stage; None: each has its own.
    """

    ranks: Tuple[int, ...]
    kinds: Tuple[Device, ...]
    rows: int
    group_rows: int
    place: int
    group: int
    cores: Tuple[Optional[WorkerCores], ...]


def find_classes(
    layout: StrategyLayout,
    kinds: Sequence[Device],
    cores: Sequence[Optional[WorkerCores]],
    costs: CollectiveCosts,
    crossing: Sequence[Tuple[int, int]],
    groups_are_equal: bool,
    fold: bool = True,
) -> List[RankClass]:
    """The classes of the ranks, by their first rank.

    Args:
      layout: where the ranks are.
      kinds: the kind of each device of the machine.
      cores: of each device of the job, as `cores_of_job` finds them.
      costs: of collectives on the machine.
      crossing: (stage, later stage) between which data flows.
      groups_are_equal: whether the ranks of a group of a split do the same, but for their rows.
      fold: whether equal ranks are one class; else each is one by itself, for comparison.
    """
    groups = layout.groups or tuple((rank,) for rank in range(layout.ranks))
    transfers = _channels(layout, costs, crossing)
    keys: Dict[int, Tuple[Any, ...]] = {}
    rows_of: Dict[int, int] = {}
    group_of: Dict[int, int] = {}
    places: Dict[int, int] = {}
    signatures: Dict[Any, int] = {}
    for number, group in enumerate(groups):
        own = {}
        for place, rank in enumerate(group):
            devices = tuple((kinds[devices[rank]].name, cores[devices[rank]]) for devices in layout.stages)
            places[rank] = 0 if groups_are_equal else place
            rows_of[rank] = sum(layout.rows[one] for one in group)
            own[rank] = (devices, layout.rows[rank], places[rank], transfers[rank])
        signature: Any = (tuple(sorted(map(repr, own.values()))), _reach(layout, costs, groups, number))
        group_of.update(dict.fromkeys(group, signatures.setdefault(signature if fold else number, len(signatures))))
        for rank in group:
            keys[rank] = (group_of[rank], own[rank], rank if not fold else -1)
    members: Dict[Tuple[Any, ...], List[int]] = {}
    for rank in range(layout.ranks):
        members.setdefault(keys[rank], []).append(rank)
    return [
        RankClass(
            tuple(ranks),
            tuple(kinds[devices[ranks[0]]] for devices in layout.stages),
            layout.rows[ranks[0]],
            rows_of[ranks[0]],
            places[ranks[0]],
            group_of[ranks[0]],
            tuple(cores[devices[ranks[0]]] for devices in layout.stages),
        )
        for ranks in members.values()
    ]


def _channels(
    layout: StrategyLayout, costs: CollectiveCosts, crossing: Sequence[Tuple[int, int]]
) -> List[Tuple[Channel, ...]]:
    """By rank, what its messages between stages get: for each pair of stages forward, then backward."""
    found: List[List[Channel]] = [[] for _ in range(layout.ranks)]
    for pair in crossing:
        for source, target in (pair, pair[::-1]):
            messages = list(zip(layout.stages[source], layout.stages[target]))
            for rank, channel in enumerate(costs.routes.channel_of_each(messages)):
                found[rank].append(channel)
    return [tuple(channels) for channels in found]


def channel_between(layout: StrategyLayout, costs: CollectiveCosts, source: int, target: int, rank: int) -> Channel:
    """What the message of a rank from a stage to another one gets, while all other ranks send theirs."""
    return costs.routes.channel_of_each(list(zip(layout.stages[source], layout.stages[target])))[rank]


def _reach(layout: StrategyLayout, costs: CollectiveCosts, groups: Sequence[Tuple[int, ...]], number: int) -> Any:
    """How long some collectives of a group take, by stage."""
    if len(groups[number]) == 1:
        return ()
    found = []
    for devices in layout.stages:
        teams = [[devices[rank] for rank in group] for group in groups]
        factor = contention(costs, teams)[number]
        found += [costs.cost(name, teams[number], size).seconds * factor for name, size in _PROBES]
    return tuple(found)


def contention(costs: CollectiveCosts, teams: Sequence[Sequence[int]]) -> List[int]:
    """By team of devices, how many teams use its busiest outermost link at the same time."""
    ports = [ports_of(costs, team) for team in teams]
    users = collections.Counter(port for own in ports for port in own)
    return [max([users[port] for port in own], default=1) for own in ports]


def ports_of(costs: CollectiveCosts, devices: Sequence[int]) -> FrozenSet[int]:
    """The outermost links of the collectives of some devices."""
    ordered = costs.routes.ordered(devices)
    return costs.routes.outermost_ports(ordered) if len(ordered) > 1 else frozenset()


def shared_pools(ports: Sequence[FrozenSet[int]]) -> List[int]:
    """For each set of links the number of its pool: sets that have a link in common, also through others, share one."""
    pools = list(range(len(ports)))
    first_with: Dict[int, int] = {}

    def root(number: int) -> int:
        while pools[number] != number:
            number = pools[number]
        return number

    for number, own in enumerate(ports):
        for port in sorted(own):
            pools[root(number)] = root(first_with.setdefault(port, number))
    numbers: Dict[int, int] = {}
    return [numbers.setdefault(root(number), len(numbers)) for number in range(len(ports))]
