"""Who drives which replica, and who serves whom."""

import pytest

from epl.cluster import device_layouts
from epl.cluster.device_layouts import Slot, VirtualDevice
from epl.cluster.topology import of_virtual_devices
from epl.utils.errors import LayoutError


def name(slot):
    return f"/job:worker/replica:0/task:{slot.worker}/device:CPU:{slot.device}"


def topology(stages, worker_num):
    """The topology of `stages[stage][replica][device]`, slots."""
    return of_virtual_devices(
        [
            VirtualDevice(index, tuple(tuple(map(name, replica)) for replica in replicas), 0, ())
            for index, replicas in enumerate(stages)
        ],
        worker_num,
    )


def auto(counts, worker_num, devices, prefer_intra_node=True):
    return topology(device_layouts.generate_virtual_devices(counts, worker_num, devices, prefer_intra_node), worker_num)


def test_stages_within_a_process_need_no_server():
    found = auto([1, 1], 2, 2)
    assert not found.spans_processes
    assert found.constructors == (0, 1)


def test_a_replica_of_two_processes_is_driven_by_the_owner_of_stage_0():
    found = auto([1, 1], 4, 1)
    assert found.spans_processes
    assert found.constructors == (0, 2)
    assert [found.workers_of(worker) for worker in (0, 2)] == [(0, 1), (2, 3)]
    assert [found.replicas_of(worker) for worker in (0, 2)] == [(0,), (1,)]


def test_column_major_order_makes_every_owner_of_stage_0_a_constructor():
    found = auto([1, 1], 2, 2, prefer_intra_node=False)
    assert found.constructors == (0,)
    assert found.workers_of(0) == (0, 1)
    assert found.replicas_of(0) == (0, 1)


def test_a_constructor_may_serve_another():
    found = auto([1, 1, 1], 3, 2)
    assert found.constructors == (0, 1)
    assert [found.workers_of(worker) for worker in (0, 1)] == [(0, 1), (1, 2)]
    assert not found.is_constructor(2)


def test_devices_have_their_names_in_the_session_of_their_driver():
    found = auto([1, 1], 4, 1)
    assert found.device(stage=0, replica=1) == "/job:chief/replica:0/task:2/device:CPU:0"
    assert found.device(stage=1, replica=1) == "/job:worker/replica:0/task:3/device:CPU:0"


def test_a_constructor_is_the_first_by_name_in_its_session():
    found = auto([1, 1], 3, 2, prefer_intra_node=False)
    assert found.drivers[0][1] == (2,) and found.stages[1][1] == (Slot(0, 1),)
    assert found.device(stage=0, replica=1) < found.device(stage=1, replica=1)


def test_ranks_of_a_stage_are_those_of_its_replicas():
    assert auto([1, 1], 4, 1).rank_process(1) == (1, 3)


def test_stages_of_several_devices_are_driven_device_by_device():
    found = auto([2, 2], 4, 1)
    assert found.constructors == (0, 1)
    assert found.drivers[1] == ((0, 1),)


def test_a_stage_of_other_width_is_driven_by_the_owner_of_the_first_device():
    assert auto([1, 2], 3, 1).drivers == (((0,),), ((0, 0),))


def test_a_replica_without_stage_0_is_refused():
    with pytest.raises(LayoutError, match=r"replica 1 of stage 1, on w1:d0: stage 0 has 1 replica"):
        topology([[[Slot(0, 0)]], [[Slot(0, 0)], [Slot(1, 0)]]], 2)


def test_description_says_who_serves_whom():
    assert auto([1, 1], 4, 1).describe() == (
        "worker 0 drives replica(s) 0, served by worker 1\nworker 2 drives replica(s) 1, served by worker 3"
    )
