"""What collectives cost on a machine: ring, tree and hierarchical algorithms in the alpha-beta model, and the fastest.

    a round        max over its messages of latency + bytes / bandwidth of the message's channel (routes.py)
    a collective   the sum of its rounds; all devices take part in a round at the same time
    n devices, B bytes, latency a, bandwidth b, on equal links:

    all-reduce       ring           2 (n - 1) rounds of B / n       2 (n - 1) a + 2 (n - 1) / n B / b
                     tree           2 log2(n) rounds of B           2 log2(n) (a + B / b)
                     hierarchical   reduce-scatter inside each part, all-reduce of the shards between parts, all-gather
    reduce-scatter   ring           n - 1 rounds of B / n
    all-gather       ring           n - 1 rounds of B / n
    broadcast        tree           log2(n) rounds of B
                     ring           a chain of n - 1 hops in pieces: a (n - 2) + B / b + 2 sqrt(a (n - 2) B / b)
    all-to-all       direct         n - 1 messages of B / n from each device

Sources: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH, 2005, sections 3 and
4; the names of the algorithms are NCCL's. Arithmetic and copies in memory count nothing.
"""

import math
from typing import Callable, Dict, FrozenSet, List, NamedTuple, Sequence, Tuple, Union

from epl.planner.machine import quantities
from epl.planner.machine.machine import Machine
from epl.planner.machine.routes import Channel, Message, Routes
from epl.utils.errors import MachineError

SMALLEST_PIECE = 64 * 1024  # bytes of a chain: smaller ones cost more than they overlap

Devices = Tuple[int, ...]


class CollectivePart(NamedTuple):
    """A phase of a collective.

    Attributes:
      what: its collective and algorithm, and where.
      link: name of the link that sets its time.
      rounds: messages that follow each other.
      bytes: of each message.
      seconds: of all rounds.
    """

    what: str
    link: str
    rounds: int
    bytes: float
    seconds: float


class CollectiveCost(NamedTuple):
    """What a collective costs.

    Attributes:
      seconds: from its start on all devices to its end on all of them.
      algorithm: the fastest; "" if there is nothing to do.
      parts: its phases, in order; of those that run at the same time the longest.
    """

    seconds: float
    algorithm: str
    parts: Tuple[CollectivePart, ...]

    def describe(self) -> str:
        """The cost in lines for a person."""
        if not self.parts:
            return "nothing to send"
        lines = [f"{self.algorithm}: {quantities.show(self.seconds, quantities.SECONDS)}"]
        for part in self.parts:
            size = quantities.show(part.bytes, quantities.BYTES)
            seconds = quantities.show(part.seconds, quantities.SECONDS)
            lines.append(f"  {part.what}: {part.rounds} x {size} over {part.link}, {seconds}")
        return "\n".join(lines)


# An algorithm, before the number of bytes is known. It depends on the devices alone, so it is made once for them.


class _Rounds(NamedTuple):
    """Equal rounds, one after the other; each message has this share of the bytes."""

    what: str
    rounds: int
    share: float
    channels: FrozenSet[Channel]

    def cost(self, nbytes: float) -> CollectiveCost:
        size = nbytes * self.share
        seconds, link = max((c.latency + size / c.bandwidth, c.link) for c in self.channels)
        return _phase(CollectivePart(self.what, link, self.rounds, size, self.rounds * seconds))


class _Chain(NamedTuple):
    """This share of the bytes passes over hops, in the number of equal pieces that takes least time."""

    what: str
    hops: int
    share: float
    channels: FrozenSet[Channel]

    def cost(self, nbytes: float) -> CollectiveCost:
        size = nbytes * self.share
        latency = max(channel.latency for channel in self.channels)
        bandwidth, link = min((channel.bandwidth, channel.link) for channel in self.channels)
        most = max(1.0, size / SMALLEST_PIECE)
        best = math.sqrt((self.hops - 1) * size / bandwidth / latency) if latency else most
        pieces = min(max(1.0, best), most)
        seconds = (self.hops - 1 + pieces) * (latency + size / pieces / bandwidth)
        return _phase(CollectivePart(self.what, link, self.hops - 1 + round(pieces), size / pieces, seconds))


class _Sequence(NamedTuple):
    """Steps, one after the other."""

    steps: Tuple["_Algorithm", ...]

    def cost(self, nbytes: float) -> CollectiveCost:
        costs = [step.cost(nbytes) for step in self.steps]
        return CollectiveCost(sum(c.seconds for c in costs), "", tuple(part for c in costs for part in c.parts))


class _Together(NamedTuple):
    """Algorithms of different devices and links that run at the same time."""

    branches: Tuple["_Algorithm", ...]

    def cost(self, nbytes: float) -> CollectiveCost:
        return max((one.cost(nbytes) for one in self.branches), key=lambda cost: cost.seconds)


