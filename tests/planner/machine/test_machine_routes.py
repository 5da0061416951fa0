"""Links between devices: which one a message takes, and how its bandwidth is divided."""

import json

import pytest

from epl.planner.machine.files import from_json
from epl.planner.machine.routes import Channel, Routes
from epl.utils.errors import MachineError

LINKS = {
    "inner": {"latency": 1e-6, "bandwidth": 100e9, "shared_by": 1},
    "outer": {"latency": 2e-6, "bandwidth": 10e9, "shared_by": 2},
    "bus": {"latency": 3e-6, "bandwidth": 8e9, "shared_by": "all"},
    "net": {"latency": 20e-6, "bandwidth": 1e9, "shared_by": "all"},
    "two": {"latency": 20e-6, "bandwidth": 1e9, "shared_by": 2},
    "slow": {"latency": 50e-6, "bandwidth": 0.1e9, "shared_by": "all"},
}


def routes(*nodes):
    """The routes between nodes of (devices, links, network)."""
    plain = [{"devices": f"{count}*cpu", "links": levels, "network": network} for count, levels, network in nodes]
    if len(nodes) == 1:
        del plain[0]["network"]
    return Routes(from_json(json.dumps({"links": LINKS, "nodes": plain})))


def only(channels):
    (channel,) = channels
    return channel


PAIRS = [{"link": "inner", "groups": [[0, 2], [1, 3]]}, "outer"]


def test_a_message_takes_the_innermost_link_of_both():
    found = routes((4, PAIRS, "net"), (1, [], "net"))
    assert only(found.channels([(0, 2)])) == Channel("inner", 1e-6, 100e9)
    assert only(found.channels([(0, 1)])) == Channel("outer", 2e-6, 10e9)
    assert only(found.channels([(0, 4)])) == Channel("net", 20e-6, 1e9)


def test_a_device_in_no_group_takes_the_outer_link():
    found = routes((3, [{"link": "inner", "groups": [[0, 2]]}, "outer"], ""))
    assert only(found.channels([(1, 2)])).link == "outer" and only(found.channels([(0, 2)])).link == "inner"


def test_messages_that_leave_a_shared_link_divide_it():
    found = routes((4, "inner", "net"), (4, "inner", "net"))
    assert only(found.channels([(0, 4), (1, 5), (2, 6)])).bandwidth == pytest.approx(1e9 / 3)
    assert only(found.channels([(0, 4), (5, 1)])).bandwidth == 1e9  # both directions at the same time
    assert found.channels([(0, 4), (0, 1)]) == {Channel("net", 20e-6, 1e9), Channel("inner", 1e-6, 100e9)}


def test_messages_that_come_in_over_a_shared_link_divide_it():
    found = routes((1, [], "net"), (1, [], "net"), (2, "inner", "net"))
    assert only(found.channels([(0, 2), (1, 3)])).bandwidth == 0.5e9


def test_devices_share_links_in_their_order():
    found = routes((4, "inner", "two"), (4, "inner", "two"))
    assert only(found.channels([(0, 4), (2, 6)])).bandwidth == 1e9  # each has an adapter
    assert only(found.channels([(0, 4), (1, 6)])).bandwidth == 0.5e9


def test_a_bus_is_divided_by_all_messages():
    assert only(routes((3, "bus", "")).channels([(0, 1), (1, 2)])).bandwidth == 4e9


def test_the_slower_adapter_sets_the_speed():
    found = routes((1, [], "net"), (1, [], "slow"))
    assert only(found.channels([(0, 1)])) == only(found.channels([(1, 0)])) == Channel("slow", 50e-6, 0.1e9)


def test_devices_are_ordered_by_their_links_and_divided_by_the_outermost():
    found = routes((4, PAIRS, "net"), (2, "inner", "net"))
    assert found.ordered([5, 3, 1, 2, 0]) == (0, 2, 1, 3, 5)
    assert found.parts((0, 2, 1, 3, 5)) == [(0, 2, 1, 3), (5,)]
    assert found.parts((0, 2, 1, 3)) == [(0, 2), (1, 3)]


def test_an_exchange_is_as_slow_as_the_busiest_link():
    found = routes((2, "inner", "net"), (2, "inner", "net"))
    # 3 messages of each device: 1 over the inner link, 2 over the network; 4 leave each node over one adapter.
    channel = only(found.exchange([(0, 1, 2, 3)]))
    assert channel.link == "net" and channel.latency == pytest.approx((1e-6 + 2 * 20e-6) / 3)
    assert channel.bandwidth == pytest.approx(1e9 * 3 / 4)
    # Two teams: 2 messages leave each node.
    assert only(found.exchange([(0, 2), (1, 3)])) == Channel("net", 20e-6, 0.5e9)


@pytest.mark.parametrize(
    "devices, words", [([0, 2], "has no device 2: it has devices 0 to 1."), ([-1], "has no device -1")]
)
def test_a_device_that_is_not_there_is_refused(devices, words):
    with pytest.raises(MachineError, match=words):
        routes((2, "inner", "")).ordered(devices)


def test_a_device_that_is_named_twice_is_refused():
    with pytest.raises(MachineError, match="name one twice"):
        routes((2, "inner", "")).ordered([0, 0])
