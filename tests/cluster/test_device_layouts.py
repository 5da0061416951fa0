"""Layouts: which devices serve which TaskGraph."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epl.cluster import device_layouts
from epl.cluster.device_layouts import Slot, VirtualDevice
from epl.utils.errors import LayoutError

# Devices per model replica by TaskGraph, worker_num, devices_per_worker: of jobs that fit.
FITTING_JOBS = st.tuples(
    st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 6)
).filter(lambda job: (job[1] * job[2]) % sum(job[0]) == 0)


def text(slices):
    return [[" ".join(str(slot) for slot in replica) for replica in replicas] for replicas in slices]


class TestAuto:
    def test_one_stage_gets_every_device_as_a_replica(self):
        assert text(device_layouts.generate_virtual_devices([1], 1, 4)) == [["w0:d0", "w0:d1", "w0:d2", "w0:d3"]]

    def test_two_stages_alternate(self):
        slices = device_layouts.generate_virtual_devices([1, 1], 1, 4)
        assert text(slices) == [["w0:d0", "w0:d2"], ["w0:d1", "w0:d3"]]

    def test_row_major_keeps_a_replica_inside_a_worker(self):
        slices = device_layouts.generate_virtual_devices([1, 1], 2, 2, prefer_intra_node=True)
        assert text(slices) == [["w0:d0", "w1:d0"], ["w0:d1", "w1:d1"]]

    def test_column_major_spreads_a_replica_over_workers(self):
        slices = device_layouts.generate_virtual_devices([1, 1], 2, 2, prefer_intra_node=False)
        assert text(slices) == [["w0:d0", "w0:d1"], ["w1:d0", "w1:d1"]]

    def test_a_taskgraph_may_take_several_devices_per_replica(self):
        slices = device_layouts.generate_virtual_devices([1, 2], 1, 6)
        assert text(slices) == [["w0:d0", "w0:d3"], ["w0:d1 w0:d2", "w0:d4 w0:d5"]]

    @given(FITTING_JOBS, st.booleans())
    def test_every_device_is_used_exactly_once(self, job, prefer_intra_node):
        slices = device_layouts.generate_virtual_devices(*job, prefer_intra_node=prefer_intra_node)
        used = [slot for replicas in slices for replica in replicas for slot in replica]
        assert sorted(used) == device_layouts.device_order(job[1], job[2])

    @given(FITTING_JOBS, st.booleans())
    def test_replicas_have_the_sizes_asked_for_and_all_taskgraphs_as_many(self, job, prefer_intra_node):
        slices = device_layouts.generate_virtual_devices(*job, prefer_intra_node=prefer_intra_node)
        for replicas, num_device in zip(slices, job[0]):
            assert len(replicas) == job[1] * job[2] // sum(job[0])
            assert {len(replica) for replica in replicas} == {num_device}

    @given(FITTING_JOBS)
    def test_row_major_is_rank_order_replica_after_replica(self, job):
        slices = device_layouts.generate_virtual_devices(*job)
        dealt = [slot for replica in zip(*slices) for devices in replica for slot in devices]
        assert dealt == device_layouts.device_order(job[1], job[2])

    @given(FITTING_JOBS)
    def test_row_major_never_leaves_a_worker_when_replicas_divide_its_devices(self, job):
        assume(job[2] % sum(job[0]) == 0)
        for replica in zip(*device_layouts.generate_virtual_devices(*job)):
            assert len({slot.worker for devices in replica for slot in devices}) == 1

    def test_a_remainder_is_refused_with_the_numbers(self):
        message = (
            r"Total devices 4 is not divisible by num_device_per_replica 3: .* 2 worker\(s\) with 2 .* 1 \+ 2 devices"
        )
        with pytest.raises(LayoutError, match=message):
            device_layouts.generate_virtual_devices([1, 2], 2, 2)

    def test_too_few_devices_are_refused(self):
        with pytest.raises(RuntimeError, match="Total devices 2 is not divisible by num_device_per_replica 4"):
            device_layouts.generate_virtual_devices([4], 1, 2)

    @pytest.mark.parametrize("num_devices", [[], [0], [1, -1]])
    def test_taskgraphs_need_devices(self, num_devices):
        with pytest.raises(LayoutError, match="at least one device"):
            device_layouts.generate_virtual_devices(num_devices, 1, 2)


def test_all_is_one_virtual_device_in_rank_order():
    assert text(device_layouts.all_slices(2, 2)) == [["w0:d0", "w0:d1", "w1:d0", "w1:d1"]]


class TestAwareRow:
    def test_rows_are_consecutive_workers(self):
        slices = device_layouts.aware_row_slices(2, ["a", "a", "b", "b"], 1)
        assert text(slices) == [["w0:d0", "w1:d0"], ["w2:d0", "w3:d0"]]

    @given(st.integers(1, 4), st.integers(1, 4))
    def test_every_worker_is_in_one_row(self, row, rows):
        slices = device_layouts.aware_row_slices(row, ["machine"] * (row * rows), 1)
        assert [slot.worker for replicas in slices for (slot,) in replicas] == list(range(row * rows))

    @pytest.mark.parametrize(
        "row,machines,devices,problem",
        [
            (2, ["a"] * 4, 2, "one device each; they have 2"),
            (3, ["a"] * 4, 1, "4 worker.* into rows of 3"),
            (8, ["a"] * 4, 1, "4 worker.* into rows of 8"),
            (2, ["a", "a", "a", "b"], 1, "as many workers on each machine; there are {'a': 3, 'b': 1}"),
            (0, ["a"] * 4, 1, "at least 1; got 0"),
            ("2", ["a"] * 4, 1, "at least 1; got '2'"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, row, machines, devices, problem):
        with pytest.raises(RuntimeError, match=problem):
            device_layouts.aware_row_slices(row, machines, devices)


class TestParse:
    @pytest.mark.parametrize(
        "layout,name,argument",
        [
            (None, "auto", None),
            ("auto", "auto", None),
            ("all", "all", None),
            ({"all": None}, "all", None),
            ({"aware_row": 2}, "aware_row", 2),
            ({"specific": [[["a"]]]}, "specific", [[["a"]]]),
        ],
    )
    def test_legal(self, layout, name, argument):
        assert device_layouts.parse_layout(layout) == device_layouts.DeviceLayout(name, argument)

    @pytest.mark.parametrize("layout", ["row", "specific", {"row": 4}, 3])
    def test_unknown_is_a_runtime_error_that_names_the_legal_ones(self, layout):
        with pytest.raises(RuntimeError, match="Layout is not supported.*aware_row"):
            device_layouts.parse_layout(layout)

    @pytest.mark.parametrize("layout", [{}, {"all": True, "auto": True}])
    def test_several_are_a_value_error(self, layout):
        with pytest.raises(ValueError, match="expected one of"):
            device_layouts.parse_layout(layout)


class TestLocalIndices:
    def test_stage_0_is_what_the_worker_owns(self):
        (stage,) = device_layouts.generate_virtual_devices([1], 2, 2)
        assert device_layouts.local_indices(stage, stage, 1) == (2, 3)

    def test_a_later_stage_follows_stage_0(self):
        stage0, stage1 = device_layouts.generate_virtual_devices([1, 1], 2, 2, prefer_intra_node=False)
        assert device_layouts.local_indices(stage0, stage1, 0) == (0, 1)
        assert device_layouts.local_indices(stage0, stage1, 1) == ()

    def test_a_later_stage_with_more_devices_follows_by_replica(self):
        stage0, stage1 = device_layouts.generate_virtual_devices([1, 2], 2, 3)
        assert device_layouts.local_indices(stage0, stage1, 0) == (0, 1)
        assert device_layouts.local_indices(stage0, stage1, 1) == (2, 3)

    @given(FITTING_JOBS, st.booleans())
    def test_every_device_is_built_by_exactly_one_worker(self, job, prefer_intra_node):
        slices = device_layouts.generate_virtual_devices(*job, prefer_intra_node=prefer_intra_node)
        for stage in slices:
            workers = range(job[1])
            built = [index for worker in workers for index in device_layouts.local_indices(slices[0], stage, worker)]
            assert sorted(built) == list(range(sum(len(replica) for replica in stage)))


class TestVirtualDevice:
    def test_views(self):
        vd = VirtualDevice(0, (("a", "b"), ("c", "d")), worker_index=1, local_device_indices=(2, 3))
        assert vd.all_devices == ("a", "b", "c", "d")
        assert vd.local_devices == ("c", "d")
        assert (vd.num_devices, vd.num_replicas, vd.is_constructor) == (4, 2, True)

    def test_is_a_frozen_value(self):
        vd = VirtualDevice(0, (("a",),), 0, (0,))
        assert vd == VirtualDevice(0, (("a",),), 0, (0,)) and hash(vd)
        with pytest.raises(AttributeError):
            vd.index = 1

    def test_without_local_devices_the_process_is_no_constructor(self):
        assert not VirtualDevice(0, (("a",),), 1, ()).is_constructor


def test_specific_refuses_a_device_twice_and_empty_replicas():
    with pytest.raises(LayoutError, match="uses w0:d0 twice"):
        device_layouts.check_specific((((Slot(0, 0),), (Slot(0, 0),)),))
    with pytest.raises(LayoutError, match="virtual device 1 .* without devices"):
        device_layouts.check_specific((((Slot(0, 0),),), ((),)))


def test_devices_may_serve_several_taskgraphs_of_a_specific_layout():
    device_layouts.check_specific((((Slot(0, 0),),), ((Slot(0, 0),),)))
