"""Which devices of a job compute with the same cores, and how fast each is then.

    node of 4 CPU devices, shared_by all, 2 workers x 2 devices
    worker 0: 0 1     half of the cores; both compute: a quarter each
    worker 1: 2 3     the other half

The cores of a node are dealt out to the workers in equal parts, as `epl-launch` does. Inside a worker a device that
computes alone has all of them.
"""

from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from epl.planner.machine.machine import Machine


class WorkerCores(NamedTuple):
    """The cores with which a device computes.

    Attributes:
      number: equal for the devices of a worker that share them.
      workers: among which the cores were divided.
      devices: of the job that share them in the worker.
    """

    number: int
    workers: int
    devices: int


def cores_of_job(machine: Machine, workers: int, devices: int) -> List[Optional[WorkerCores]]:
    """By number of the device, the cores of the devices of a job; None where no other device of the job has them.

    Args:
      machine: its first devices are those of the job.
      workers, devices: processes, and devices of each.
    """
    kinds = {device.name: device for device in machine.devices}
    places: List[Optional[Tuple[int, str, int]]] = []
    for number, node in enumerate(machine.nodes):
        counts: Dict[str, int] = {}
        for name in node.devices:
            at = counts[name] = counts.get(name, -1) + 1
            shared = kinds[name].shared_by
            if shared == 1:
                places.append(None)
            else:  # those of a node share its cores, whatever their kinds
                places.append((number, name, at // shared) if shared else (number, "", 0))
    del places[workers * devices :]
    workers_at: Dict[Tuple[int, str, int], Set[int]] = {}
    sizes: Dict[Tuple[Tuple[int, str, int], int], int] = {}
    for device, place in enumerate(places):
        if place is not None:
            workers_at.setdefault(place, set()).add(device // devices)
            sizes[place, device // devices] = sizes.get((place, device // devices), 0) + 1
    numbers = {one: number for number, one in enumerate(sizes)}
    found: List[Optional[WorkerCores]] = []
    for device, place in enumerate(places):
        key = (place, device // devices) if place is not None else None
        cores = None if key is None else WorkerCores(numbers[key], len(workers_at[key[0]]), sizes[key])
        found.append(None if cores is None or cores.workers == cores.devices == 1 else cores)
    return found
