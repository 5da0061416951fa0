"""Which devices of a machine a job has."""

import pytest

from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.files import from_json, read_machine
from epl.planner.machine.job_devices import job_of_machine, machine_of_job
from epl.utils.errors import MachineError


def shape(machine):
    return [node.devices for node in machine.nodes]


def test_a_job_of_all_devices_has_the_machine():
    machine = read_machine("8*v100-32+8*p100-16,eth-50")
    assert job_of_machine(machine) == (2, 8)
    assert machine_of_job(machine, 2, 8) == machine


def test_workers_fill_nodes_in_order():
    machine = machine_of_job(read_machine("5*v100-32+8*p100-16,eth-50"), 4, 2)
    assert shape(machine) == [("v100-32",) * 4, ("p100-16",) * 4]


def test_a_job_inside_one_node_has_no_network():
    machine = machine_of_job(read_machine("8*v100-32+8*p100-16,eth-50"), 1, 4)
    assert shape(machine) == [("v100-32",) * 4]
    assert machine.nodes[0].network == "" and [link.name for link in machine.links] == ["nvlink2"]
    assert [device.name for device in machine.devices] == ["v100-32"]
    assert job_of_machine(machine) == (1, 4)


def test_levels_keep_the_groups_of_the_devices_that_stay():
    whole = from_json('{"nodes": [{"devices": "8*v100-32", "links": [{"link": "nvlink2", "every": 2}, "pcie3"]}]}')
    part = machine_of_job(whole, 1, 5)
    assert part.nodes[0].levels[0].groups == ((0, 1), (2, 3), (4,))
    assert part.nodes[0].levels[1].groups == ((0, 1, 2, 3, 4),)
    costs, before = CollectiveCosts(part), CollectiveCosts(whole)
    for devices in ([0, 1], [0, 2], [3, 4], [0, 1, 2, 3, 4]):
        assert costs.cost("all-reduce", devices, 1e6) == before.cost("all-reduce", devices, 1e6)
    assert [level.link for level in machine_of_job(whole, 1, 2).nodes[0].levels] == ["nvlink2"]
    assert machine_of_job(whole, 1, 1).nodes[0].levels == ()


def test_a_machine_that_is_too_small_is_named_with_its_room():
    with pytest.raises(
        MachineError, match=r"room for 2 worker\(s\) of 3 device\(s\), and the job has 3: its nodes have 4"
    ):
        machine_of_job(read_machine("2x4*v100-32,eth-50"), 3, 3)


def test_unequal_nodes_need_the_number_of_devices():
    with pytest.raises(MachineError, match="nodes of 4 to 8 devices, and all workers .* equally many"):
        job_of_machine(read_machine("8*v100-32+4*p100-16,eth-50"))
