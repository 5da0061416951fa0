"""Which devices of the job serve which TaskGraph: virtual devices, and the layouts that make them.

These are pure functions of numbers and names: no TensorFlow, no environment. `epl/cluster/cluster.py` knows the job
and calls them.

A device is a `Slot`: (index of the worker, index of the device in it). A virtual device is the devices of one
TaskGraph, by model replica. Two stages of `replicate(1)` on one worker with four devices:

            replica 0   replica 1
    stage 0 [ w0:d0 ]   [ w0:d2 ]      VirtualDevice 0
    stage 1 [ w0:d1 ]   [ w0:d3 ]      VirtualDevice 1
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from epl.utils.errors import LayoutError

LAYOUT_NAMES = ("all", "auto", "specific", "aware_row")

LayoutSpec = Union[None, str, Mapping[str, Any]]


class Slot(NamedTuple):
    """A device of the job."""

    worker: int
    device: int

    def __str__(self) -> str:
        return f"w{self.worker}:d{self.device}"


# By model replica, then by device of the replica.
Slices = Tuple[Tuple[Slot, ...], ...]


class DeviceLayout(NamedTuple):
    """A parsed layout: its name and, for "specific" and "aware_row", its argument."""

    name: str
    argument: Any = None


class VirtualDevice(NamedTuple):
    """The devices of one TaskGraph, of all model replicas, by their names in the job.

    Attributes:
      index: number of the virtual device; TaskGraph i uses virtual device i.
      slice_devices: `slice_devices[replica][device]`.
      worker_index: this process.
      local_device_indices: the positions in `all_devices` whose ops this process builds. For virtual device 0 they are
        the devices that this process owns; in a later stage they have the same positions as in stage 0, and may belong
        to other processes.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    slice_devices: Tuple[Tuple[str, ...], ...]
    worker_index: int
    local_device_indices: Tuple[int, ...]

    @property
    def all_devices(self) -> Tuple[str, ...]:
        """All devices, replica after replica: the rank order of communicators among them."""
        return tuple(device for replica in self.slice_devices for device in replica)

    @property
    def local_devices(self) -> Tuple[str, ...]:
        """The devices whose ops this process builds."""
        devices = self.all_devices
        return tuple(devices[index] for index in self.local_device_indices)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.all_devices)

    @property
    def num_replicas(self) -> int:
        """The number of model replicas, each on `num_devices / num_replicas` devices."""
        return len(self.slice_devices)

    @property
    def is_constructor(self) -> bool:
        """Whether this process builds ops on any of the devices."""
        return bool(self.local_device_indices)


def parse_layout(layout: LayoutSpec) -> DeviceLayout:
    """Returns the layout that `epl.Cluster(layout=...)` asks for; None is "auto".

    Raises:
      LayoutError: the layout is unknown, or a dict names several.
    """
    if layout is None:
        return DeviceLayout("auto")
    if isinstance(layout, str) and layout in ("all", "auto"):
        return DeviceLayout(layout)
    if isinstance(layout, Mapping):
        if len(layout) != 1:
            raise LayoutError(f"the layout {layout!r} names {len(layout)} layouts; expected one of {_legal_layouts()}.")
        ((name, argument),) = layout.items()
        if name in ("all", "auto"):
            return DeviceLayout(name)
        if name in LAYOUT_NAMES:
            return DeviceLayout(name, argument)
    raise LayoutError(f"Layout is not supported: {layout!r}. Expected one of {_legal_layouts()}.")


def device_order(worker_num: int, devices_per_worker: int, prefer_intra_node: bool = True) -> List[Slot]:
    """Returns all devices of the job in the order in which "auto" deals them out.

    row-major (prefer_intra_node)    column-major
    w0:d0 w0:d1 w1:d0 w1:d1          w0:d0 w1:d0 w0:d1 w1:d1
    """
    if prefer_intra_node:
        return [Slot(worker, device) for worker in range(worker_num) for device in range(devices_per_worker)]
    return [Slot(worker, device) for device in range(devices_per_worker) for worker in range(worker_num)]


