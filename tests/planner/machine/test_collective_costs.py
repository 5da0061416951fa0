"""Costs of collectives: hand-computed values, the choice of the algorithm, and properties on random machines."""

import json
import os

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epl.planner.machine.collective_algorithms import FLAT, HIERARCHICAL, NCCL
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.files import from_json, read_machine
from epl.utils.errors import MachineError
from tests.planner.machine.machines import machines

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TRANSPORTS = st.sampled_from([(NCCL, 1), (FLAT, 1), (FLAT, 2), (HIERARCHICAL, 1), (HIERARCHICAL, 2)])
COLLECTIVES = ["all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all"]


def machine(nodes, inner, net=None, every=None, transport=NCCL, devices=1):
    """Nodes of these numbers of devices with links of (latency, bandwidth, shared by)."""
    keys = ("latency", "bandwidth", "shared_by")
    links = {"inner": dict(zip(keys, inner)), "net": dict(zip(keys, net or inner))}
    plain = [{"devices": f"{count}*cpu", "links": "inner", "network": "net"} for count in nodes]
    if every is not None:
        links["pair"] = dict(zip(keys, every))
        for node in plain:
            node["links"] = [{"link": "pair", "every": 2}, "inner"]
    return CollectiveCosts(from_json(json.dumps({"links": links, "nodes": plain})), transport, devices)


def four():
    """4 devices, 10 us, 1 GB/s each."""
    return machine([4], (10e-6, 1e9, 1))


def two_by_four(adapters="all", transport=NCCL, devices=1):
    """2 nodes of 4 devices: 10 us, 10 GB/s inside; 20 us, 0.5 GB/s between them."""
    return machine([4, 4], (10e-6, 10e9, 1), (20e-6, 0.5e9, adapters), None, transport, devices)


@pytest.mark.parametrize(
    "collective, nbytes, seconds, algorithm",
    [
        ("all-reduce", 4e6, 6 * (10e-6 + 1e-3), "ring"),
        ("all-reduce", 4, 4 * (10e-6 + 4e-9), "tree"),
        ("reduce-scatter", 4e6, 3 * (10e-6 + 1e-3), "ring"),
        ("all-gather", 4e6, 3 * (10e-6 + 1e-3), "ring"),
        ("broadcast", 4e6, 10e-6 * 2 + 4e-3 + 2 * (10e-6 * 2 * 4e-3) ** 0.5, "ring"),
        ("all-to-all", 4e6, 3 * (10e-6 + 1e-3), "direct"),
    ],
)
def test_on_equal_links(collective, nbytes, seconds, algorithm):
    cost = four().cost(collective, range(4), nbytes)
    assert (cost.seconds, cost.algorithm) == (pytest.approx(seconds), algorithm)


RING_INSIDE = 3 * (10e-6 + 2e6 / 10e9)  # shards of 2 MB of 4 devices of a node
INSIDE = 10e-6 + 3 * 2e6 / 10e9  # the same, all messages at once
ACROSS = 20e-6 + 1e6 / (0.5e9 / 4)  # 4 messages of half a shard leave a node at the same time


@pytest.mark.parametrize(
    "transport, collective, algorithm, parts",
    [
        (NCCL, "all-reduce", "hierarchical", [RING_INSIDE, 2 * ACROSS, RING_INSIDE]),
        (NCCL, "reduce-scatter", "ring", [7 * (20e-6 + 1e6 / 0.5e9)]),
        (NCCL, "all-gather", "ring", [7 * (20e-6 + 1e6 / 0.5e9)]),
        (HIERARCHICAL, "all-reduce", "hierarchical", [INSIDE, 20e-6 + 2e6 / (0.5e9 / 4), INSIDE]),
        (HIERARCHICAL, "reduce-scatter", "hierarchical", [INSIDE, ACROSS]),
        (HIERARCHICAL, "all-gather", "hierarchical", [ACROSS, INSIDE]),
        (HIERARCHICAL, "broadcast", "hierarchical", [INSIDE, 20e-6 + 2e6 / (0.5e9 / 4), INSIDE]),
        # Flat, each device sends a part of 1 MB to 3 of its node and to 4 of the other one: 16 leave each node.
        (FLAT, "all-reduce", "direct", [2 * (20e-6 + 16 * 1e6 / 0.5e9)]),
        (FLAT, "reduce-scatter", "direct", [20e-6 + 16 * 1e6 / 0.5e9]),
        (FLAT, "broadcast", "direct", [20e-6 + 4 * 8e6 / 0.5e9]),
        (NCCL, "all-to-all", "direct", [3 * 10e-6 + 4 * 20e-6 + 16 * 1e6 / 0.5e9]),
        *[(transport, "all-to-all", "direct", [20e-6 + 16 * 1e6 / 0.5e9]) for transport in (HIERARCHICAL, FLAT)],
    ],
)
def test_a_transport_has_its_own_algorithms(transport, collective, algorithm, parts):
    cost = two_by_four(transport=transport).cost(collective, range(8), 8e6)
    assert cost.algorithm == algorithm
    assert [part.seconds for part in cost.parts] == pytest.approx(parts) and cost.seconds == pytest.approx(sum(parts))


