"""How long the transfers and collectives of a step take, and which link carries them.

All ranks are taken to send the same message at the same time: what leaves by a link of several ranks shares it. The
messages of one rank follow each other on a link, and so do its collectives that use the same links. Transfers and
collectives are taken not to disturb each other, nor exchanges of splits, those of other stages, and the gradients of
their shards; nor collectives of rows, which have communicators of their own, and those of gradients.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.planner.machine.collective_algorithms import FLAT, NCCL
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.routes import Channel
from epl.planner.prediction.host_memory import between_hosts
from epl.planner.prediction.layout import StrategyLayout
from epl.planner.prediction.program_builder import Key
from epl.planner.prediction.rank_classes import RankClass, contention, ports_of, shared_pools
from epl.planner.simulator.model_costs import RowExchange


class Carried(NamedTuple):
    """How a message or a collective is carried.

    Attributes:
      seconds: how long it takes.
      pool: names the link.
      devices: how many take part.
    """

    seconds: float
    pool: Key
    devices: int


class Traffic:
    """The transfers and collectives of the classes of a layout."""

    def __init__(self, layout: StrategyLayout, costs: CollectiveCosts, classes: Sequence[RankClass]) -> None:
        self._layout, self._costs, self._classes = layout, costs, classes
        self._costs_of_hosts: Optional[CollectiveCosts] = None
        self._channels: Dict[Tuple[int, int], List[Channel]] = {}
        self._group_of = {rank: group for group in layout.groups for rank in group}
        # By stage. The ranks with the same place in all groups hold the same shards.
        self._groups = [_devices(devices, layout.groups) for devices in layout.stages]
        self._holders = [_devices(devices, list(zip(*layout.groups))) for devices in layout.stages]
        self._contention = [contention(costs, groups) for groups in self._groups]
        self._contention_of_holders = [contention(costs, holders) for holders in self._holders]
        ports = [ports_of(costs, devices) for devices in layout.stages]
        self._pool_of_stage = shared_pools(ports)
        self._shares_links = [
            [bool(ports_of(costs, group) & of_stage) for group in groups]
            for groups, of_stage in zip(self._groups, ports)
        ]

    def transfer(self, number: int, source: int, target: int, nbytes: float) -> Carried:
        """A message of each rank of a class from a stage to another one."""
        pair = source, target
        if pair not in self._channels:
            messages = list(zip(self._layout.stages[source], self._layout.stages[target]))
            self._channels[pair] = self._costs.routes.channel_of_each(messages)
        one = self._classes[number]
        rank = one.ranks[0]
        message = self._layout.stages[source][rank], self._layout.stages[target][rank]
        channel = self._channels[pair][rank]
        pool = ("link", number, self._costs.routes.leaving_port(message))
        return Carried(channel.latency + nbytes / channel.bandwidth, pool, 2 * len(one.ranks))

    def of_stage(self, collective: str, number: int, stage: int, nbytes: float) -> Carried:
        """A collective of all ranks of a stage, as a class takes part in it."""
        devices = self._layout.stages[stage]
        seconds = self._costs.cost(collective, devices, nbytes).seconds
        return Carried(seconds, self._pool(number, stage), len(devices))

    def of_rows(self, exchange: RowExchange, number: int, stage: int, nbytes: float) -> Carried:
        """A collective of rows; those of one communicator follow each other."""
        carried = self.of_stage(exchange.collective, number, stage, nbytes)
        return carried._replace(pool=(*carried.pool, exchange.decision, exchange.way))

    def of_hosts(self, collective: str, number: int, stage: int, nbytes: float) -> Carried:
        """The same as `of_stage`, of what is in the memory of the computers."""
        if self._costs_of_hosts is None:
            transport = FLAT if self._costs.transport == NCCL else self._costs.transport
            hosts = between_hosts(self._costs.machine)
            self._costs_of_hosts = CollectiveCosts(hosts, transport, self._costs.devices)
        devices = self._layout.stages[stage]
        seconds = self._costs_of_hosts.cost(collective, devices, nbytes).seconds
        return Carried(seconds, self._pool(number, stage), len(devices))

    def of_holders(self, collective: str, number: int, stage: int, nbytes: float) -> Carried:
        """A collective of the ranks with the same place in all groups, while those of the other places have theirs."""
        place = self._classes[number].place
        devices = self._holders[stage][place]
        seconds = self._costs.cost(collective, devices, nbytes).seconds * self._contention_of_holders[stage][place]
        # The places divide the links in these seconds, so they do not wait for each other as well.
        pool = self._pool(number, stage)
        return Carried(seconds, (*pool, place) if len(self._holders[stage]) > 1 else pool, len(devices))

    def of_group(self, collective: str, number: int, stage: int, nbytes: float) -> Carried:
        """A collective of the group of a split of each rank of a class, while the other groups have theirs."""
        one = self._classes[number]
        at = self._layout.groups.index(self._group_of[one.ranks[0]])
        devices = self._groups[stage][at]
        seconds = self._costs.cost(collective, devices, nbytes).seconds * self._contention[stage][at]
        pool = self._pool(number, stage) if self._shares_links[stage][at] else ("group", stage, one.group)
        return Carried(seconds, pool, len(devices))

    def _pool(self, number: int, stage: int) -> Key:
        """The links by which a class reaches the other ranks of a stage; a collective holds those of all classes."""
        return "collectives", self._pool_of_stage[stage], self._classes[number].group


def _devices(devices: Sequence[int], teams: Sequence[Sequence[int]]) -> List[List[int]]:
    """The devices of teams of ranks."""
    return [[devices[rank] for rank in ranks] for ranks in teams]
