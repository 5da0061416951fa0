"""From a calibration to the machine: starts the workers, and puts what they measured into a `Machine`.

2x2      node 0:  [0 1] [2 3]      inside: between devices of a process; between: between processes
"""

import datetime
from typing import List

from epl.launcher import run as launcher
from epl.planner.calibration import worker
from epl.planner.calibration.device_fit import fit_device
from epl.planner.calibration.link_fit import fit_link
from epl.planner.calibration.worker import Measured
from epl.planner.machine.collective_algorithms import FLAT, NCCL
from epl.planner.machine.machine import Interconnect, LinkLevel, Machine, MachineNode

INSIDE, BETWEEN = "inside-process", "between-processes"  # names of links
_LINKS = {"inside": INSIDE, "between": BETWEEN}


def calibrate(name: str, workers: int, devices: int, share: float = 1.0) -> Machine:
    """Measures this machine, in about a minute; the workers say on standard output what they do.

    Args:
      name: of the machine.
      workers: processes of the job that it is measured for.
      devices: of each process.
      share: of the usual time that is spent, above 0.

    Raises:
      EplError: this machine lacks the devices, or a worker failed.
    """
    found = launcher.run(worker.measure_here, workers, devices, args=(share,))
    return machine_of(name, workers, devices, found[0], datetime.date.today().isoformat())


def machine_of(name: str, workers: int, devices: int, measured: Measured, date: str) -> Machine:
    """The machine that explains what was measured.

    Args:
      name: of the machine.
      workers, devices: processes, and devices of each.
      measured: what was measured.
      date: of the measurement.
    """
    kind = "measured-gpu" if measured.is_gpu else "measured-cpu"
    device, measurements = fit_device(kind, measured.ops, measured.memory, measured.memory_source, date)
    if not measured.is_gpu:
        device = device._replace(type="CPU", shared_by=devices)
    threads = f"{measured.model}: {dict(device.sources)['threads']}"
    device = device._replace(sources=tuple(dict(device.sources, threads=threads).items()))
    links: List[Interconnect] = []
    levels: List[LinkLevel] = []
    total = workers * devices
    for where, times in measured.collectives.items():
        link, of_link = fit_link(_LINKS[where], times, date, NCCL if measured.is_gpu else FLAT)
        links.append(link)
        measurements += of_link
        size = devices if where == "inside" else total
        groups = tuple(tuple(range(first, first + size)) for first in range(0, total, size))
        levels.append(LinkLevel(link.name, groups))
    return Machine(
        name,
        (device,),
        tuple(links),
        (MachineNode((kind,) * total, tuple(levels), ""),),
        tuple(measurements),
    )
