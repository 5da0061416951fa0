"""The steps that algorithms of collectives are made from, and what they cost in the alpha-beta model.

    a round    max over its messages of latency + bytes / bandwidth of the message's channel (routes.py)
    rounds     follow each other; all devices take part in a round at the same time

An algorithm depends on the devices alone, so it is made once for them, before the number of bytes is known.
"""

import math
from typing import Callable, FrozenSet, List, NamedTuple, Sequence, Tuple, Union

from epl.planner.machine import quantities
from epl.planner.machine.routes import Channel

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


class Rounds(NamedTuple):
    """Equal rounds, one after the other; each message has this share of the bytes."""

    what: str
    rounds: int
    share: float
    channels: FrozenSet[Channel]

    def cost(self, nbytes: float) -> CollectiveCost:
        size = nbytes * self.share
        seconds, link = max((c.latency + size / c.bandwidth, c.link) for c in self.channels)
        return _phase(CollectivePart(self.what, link, self.rounds, size, self.rounds * seconds))


class HopChain(NamedTuple):
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


class RoundSequence(NamedTuple):
    """Algorithms, one after the other."""

    steps: Tuple["Algorithm", ...]

    def cost(self, nbytes: float) -> CollectiveCost:
        costs = [step.cost(nbytes) for step in self.steps]
        return CollectiveCost(sum(c.seconds for c in costs), "", tuple(part for c in costs for part in c.parts))


class Together(NamedTuple):
    """Algorithms of different devices and links that run at the same time."""

    branches: Tuple["Algorithm", ...]

    def cost(self, nbytes: float) -> CollectiveCost:
        return max((one.cost(nbytes) for one in self.branches), key=lambda cost: cost.seconds)


class Fastest(NamedTuple):
    """Algorithms for the same, by name."""

    options: Tuple[Tuple[str, "Algorithm"], ...]

    def cost(self, nbytes: float) -> CollectiveCost:
        costs = [one.cost(nbytes)._replace(algorithm=name) for name, one in self.options]
        return min(costs, key=lambda cost: cost.seconds)


class BySize(NamedTuple):
    """An algorithm for tensors up to some bytes, and one for larger ones."""

    most: int
    small: "Algorithm"
    large: "Algorithm"

    def cost(self, nbytes: float) -> CollectiveCost:
        return (self.small if nbytes <= self.most else self.large).cost(nbytes)


Algorithm = Union[Rounds, HopChain, RoundSequence, Together, Fastest, BySize]
NOTHING = RoundSequence(())


def _phase(part: CollectivePart) -> CollectiveCost:
    return CollectiveCost(part.seconds, "", (part,))


def teams_of(parts: Sequence[Devices]) -> List[Devices]:
    """The first devices of all parts, the second ones, and so on."""
    return list(zip(*parts))


def equally_many(parts: Sequence[Devices]) -> bool:
    """Whether all parts have as many devices."""
    return len({len(part) for part in parts}) == 1


def each(build: Callable[[Devices], Algorithm], parts: Sequence[Devices]) -> Algorithm:
    """The same in all parts; equal ones count once."""
    return Together(tuple(dict.fromkeys(build(part) for part in parts if len(part) > 1)))


def merged(rounds: Sequence[Rounds]) -> List[Rounds]:
    """Equal rounds that follow each other as one entry."""
    found: List[Rounds] = []
    for step in rounds:
        if found and found[-1].channels == step.channels:
            found[-1] = found[-1]._replace(rounds=found[-1].rounds + step.rounds)
        else:
            found.append(step)
    return found


def words(what: str, algorithm: str, where: str) -> str:
    """A phase for people."""
    return f"{what}{where}, {algorithm}"
