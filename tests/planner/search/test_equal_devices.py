"""Plans that differ in the names of equal devices alone are one plan: against all ways to exchange devices."""

import itertools
import random

import pytest

from epl.planner.machine.plain_form import from_plain
from epl.planner.machine.routes import Routes
from epl.planner.search.equal_devices import EqualDevices

LINKS = {
    name: {"latency": "1 us", "bandwidth": "10 GB/s", "shared_by": 1} for name in ("inside", "between", "net", "slow")
}
KINDS = {"gpu": {"preset": "v100-16"}, "large": {"preset": "v100-16", "memory": "40 GB"}}


def node(*devices, links=("inside",), **more):
    return {"devices": list(devices), "links": list(links), "network": "net", **more}


PAIRS = ({"link": "inside", "every": 2}, "between")
UNEVEN = ({"link": "inside", "groups": [[0, 1, 2], [3, 4]]}, "between")
# Nodes, and devices of a group.
MACHINES = {
    "a node": ([node("4*gpu")], 4),
    "two kinds": ([node("gpu", "large", "2*gpu", "large")], 5),
    "pairs": ([node("6*gpu", links=PAIRS)], 6),
    "uneven groups": ([node("5*gpu", links=UNEVEN)], 5),
    "nodes": ([node("2*gpu", count=3)], 6),
    "other nodes": ([node("2*gpu", count=2), node("2*gpu", links=["between"])], 6),
    "several groups": ([node("4*gpu", links=PAIRS), node("2*gpu", "2*large")], 4),
}


def machine_of(nodes):
    plain = {"format": "epl-machine", "version": 1, "devices": KINDS, "links": LINKS, "nodes": nodes}
    return from_plain(plain, "the test", "machine")


def all_exchanges(machine, group, shares):
    """The new place of each place, for every way to exchange places that changes no kind, link or share."""
    routes, kinds = Routes(machine), machine.placed_devices()
    columns = [range(place, machine.num_devices, group) for place in range(group)]

    def links_of(device):
        own = machine.nodes[routes.path(device)[0]]
        return [level.link for level in own.levels], own.network, kinds[device]

    def meet(place, other):
        return [
            next((at for at, (a, b) in enumerate(zip(routes.path(one), routes.path(two))) if a != b), -1)
            for one, two in zip(columns[place], columns[other])
        ]

    own = [([links_of(device) for device in column], share) for column, share in zip(columns, shares)]
    apart = [[meet(place, other) for other in range(group)] for place in range(group)]
    for new in itertools.permutations(range(group)):
        if all(own[place] == own[new[place]] for place in range(group)):
            pairs = itertools.product(range(group), repeat=2)
            if all(apart[one][two] == apart[new[one]][new[two]] for one, two in pairs):
                yield new


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "next to a split over some"])
@pytest.mark.parametrize("name", MACHINES)
def test_plans_are_named_alike_if_and_only_if_equal_devices_are_exchanged(name, shared):
    nodes, group = MACHINES[name]
    machine = machine_of(nodes)
    equal, draw = EqualDevices(machine, range(machine.num_devices)), random.Random(0)
    shares = [(1,) if shared and place < 2 else (0,) for place in range(group)]
    exchanges = list(all_exchanges(machine, group, shares))

    def named(plan):
        names = equal.names(group, list(dict.fromkeys(plan)), shares)
        assert len(set(names.values())) == len(names)
        return tuple(names[place] for place in plan)

    for _ in range(30):
        plan = tuple(draw.randrange(group) for _ in range(6))
        same = {tuple(new[place] for place in plan) for new in exchanges}
        assert {named(one) for one in same} == {named(plan)}
        assert named(plan) in same and named(plan) == min(same)


def test_one_place_of_each_kind_is_the_first():
    nodes, group = MACHINES["two kinds"]
    machine = machine_of(nodes)
    equal = EqualDevices(machine, range(group))
    assert [equal.names(group, [place], [()] * group)[place] for place in range(group)] == [0, 1, 0, 0, 1]