@pytest.mark.parametrize("transport", [FLAT, HIERARCHICAL])
def test_ranks_of_a_process_meet_in_its_memory(transport):
    """One process on each node: they send each other the tensor once, and are no machines of several processes."""
    cost = two_by_four(transport=transport, devices=4).cost("all-reduce", range(8), 8e6)
    meet = 10e-6 + 3 * 8e6 / 10e9
    assert cost.algorithm == "direct"
    assert [part.seconds for part in cost.parts] == pytest.approx([meet, 20e-6 + 8e6 / 0.5e9, meet])


def test_rings_leave_a_node_by_all_of_its_adapters():
    cost = two_by_four(adapters=1).cost("reduce-scatter", range(8), 8e6)
    assert cost.parts[0].what == "reduce-scatter by 4 rings, ring"
    assert cost.seconds == pytest.approx(7 * (20e-6 + 0.25e6 / 0.5e9))


def test_a_ring_over_nodes_sends_one_message_out_of_each():
    costs = machine([4, 4], (10e-6, 0.5e9, 1), (20e-6, 0.5e9, "all"))
    cost = costs.cost("all-gather", range(8), 800e6)
    assert (cost.algorithm, cost.seconds) == ("ring", pytest.approx(7 * (20e-6 + 100e6 / 0.5e9)))
    assert cost.parts[0].link == "net" and cost.parts[0].rounds == 7 and cost.parts[0].bytes == 100e6


def test_more_adapters_make_what_runs_between_nodes_faster():
    between = two_by_four(adapters=2).cost("all-reduce", range(8), 8e6).parts[1]
    assert between.seconds == pytest.approx(2 * (20e-6 + 1e6 / (0.5e9 / 2)))


def test_the_slowest_link_sets_the_time_of_a_ring():
    costs = CollectiveCosts(read_machine("v100-32+p100-16+v100-32,eth-10"))
    slow = CollectiveCosts(read_machine("3x1*v100-32,eth-10"))
    assert costs.cost("all-gather", range(3), 3e6).seconds == slow.cost("all-gather", range(3), 3e6).seconds
    mixed = CollectiveCosts(read_machine("8*v100-32+8*p100-16,eth-25"))
    assert mixed.cost("all-reduce", range(16), 1e9).parts[0].link == "pcie3"
    assert mixed.cost("all-reduce", range(8), 1e9).parts[0].link == "nvlink2"


def test_a_shared_bus_is_divided_by_all_messages_of_a_round():
    cost = machine([4], (10e-6, 1e9, "all")).cost("reduce-scatter", range(4), 4e6)
    assert cost.seconds == pytest.approx(3 * (10e-6 + 4e-3))


def test_levels_inside_a_node_are_used():
    costs = machine([8], (10e-6, 1e9, 2), every=(1e-6, 100e9, 1))
    cost = costs.cost("all-reduce", range(8), 8e6)
    # Pairs, then 4 pairs: the devices of a pair share a link.
    ends = 1e-6 + 4e6 / 100e9
    assert [part.seconds for part in cost.parts] == pytest.approx([ends, 6 * (10e-6 + 1e6 / 0.5e9), ends])
    assert [part.link for part in cost.parts] == ["pair", "inner", "pair"]


def test_nodes_with_unequal_devices_reduce_to_one_each():
    cost = machine([3, 2], (1e-6, 100e9, 1), (50e-6, 1e9, "all")).cost("all-reduce", range(5), 1000)
    assert cost.algorithm == "hierarchical"
    assert [part.what.split(" ")[0].rstrip(",") for part in cost.parts] == ["reduce", "all-reduce", "broadcast"]


def test_a_message_takes_latency_and_bytes_over_bandwidth():
    assert four().point_to_point(1, 3, 1e6) == pytest.approx(10e-6 + 1e-3)
    assert two_by_four().point_to_point(0, 5, 1e6) == pytest.approx(20e-6 + 2e-3)
    assert four().point_to_point(2, 2, 1e6) == 0


def test_a_cost_is_described_for_people():
    assert two_by_four(transport=HIERARCHICAL).cost("all-gather", range(8), 8e6).describe().split("\n") == [
        "hierarchical: 8.63 ms",
        "  all-gather between 2 nodes, direct: 1 x 1 MB over net, 8.02 ms",
        "  all-gather, direct: 1 x 6 MB over inner, 610 us",
    ]
    assert four().cost("all-gather", [1], 8e6).describe() == "nothing to send"


