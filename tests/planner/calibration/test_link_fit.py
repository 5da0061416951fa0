"""Latency, bandwidth and sharing of a link are found again from times that the cost model makes up."""

import pytest

from epl.planner.calibration.link_fit import TimedCollective, fit_link
from epl.planner.machine.collective_algorithms import FLAT, NCCL
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.machine import Device, Interconnect, LinkLevel, Machine, MachineNode, Speed
from epl.planner.profile.op_timing import OpTime

COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all")
SIZES = (4096, 65536, 2**20, 2**23, 2**25)


def made_up(latency, bandwidth, shared_by, counts=(2, 4), factor=lambda number: 1.0, transport=FLAT):
    """Times of all collectives between some numbers of devices on such a link, each times a factor."""
    link = Interconnect("link", latency, Speed(bandwidth), shared_by, ())
    device = Device("cpu", (), Speed(1e9), None, 0.0, 1, ())
    found = []
    for count in counts:
        levels = (LinkLevel("link", (tuple(range(count)),)),)
        machine = Machine("m", (device,), (link,), (MachineNode(("cpu",) * count, levels, ""),))
        costs = CollectiveCosts(machine, transport)
        for collective in COLLECTIVES:
            for size in SIZES:
                seconds = costs.cost(collective, range(count), size).seconds * factor(len(found))
                found.append(TimedCollective(collective, count, size, OpTime(seconds, 0.02, 9)))
    return found


@pytest.mark.parametrize("transport", [FLAT, NCCL])
@pytest.mark.parametrize("latency, bandwidth, shared_by", [(5e-6, 12e9, 1), (50e-6, 2e9, 1), (20e-6, 5e9, 0)])
def test_a_link_is_found_again(latency, bandwidth, shared_by, transport):
    times = made_up(latency, bandwidth, shared_by, transport=transport)
    link, measurements = fit_link("link", times, "2026-01-02", transport)
    assert link.latency == pytest.approx(latency, rel=0.05)
    assert link.bandwidth.reached == pytest.approx(bandwidth, rel=0.05)
    assert link.shared_by == shared_by
    assert len(measurements) == 50
    assert all(one.fitted == pytest.approx(one.seconds, rel=0.1) for one in measurements)
    assert dict(link.sources)["latency"].startswith(
        "epl-plan --calibrate: measured 2026-01-02, least squares over 50 collectives, each the "
    )


def test_noise_of_a_tenth_moves_numbers_by_less():
    times = made_up(20e-6, 3e9, 1, factor=lambda number: 1.1 if number % 2 else 0.9)
    link, _ = fit_link("link", times, "2026-01-02", FLAT)
    assert link.latency == pytest.approx(20e-6, rel=0.1)
    assert link.bandwidth.reached == pytest.approx(3e9, rel=0.1)


def test_times_that_do_not_grow_with_bytes_have_a_latency_alone():
    times = [TimedCollective("broadcast", 2, size, OpTime(1e-4, 0.0, 3)) for size in SIZES]
    link, _ = fit_link("link", times, "2026-01-02", FLAT)
    assert link.latency == pytest.approx(1e-4, rel=0.01) and link.bandwidth.reached >= 1e12


def test_times_in_proportion_to_bytes_have_a_bandwidth_alone():
    times = [TimedCollective("broadcast", 2, size, OpTime(size / 1e9, 0.0, 3)) for size in SIZES]
    link, _ = fit_link("link", times, "2026-01-02", FLAT)
    assert link.latency < 1e-7 and link.bandwidth.reached == pytest.approx(1e9, rel=0.05)
