"""Which link each message between two devices takes, and what share of it: the part of the cost model that knows links.

    one round of a ring over 2 nodes of 2 devices      0 -> 1 -> 2 -> 3 -> 0
      0 -> 1, 2 -> 3    over the link inside the node
      1 -> 2, 3 -> 0    over the network: each node sends one message and receives one, so each has all of the link

Messages that leave the same shared link, or come in over it, at the same time divide its bandwidth equally. Both
directions of a link work at the same time.
"""

import collections
import itertools
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from epl.planner.machine.machine import Interconnect, LinkLevel, Machine, MachineNode
from epl.utils.errors import MachineError

Message = Tuple[int, int]  # from device, to device


class Channel(NamedTuple):
    """What one message gets of the links on its way.

    Attributes:
      link: name of the slower one.
      latency: seconds.
      bandwidth: bytes per second, of the share that it gets.
    """

    link: str
    latency: float
    bandwidth: float


class Routes:
    """The way between any two devices of a machine.

    Attributes:
      machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # For each device: its node, its group in each level but the outermost, from the outside in, and itself. Two
        # devices meet over the link of the first position in which they differ.
        self._paths: List[Tuple[int, ...]] = []
        # For each device: position -> its port there. Devices that share a link have the same port.
        self._ports: List[Dict[int, int]] = []
        self._links: List[Interconnect] = []  # by port
        ids: Dict[Tuple[int, ...], int] = {}
        links = {link.name: link for link in machine.links}
        for number, node in enumerate(machine.nodes):
            for device in range(len(node.devices)):
                self._paths.append(_path(node, number, device))
                ports = {}
                for at, link, place in _places(node, number, device, links):
                    ports[at] = ids.setdefault(place, len(ids))
                    if ports[at] == len(self._links):
                        self._links.append(link)
                self._ports.append(ports)

    def path(self, device: int) -> Tuple[int, ...]:
        """The node of a device, its group in each level but the outermost, from the outside in, and itself."""
        return self._paths[device]

    def ordered(self, devices: Sequence[int]) -> Tuple[int, ...]:
        """The devices, each once, so that those that are near each other follow each other.

        Raises:
          MachineError: the machine lacks one, or one stands twice.
        """
        for device in devices:
            if not 0 <= device < len(self._paths):
                last = len(self._paths) - 1
                raise MachineError(
                    f"machine {self.machine.name} has no device {device}: it has devices 0 to {last}. Name fewer, "
                    "or add some to the machine."
                )
        if len(set(devices)) < len(devices):
            raise MachineError(f"devices {list(devices)} name one twice; expected each once.")
        return tuple(sorted(devices, key=lambda device: self._paths[device]))

    def parts(self, devices: Sequence[int]) -> List[Tuple[int, ...]]:
        """Ordered devices, divided by the outermost link between them: by nodes if they are in several."""
        at = self._first_difference(devices[0], devices[-1])
        return [tuple(part) for _, part in itertools.groupby(devices, key=lambda device: self._paths[device][at])]

    def in_several_nodes(self, devices: Sequence[int]) -> bool:
        """Whether devices are in more than one node."""
        return len({self._paths[device][0] for device in devices}) > 1

    def parts_inside(self, devices: Sequence[int]) -> List[Tuple[int, ...]]:
        """The same as `parts`, of which some have several devices; none if there is no level inside the outermost."""
        if len(devices) < 3:
            return []
        parts = self.parts(devices)
        return parts if len(parts) < len(devices) else []

    def between(self, parts: Sequence[Sequence[int]]) -> str:
        """Between what the parts are, for people."""
        nodes = self.in_several_nodes([part[0] for part in parts])
        return f" between {len(parts)} {'nodes' if nodes else 'groups'}"

    def channels(self, messages: Sequence[Message]) -> FrozenSet[Channel]:
        """What each of some messages gets that are sent at the same time; equal ones count once."""
        return frozenset(self.channel_of_each(messages))

    def channel_of_each(self, messages: Sequence[Message]) -> List[Channel]:
        """What each of some messages gets that are sent at the same time, in their order."""
        ports = []
        for source, target in messages:
            at = self._first_difference(source, target)
            ports.append((self._ports[source][at], self._ports[target][at]))
        out = collections.Counter(leaves for leaves, _ in ports)
        into = collections.Counter(enters for _, enters in ports)
        known: Dict[Tuple[int, int], Channel] = {}
        for leaves, enters in ports:
            if (leaves, enters) not in known:
                links = self._links[leaves], self._links[enters]
                known[leaves, enters] = _channel(links[0], out[leaves], links[1], into[enters])
        return [known[pair] for pair in ports]

    def leaving_port(self, message: Message) -> int:
        """The number of the link by which a message leaves its device; devices that share one have the same."""
        return self._ports[message[0]][self._first_difference(*message)]

    def outermost_ports(self, devices: Sequence[int]) -> FrozenSet[int]:
        """The numbers of the links by which devices, in their order, reach those that are farthest away."""
        at = self._first_difference(devices[0], devices[-1])
        return frozenset(self._ports[device][at] for device in devices)

    def exchange(self, teams: Sequence[Sequence[int]]) -> FrozenSet[Channel]:
        """The mean channel of the messages by which each device of a team sends an equal part to each other one.

        The busiest link sets the bandwidth, the device that waits longest for first bytes sets the latency.

        Args:
          teams: devices that exchange parts; the teams do so at the same time, and have equally many.
        """
        messages: Dict[int, int] = collections.Counter()
        longest = 0.0
        for team in teams:
            depth = max(len(self._paths[device]) for device in team)
            inside = [collections.Counter(self._paths[d][:length] for d in team) for length in range(depth + 1)]
            for device in team:
                path = self._paths[device]
                waits = 0.0
                for at, port in self._ports[device].items():
                    others = inside[at][path[:at]] - inside[at + 1][path[: at + 1]]
                    messages[port] += others
                    waits += others * self._links[port].latency
                longest = max(longest, waits)
        rounds = len(teams[0]) - 1
        port = max(messages, key=lambda port: messages[port] / self._links[port].bandwidth.reached)
        link = self._links[port]
        return frozenset([Channel(link.name, longest / rounds, link.bandwidth.reached * rounds / messages[port])])

    def _first_difference(self, one: int, other: int) -> int:
        """The first position in which the paths of two devices differ."""
        return next(at for at, (a, b) in enumerate(zip(self._paths[one], self._paths[other])) if a != b)


def _path(node: MachineNode, number: int, device: int) -> Tuple[int, ...]:
    groups = [_group(level, device) for level in reversed(node.levels[:-1])]
    return (number,) + tuple(-1 - device if group is None else group for group in groups) + (device,)


def _places(
    node: MachineNode, number: int, device: int, links: Dict[str, Interconnect]
) -> Iterator[Tuple[int, Interconnect, Tuple[int, ...]]]:
    """(position in the path, link, what devices that share the link have in common) of each port of a device."""
    if node.network:
        link = links[node.network]
        yield 0, link, (number, 0, 0, device // (link.shared_by or len(node.devices)))
    for at, level in enumerate(reversed(node.levels), 1):
        group = _group(level, device)
        if group is not None:
            link, members = links[level.link], level.groups[group]
            yield at, link, (number, at, group, members.index(device) // (link.shared_by or len(members)))


def _group(level: LinkLevel, device: int) -> Optional[int]:
    return next((number for number, group in enumerate(level.groups) if device in group), None)


def _channel(source: Interconnect, leaving: int, target: Interconnect, entering: int) -> Channel:
    out, into = source.bandwidth.reached / leaving, target.bandwidth.reached / entering
    link = source.name if out <= into else target.name
    return Channel(link, max(source.latency, target.latency), min(out, into))