class _Fastest(NamedTuple):
    """Algorithms for the same, by name."""

    options: Tuple[Tuple[str, "_Algorithm"], ...]

    def cost(self, nbytes: float) -> CollectiveCost:
        costs = [one.cost(nbytes)._replace(algorithm=name) for name, one in self.options]
        return min(costs, key=lambda cost: cost.seconds)


_Algorithm = Union[_Rounds, _Chain, _Sequence, _Together, _Fastest]
_NOTHING = _Sequence(())


def _phase(part: CollectivePart) -> CollectiveCost:
    return CollectiveCost(part.seconds, "", (part,))


class CollectiveCosts:
    """Costs of messages and collectives on one machine.

    Attributes:
      machine: the machine.
      routes: the ways between its devices.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.routes = Routes(machine)
        self._algorithms: Dict[Tuple[str, Devices], _Algorithm] = {}
        self._builders: Dict[str, Callable[[Devices, float], _Algorithm]] = {
            "all-reduce": self._all_reduce,
            "reduce-scatter": self._reduce_scatter,
            "all-gather": self._all_gather,
            "broadcast": self._broadcast,
            "all-to-all": self._all_to_all,
        }

    def point_to_point(self, source: int, target: int, nbytes: float) -> float:
        """Seconds of a message of `nbytes` from one device to another one, alone on its links.

        Raises:
          MachineError: the machine lacks a device.
        """
        if source == target:
            return 0.0
        self.routes.ordered([source, target])
        (channel,) = self.routes.channels([(source, target)])
        return channel.latency + nbytes / channel.bandwidth

    def cost(self, collective: str, devices: Sequence[int], nbytes: float) -> CollectiveCost:
        """The cost of a collective by its fastest algorithm.

        Args:
          collective: "all-reduce", "reduce-scatter", "all-gather", "broadcast" or "all-to-all".
          devices: numbers of devices of the machine, in any order. The first by their place broadcasts.
          nbytes: bytes of the full tensor: what each device has before an all-reduce, a reduce-scatter and an
            all-to-all, after an all-gather and a broadcast.

        Raises:
          MachineError: the collective is unknown, or the machine lacks a device.
        """
        if collective not in self._builders:
            raise MachineError(f"there is no cost of {collective!r}; expected one of {', '.join(self._builders)}.")
        if not nbytes >= 0 or math.isinf(nbytes):
            raise MachineError(f"a collective of {nbytes} bytes has no cost; expected a number of bytes from 0 on.")
        key = (collective, self.routes.ordered(devices))
        if key not in self._algorithms:
            self._algorithms[key] = self._builders[collective](key[1], 1.0) if len(key[1]) > 1 else _NOTHING
        return self._algorithms[key].cost(nbytes)

    # Each of these takes ordered devices, and the share of the bytes that it works on.

    def _all_reduce(self, devices: Devices, share: float) -> _Algorithm:
        parts = self._parts(devices)
        nested = None
        if parts and _equally_many(parts):
            across = self._all_reduce_across(_teams(parts), share / len(parts[0]), self._between(parts))
            inside = [_each(self._reduce_scatter, parts, share), across, _each(self._all_gather, parts, share)]
            nested = _Sequence(tuple(inside))
        elif parts:
            first = tuple(part[0] for part in parts)
            across = self._all_reduce_across([first], share, self._between(parts))
            reduce = _each(lambda part, size: self._send_out(part, size, "reduce"), parts, share)
            nested = _Sequence((reduce, across, _each(self._broadcast, parts, share)))
        return _with_nested(self._all_reduce_across([devices], share, ""), nested)

    def _reduce_scatter(self, devices: Devices, share: float) -> _Algorithm:
        return self._by_shards(devices, share, "reduce-scatter")

    def _all_gather(self, devices: Devices, share: float) -> _Algorithm:
        return self._by_shards(devices, share, "all-gather")

    def _by_shards(self, devices: Devices, share: float, what: str) -> _Algorithm:
        """A reduce-scatter, or an all-gather, which does the same in the reverse order."""
        parts = self._parts(devices)
        nested = None
        if parts and _equally_many(parts):
            inside = _each(lambda part, size: self._by_shards(part, size, what), parts, share)
            across = self._ring(what, _teams(parts), 1, share / len(parts[0]), self._between(parts))
            nested = _Sequence((inside, across) if what == "reduce-scatter" else (across, inside))
        return _with_nested(_Fastest((("ring", self._ring(what, [devices], 1, share, "")),)), nested)

    def _broadcast(self, devices: Devices, share: float) -> _Algorithm:
        return self._send_out(devices, share, "broadcast")

    def _send_out(self, devices: Devices, share: float, what: str) -> _Algorithm:
        """A broadcast from the first device, or the reverse of one: a reduce to it."""
        parts = self._parts(devices)
        nested = None
        if parts:
            first = tuple(part[0] for part in parts)
            inside = _each(lambda part, size: self._send_out(part, size, what), parts, share)
            steps = (self._flat_send_out(first, share, what, self._between(parts)), inside)
            nested = _Sequence(steps if what == "broadcast" else steps[::-1])
        return _with_nested(self._flat_send_out(devices, share, what, ""), nested)

    def _all_to_all(self, devices: Devices, share: float) -> _Algorithm:
        parts = self._parts(devices)
        nested = None
        if parts and _equally_many(parts):
            across = self._direct(_teams(parts), share, self._between(parts))
            nested = _Sequence((_each(self._all_to_all, parts, share), across))
        return _with_nested(_Fastest((("direct", self._direct([devices], share, "")),)), nested)

    # Each of these takes teams, which do the same at the same time, each between devices of its own.

    def _all_reduce_across(self, teams: Sequence[Devices], share: float, where: str) -> "_Fastest":
        rounds = _merged([_Rounds("", 2 * step.rounds, share, step.channels) for step in self._tree(teams, share)])
        tree = _Sequence(tuple(step._replace(what=_words("all-reduce", "tree", where)) for step in rounds))
        return _Fastest((("ring", self._ring("all-reduce", teams, 2, share, where)), ("tree", tree)))

    def _flat_send_out(self, devices: Devices, share: float, what: str, where: str) -> "_Fastest":
        rounds = [step._replace(what=_words(what, "tree", where)) for step in _merged(self._tree([devices], share))]
        chain = self.routes.channels(list(zip(devices, devices[1:])))
        ring = _Chain(_words(what, "ring", where), len(devices) - 1, share, chain)
        return _Fastest((("tree", _Sequence(tuple(rounds))), ("ring", ring)))

    def _ring(self, what: str, teams: Sequence[Devices], turns: int, share: float, where: str) -> _Rounds:
        size = len(teams[0])
        channels = self.routes.channels([hop for team in teams for hop in zip(team, team[1:] + team[:1])])
        return _Rounds(_words(what, "ring", where), turns * (size - 1), share / size, channels)

    def _tree(self, teams: Sequence[Devices], share: float) -> List[_Rounds]:
        """Rounds of a binomial tree: in each, every device that has the bytes sends them half as far as before."""
        size = len(teams[0])
        distance = 1 << (size - 1).bit_length()
        rounds = []
        while distance > 1:
            distance //= 2
            messages: List[Message] = []
            for team in teams:
                messages += [(team[at], team[at + distance]) for at in range(0, size - distance, 2 * distance)]
            rounds.append(_Rounds("", 1, share, self.routes.channels(messages)))
        return rounds

    def _direct(self, teams: Sequence[Devices], share: float, where: str) -> _Rounds:
        size = len(teams[0])
        return _Rounds(_words("all-to-all", "direct", where), size - 1, share / size, self.routes.exchange(teams))

    def _parts(self, devices: Devices) -> List[Devices]:
        """The parts of a hierarchical algorithm; none if there is no level inside the outermost link."""
        if len(devices) < 3:
            return []
        parts = self.routes.parts(devices)
        return parts if len(parts) < len(devices) else []

    def _between(self, parts: Sequence[Devices]) -> str:
        nodes = self.routes.in_several_nodes([part[0] for part in parts])
        return f" between {len(parts)} {'nodes' if nodes else 'groups'}"


def _teams(parts: Sequence[Devices]) -> List[Devices]:
    """The first devices of all parts, the second ones, and so on."""
    return list(zip(*parts))


def _equally_many(parts: Sequence[Devices]) -> bool:
    return len({len(part) for part in parts}) == 1


def _each(build: Callable[[Devices, float], _Algorithm], parts: Sequence[Devices], share: float) -> _Algorithm:
    """The same in all parts; equal ones count once."""
    return _Together(tuple(dict.fromkeys(build(part, share) for part in parts if len(part) > 1)))


def _with_nested(flat: _Fastest, nested: Union[_Sequence, None]) -> _Fastest:
    return flat if nested is None else _Fastest(flat.options + (("hierarchical", nested),))


def _merged(rounds: Sequence[_Rounds]) -> List[_Rounds]:
    """Equal rounds that follow each other as one entry."""
    merged: List[_Rounds] = []
    for step in rounds:
        if merged and merged[-1].channels == step.channels:
            merged[-1] = merged[-1]._replace(rounds=merged[-1].rounds + step.rounds)
        else:
            merged.append(step)
    return merged


def _words(what: str, algorithm: str, where: str) -> str:
    return f"{what}{where}, {algorithm}"