def generate_virtual_devices(
    num_device_per_taskgraph: Sequence[int], worker_num: int, devices_per_worker: int, prefer_intra_node: bool = True
) -> Tuple[Slices, ...]:
    """The layout "auto": deals the devices out replica by replica, and within a replica TaskGraph by TaskGraph.

    The number of model replicas (the outer data-parallel degree) is all devices / devices of one replica.

    Args:
      num_device_per_taskgraph: devices of one model replica, by TaskGraph.
      worker_num: processes of the job.
      devices_per_worker: devices of each process.
      prefer_intra_node: row-major order, see `device_order`.

    Returns:
      `result[taskgraph][replica][device]`.

    Raises:
      LayoutError: the devices are not a multiple of those of one replica.
    """
    if not num_device_per_taskgraph or min(num_device_per_taskgraph) < 1:
        raise LayoutError(
            f"the TaskGraphs need {list(num_device_per_taskgraph)} devices; expected at least one TaskGraph and at "
            "least one device for each."
        )
    total = worker_num * devices_per_worker
    per_replica = sum(num_device_per_taskgraph)
    if total < per_replica or total % per_replica:
        raise LayoutError(
            f"Total devices {total} is not divisible by num_device_per_replica {per_replica}: the job has {worker_num} "
            f"worker(s) with {devices_per_worker} device(s) each, and one model replica needs "
            f"{' + '.join(map(str, num_device_per_taskgraph))} devices for its {len(num_device_per_taskgraph)} "
            f"TaskGraph(s). Start a number of devices that is a multiple of {per_replica}, or change device_count."
        )
    order = iter(device_order(worker_num, devices_per_worker, prefer_intra_node))
    result: List[List[Tuple[Slot, ...]]] = [[] for _ in num_device_per_taskgraph]
    for _ in range(total // per_replica):
        for slices, num_device in zip(result, num_device_per_taskgraph):
            slices.append(tuple(next(order) for _ in range(num_device)))
    return tuple(tuple(slices) for slices in result)


def all_slices(worker_num: int, devices_per_worker: int) -> Tuple[Slices, ...]:
    """The layout "all": one virtual device, every device a replica of its own: `[[w0:d0], [w0:d1], ...]`."""
    return (tuple((slot,) for slot in device_order(worker_num, devices_per_worker)),)


def aware_row_slices(row: Any, machines: Sequence[str], devices_per_worker: int) -> Tuple[Slices, ...]:
    """The layout "aware_row": virtual device k is the k-th `row` of consecutive workers, each a replica of its own.

    Args:
      row: workers per virtual device.
      machines: the machine of each worker; workers of one machine are next to each other.
      devices_per_worker: devices of each process, which must be one.

    Raises:
      LayoutError: the workers cannot be cut into such rows.
    """
    if isinstance(row, bool) or not isinstance(row, int) or row < 1:
        raise LayoutError(f"the layout aware_row needs a number of workers per row of at least 1; got {row!r}.")
    if devices_per_worker != 1:
        raise LayoutError(f"the layout aware_row needs workers with one device each; they have {devices_per_worker}.")
    worker_num = len(machines)
    if worker_num % row:
        raise LayoutError(f"the layout aware_row cannot cut {worker_num} worker(s) into rows of {row}.")
    per_machine: Dict[str, int] = {machine: machines.count(machine) for machine in machines}
    if len(set(per_machine.values())) > 1:
        raise LayoutError(f"the layout aware_row needs as many workers on each machine; there are {per_machine}.")
    return tuple(
        tuple((Slot(worker, 0),) for worker in range(start, start + row)) for start in range(0, worker_num, row)
    )


def check_specific(slices: Tuple[Slices, ...]) -> None:
    """Checks the devices of the layout "specific": none empty, and no device twice in one virtual device."""
    for index, replicas in enumerate(slices):
        slots = [slot for replica in replicas for slot in replica]
        if not slots or not all(replicas):
            raise LayoutError(f"virtual device {index} of the specific layout has a replica without devices.")
        twice = sorted({str(slot) for slot in slots if slots.count(slot) > 1})
        if twice:
            raise LayoutError(f"virtual device {index} of the specific layout uses {', '.join(twice)} twice.")


def local_indices(stage0: Slices, slices: Slices, worker_index: int) -> Tuple[int, ...]:
    """Returns the devices of a TaskGraph for which a process builds ops, as positions replica after replica.

    In TaskGraph 0 these are the devices that the process owns; later TaskGraphs have the same positions. If a replica
    of a later TaskGraph has another number of devices than in TaskGraph 0, they are all devices of each replica whose
    first device the process owns.
    """
    flat = [slot for replica in stage0 for slot in replica]
    if [len(replica) for replica in slices] == [len(replica) for replica in stage0]:
        return tuple(position for position, slot in enumerate(flat) if slot.worker == worker_index)
    positions: List[int] = []
    start = 0
    for replica, devices in enumerate(slices):
        if replica < len(stage0) and stage0[replica][0].worker == worker_index:
            positions.extend(range(start, start + len(devices)))
        start += len(devices)
    return tuple(positions)


def describe(virtual_devices: Optional[Sequence[VirtualDevice]]) -> str:
    """Returns one line per virtual device: its devices by replica."""
    if not virtual_devices:
        return "virtual devices: not generated yet"
    return "\n".join(
        f"virtual device {vd.index}: " + " | ".join(", ".join(replica) for replica in vd.slice_devices)
        for vd in virtual_devices
    )


def _legal_layouts() -> str:
    return '"all", "auto", {"specific": [[[device, ...], ...], ...]}, {"aware_row": workers_per_row}'