def test_the_page_shows_what_its_example_prints():
    cost = CollectiveCosts(read_machine("8*v100-32+8*p100-16,eth-50")).cost("all-reduce", range(16), 100e6)
    with open(os.path.join(ROOT, "docs", "machines.md"), encoding="utf-8") as page:
        assert f"```text\n{cost.describe()}\n```" in page.read()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("all-sum", [0, 1], 1), "there is no cost of 'all-sum'; expected one of all-reduce, reduce-scatter"),
        (("all-reduce", [0, 4], 1), "has no device 4: it has devices 0 to 3"),
        (("all-reduce", [0, 1], -1), "a collective of -1 bytes has no cost"),
        (("all-reduce", [0, 1], float("nan")), "a collective of nan bytes has no cost"),
    ],
)
def test_a_wrong_question_is_refused(arguments, words):
    with pytest.raises(MachineError, match=words):
        four().cost(*arguments)


def some_devices(draw, found):
    return draw.draw(st.lists(st.integers(0, found.num_devices - 1), min_size=1, unique=True))


def fastest_bandwidth(found):
    return max(link.bandwidth.reached for link in found.links)


@given(machines(), TRANSPORTS, st.sampled_from(COLLECTIVES), st.integers(0, 10**12), st.data())
@settings(max_examples=30)
def test_no_collective_is_faster_than_its_bytes(found, transport, collective, nbytes, data):
    devices = some_devices(data, found)
    cost = CollectiveCosts(found, *transport).cost(collective, devices, nbytes)
    n = len(devices)
    if n == 1:
        assert cost == (0, "", ())
        return
    sent = {"all-reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(collective, (n - 1) / n)
    assert cost.seconds >= sent * nbytes / fastest_bandwidth(found) * (1 - 1e-9)
    assert cost.seconds == pytest.approx(sum(part.seconds for part in cost.parts))


@given(machines(), TRANSPORTS, st.sampled_from(COLLECTIVES), st.integers(0, 10**12), st.integers(0, 10**12), st.data())
@settings(max_examples=30)
def test_more_bytes_never_take_less_time(found, transport, collective, one, other, data):
    costs, devices = CollectiveCosts(found, *transport), some_devices(data, found)
    fewer, more = [costs.cost(collective, devices, nbytes).seconds for nbytes in sorted([one, other])]
    assert fewer <= more * (1 + 1e-9)


@given(machines(), TRANSPORTS, st.sampled_from(COLLECTIVES), st.integers(0, 10**12), st.data())
@settings(max_examples=20)
def test_the_order_in_which_devices_are_named_does_not_matter(found, transport, collective, nbytes, data):
    costs, devices = CollectiveCosts(found, *transport), some_devices(data, found)
    named = data.draw(st.permutations(devices))
    assert costs.cost(collective, devices, nbytes) == CollectiveCosts(found, *transport).cost(collective, named, nbytes)


@given(st.integers(2, 6), st.integers(2, 8), st.integers(1, 10**10), st.floats(0, 1e-4), st.floats(1e8, 1e10))
@settings(max_examples=20)
def test_over_nodes_with_fast_links_inside_hierarchical_beats_a_ring(nodes, devices, nbytes, latency, bandwidth):
    inner = (latency, bandwidth * nodes, 1)
    costs = machine([devices] * nodes, inner, (latency, bandwidth, "all"))
    n = nodes * devices
    ring = 2 * (n - 1) * (latency + nbytes / n / bandwidth)
    cost = costs.cost("all-reduce", range(n), nbytes)
    hierarchical = dict(costs._known[("all-reduce", tuple(range(n)))].options)["hierarchical"].cost(nbytes)
    assert cost.seconds <= hierarchical.seconds <= ring * (1 + 1e-9)


@given(machines(), TRANSPORTS, st.integers(0, 10**12), st.data())
@settings(max_examples=20)
def test_an_all_reduce_is_no_slower_than_reduce_scatter_and_all_gather(found, transport, nbytes, data):
    costs, devices = CollectiveCosts(found, *transport), some_devices(data, found)
    assume(len(devices) > 1)
    apart = [costs.cost(name, devices, nbytes).seconds for name in ("reduce-scatter", "all-gather")]
    assert costs.cost("all-reduce", devices, nbytes).seconds <= sum(apart) * (1 + 1e-9)


def test_many_devices_cost_no_time_to_ask():
    costs = CollectiveCosts(read_machine("64x8*v100-32,eth-50"))
    for collective in COLLECTIVES:
        assert costs.cost(collective, range(512), 1e9).seconds > 0
