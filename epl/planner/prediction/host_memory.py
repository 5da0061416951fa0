"""How long copies between a device and the memory of its computer take, and updates and gathers there: `offload.level`.

A machine does not say how its devices reach the memory of their computer: all have a link like the preset pcie3, in
each direction, and a CPU like the preset cpu. The processes of a computer exchange what is in its memory over a link
like the preset shm; computers do so over their network.
"""

from typing import Tuple

from epl.planner.machine import quantities
from epl.planner.machine.machine import Device, LinkLevel, Machine, MachineNode
from epl.planner.machine.presets import DEVICES, LINKS

HOST: Device = DEVICES["cpu"]
_LINK = LINKS["pcie3"]
_SHARED_MEMORY = LINKS["shm"]


def copy_seconds(size: float, copies: int) -> float:
    """Seconds of copies of so many bytes, one after the other."""
    return copies * _LINK.latency + size / _LINK.bandwidth.reached


def between_hosts(machine: Machine) -> Machine:
    """The machine as its ranks see it that exchange what is in the memory of its computers."""
    link = _SHARED_MEMORY._replace(name="the memory of a computer")
    nodes = [node._replace(levels=_levels(node, link.name)) for node in machine.nodes]
    return machine._replace(links=(*machine.links, link), nodes=tuple(nodes))


def _levels(node: MachineNode, link: str) -> Tuple[LinkLevel, ...]:
    return (LinkLevel(link, (tuple(range(len(node.devices))),)),) if node.levels else ()


def describe_gathers() -> str:
    """What is assumed of gathers, for people."""
    bandwidth = quantities.show(_SHARED_MEMORY.bandwidth.reached, quantities.BYTES_PER_SECOND)
    return (
        f"weights in shards are gathered in the memory of the computers, at {bandwidth} for each replica inside one, "
        "and over the network between them"
    )


def describe() -> str:
    """What is assumed of copies and updates, for people."""
    bandwidth = quantities.show(_LINK.bandwidth.reached, quantities.BYTES_PER_SECOND)
    return (
        f"weights and slots are in the memory of the computers, which is large enough; each device reaches it over a "
        f"link like {_LINK.name}, {bandwidth} in each direction; a CPU like the preset {HOST.name} updates the weights "
        "of all devices of a worker"
    )
