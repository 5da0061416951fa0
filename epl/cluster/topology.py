"""Which process drives which model replica, and which processes take part in its sessions.

A *constructor* owns a device of stage 0: it builds the graph of its replicas and runs the session. Where later stages
lie on devices of other processes, those processes *serve*: their TensorFlow servers run the ops that the constructor
places there. Two stages on four workers with one device each, the layout "auto":

                 replica 0          replica 1
    stage 0      w0:d0  drives      w2:d0  drives
    stage 1      w1:d0  serves      w3:d0  serves

    w0's session: workers 0 and 1           w2's session: workers 2 and 3

In the session of a constructor its own devices belong to the job "chief", all others to the job "worker": TensorFlow
puts ops without a device on the first device by name, which must be the constructor's own.

These are pure functions of virtual devices; the servers are in `epl/runtime/server.py`.
"""

from typing import Dict, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster import device_layouts
from epl.cluster.device_layouts import Slices, Slot, VirtualDevice
from epl.utils.errors import LayoutError

OWN_JOB = "chief"


class Topology(NamedTuple):
    """Who drives what.

    Attributes:
      stages: `stages[stage][replica][device]`: the devices of each TaskGraph.
      drivers: `drivers[stage][replica][device]`: the constructor that builds the ops of that device.
      device_type: "GPU" or "CPU".
    """

    stages: Tuple[Slices, ...]
    drivers: Tuple[Tuple[Tuple[int, ...], ...], ...]
    device_type: str

    @property
    def spans_processes(self) -> bool:
        """Whether any constructor builds ops on devices of another process."""
        return any(slot.worker != driver for slot, driver in self._driven())

    @property
    def constructors(self) -> Tuple[int, ...]:
        """The processes that drive replicas, ascending."""
        return tuple(sorted({driver for _, driver in self._driven()}))

    def is_constructor(self, worker: int) -> bool:
        """Whether a process drives replicas; one that does not serves."""
        return worker in self.constructors

    def workers_of(self, constructor: int) -> Tuple[int, ...]:
        """The processes in the session of a constructor, itself included, ascending."""
        return tuple(sorted({slot.worker for slot, driver in self._driven() if driver == constructor} | {constructor}))

    def replicas_of(self, constructor: int) -> Tuple[int, ...]:
        """The model replicas whose devices of stage 0 a constructor drives, at least one of them."""
        return tuple(replica for replica, owners in enumerate(self.drivers[0]) if constructor in owners)

    def device(self, stage: int, replica: int, device: int = 0) -> str:
        """The name of a device in the session of its driver."""
        slot = self.stages[stage][replica][device]
        name = f"/job:worker/replica:0/task:{slot.worker}/device:{self.device_type}:{slot.device}"
        return session_device(name, self.drivers[stage][replica][device])

    def rank_process(self, stage: int) -> Tuple[int, ...]:
        """The process of each rank of a communicator among all devices of a stage, replica after replica."""
        return tuple(slot.worker for replica in self.stages[stage] for slot in replica)

    def roles(self) -> Dict[int, str]:
        """The stages of each worker, "stage 0" or "stages 1, 2", for messages."""
        held: Dict[int, Set[int]] = {}
        for stage, slices in enumerate(self.stages):
            for slot in [slot for replica in slices for slot in replica]:
                held.setdefault(slot.worker, set()).add(stage)
        return {
            worker: "stage{} {}".format("s" if len(stages) > 1 else "", ", ".join(map(str, sorted(stages))))
            for worker, stages in held.items()
        }

    def describe(self) -> str:
        """One line per constructor: the replicas that it drives, and the workers that serve it."""
        lines = []
        for worker in self.constructors:
            others = [other for other in self.workers_of(worker) if other != worker]
            served = "served by " + _workers(others) if others else "on its own devices"
            lines.append(
                "worker {} drives replica(s) {}, {}".format(
                    worker, ", ".join(map(str, self.replicas_of(worker))), served
                )
            )
        return "\n".join(lines)

    def _driven(self) -> Tuple[Tuple[Slot, int], ...]:
        return tuple(
            (slot, driver)
            for slices, owners in zip(self.stages, self.drivers)
            for replica, replica_owners in zip(slices, owners)
            for slot, driver in zip(replica, replica_owners)
        )


def session_device(name: str, constructor: int) -> str:
    """The name that a device of the job has in the session of a constructor, if that spans processes."""
    own = f"/job:worker/replica:0/task:{constructor}/"
    return name.replace(own, own.replace("worker", OWN_JOB)) if name.startswith(own) else name


def of_virtual_devices(virtual_devices: Sequence[VirtualDevice], worker_num: int) -> Topology:
    """Returns who drives the devices: the owner of the device of stage 0 at the same position; see `local_indices`.

    Raises:
      LayoutError: no process drives one of them, because its replica has no device of stage 0.
    """
    specs = [tf.DeviceSpec.from_string(name) for name in virtual_devices[0].all_devices[:1]]
    stages = tuple(
        tuple(tuple(_slot(name) for name in replica) for replica in device.slice_devices) for device in virtual_devices
    )
    drivers = tuple(_drivers(stages, stage, worker_num) for stage in range(len(stages)))
    return Topology(stages, drivers, specs[0].device_type)


def _drivers(stages: Tuple[Slices, ...], stage: int, worker_num: int) -> Tuple[Tuple[int, ...], ...]:
    """`result[replica][device]` of one stage."""
    owner = {
        position: worker
        for worker in range(worker_num)
        for position in device_layouts.local_indices(stages[0], stages[stage], worker)
    }
    result, start = [], 0
    for replica, devices in enumerate(stages[stage]):
        missing = [str(slot) for index, slot in enumerate(devices) if start + index not in owner]
        if missing:
            raise LayoutError(
                "nobody drives replica {} of stage {}, on {}: stage 0 has {} replica(s). Give every stage as many "
                "replicas as stage 0.".format(replica, stage, ", ".join(missing), len(stages[0]))
            )
        result.append(tuple(owner[start + index] for index in range(len(devices))))
        start += len(devices)
    return tuple(result)


def _slot(name: str) -> Slot:
    spec = tf.DeviceSpec.from_string(name)
    return Slot(spec.task, spec.device_index)


def _workers(workers: Sequence[int]) -> str:
    return "worker{} {}".format("s" if len(workers) > 1 else "", ", ".join(map(str, workers)))
