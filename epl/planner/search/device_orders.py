"""Orders of the devices of a process that a search tries, where they are of several kinds: `cluster.device_order`.

    machine   p100 v100 v100      orders   v100 v100 p100    v100 p100 v100    p100 v100 v100 (as they are)
                                           "1,2,0"           "1,0,2"           ""

Stages take devices in order, and what one device of a group computes alone is on its first. All orders of kinds are
tried if they are few; else by memory (Whale: stages that hold more micro batches come first), the other way round, and
the kinds in turn, both ways. They do not depend on how the machine numbers its devices, so neither does the best plan.
"""

import collections
import itertools
from typing import Dict, List, Sequence, Tuple

from epl.env import Env
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Strategy
from epl.planner.machine.machine import Device, Machine

KEY = "cluster.device_order"
_MOST = 6  # orders that are all tried

_Place = Tuple[Device, ...]  # the devices with the same number in each worker


def device_orders(strategy: Strategy, machine: Machine) -> List[str]:
    """Values of `cluster.device_order` that differ in what they do from the order of a strategy; [] if that is set.

    Args:
      strategy: of the script as it is.
      machine: with the devices of the job alone.
    """
    env = Env.get()
    if not env.config.is_open(KEY) or env.cluster is None or env.cluster.layout.name != "auto":
        return []
    kinds = machine.placed_devices()
    places = [tuple(kinds[number :: strategy.devices]) for number in range(strategy.devices)]
    found = []
    for wanted in _arrangements(places):
        if list(wanted) != places:
            left = {place: iter([at for at, one in enumerate(places) if one == place]) for place in wanted}
            found.append(",".join(str(next(left[place])) for place in wanted))
    return found


def with_order(strategy: Strategy, order: str) -> Strategy:
    """The strategy with the devices of each process in an order."""
    return strategies.with_values(strategy, {KEY: order}, strategies.PLANNER)


def _arrangements(places: Sequence[_Place]) -> List[Tuple[_Place, ...]]:
    """The places in orders, each once; the same for all orders in which they are given."""
    ordered = sorted(
        places, key=lambda place: [(-(one.memory or 0), -one.bandwidth.reached, one.name) for one in place]
    )
    counts = collections.Counter(ordered)
    if len(counts) == 1:
        return [tuple(ordered)]
    if _orders_of(list(counts.values())) <= _MOST:
        return list(dict.fromkeys(itertools.permutations(ordered)))
    in_turn: Dict[_Place, int] = collections.Counter()
    rounds = []
    for place in ordered:
        rounds.append(in_turn[place])
        in_turn[place] += 1
    mixed = [place for _, place in sorted(zip(rounds, ordered), key=lambda one: one[0])]
    return list(dict.fromkeys(tuple(one) for one in (ordered, ordered[::-1], mixed, mixed[::-1])))


def _orders_of(counts: Sequence[int]) -> int:
    """In how many orders there are so many of each kind."""
    orders, total = 1, 0
    for count in counts:
        for number in range(1, count + 1):
            total += 1
            orders = orders * total // number
    return orders
