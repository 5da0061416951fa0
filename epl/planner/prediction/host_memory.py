"""How long copies between a device and the memory of its computer take, and updates there: `offload.level`.

A machine does not say how its devices reach the memory of their computer: all have a link like the preset pcie3, in
each direction, and a CPU like the preset cpu.
"""

from epl.planner.machine import quantities
from epl.planner.machine.machine import Device
from epl.planner.machine.presets import DEVICES, LINKS

HOST: Device = DEVICES["cpu"]
_LINK = LINKS["pcie3"]


def copy_seconds(size: float, copies: int) -> float:
    """Seconds of copies of so many bytes, one after the other."""
    return copies * _LINK.latency + size / _LINK.bandwidth.reached


def describe() -> str:
    """What is assumed, for people."""
    bandwidth = quantities.show(_LINK.bandwidth.reached, quantities.BYTES_PER_SECOND)
    return (
        f"weights and slots are in the memory of the computers, which is large enough; each device reaches it over a "
        f"link like {_LINK.name}, {bandwidth} in each direction; a CPU like the preset {HOST.name} updates the weights "
        "of all devices of a worker"
    )
