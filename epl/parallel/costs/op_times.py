"""How long an op takes on a device: the one place that turns FLOPs and bytes into seconds.

time = overhead + max(FLOPs / rate of its kind and dtype, bytes / bandwidth)

Ops of the kind FREE take no time. In loops they are many, some 0.2 us each on a CPU: without them the step of an LSTM
of width 64 with 4 rows is 15-23% short by measured ops, but at most 11% off by rates; at width 256 they count little.
"""

from typing import Dict, Optional, Tuple

from epl.parallel.costs.ops import OpCost
from epl.planner.machine.machine import Device, OpRate
from epl.planner.machine.op_kinds import Kind
from epl.planner.machine.presets import DEVICES

# The kind of device by which decisions are made that ask for a type of device alone.
_PRESETS = {"cpu": "cpu", "gpu": "v100-16"}
# Kinds that move bytes slower than the bandwidth allows, and how many times slower.
_SLOWER = {Kind.REARRANGE: 3.0}


class OpTimes:
    """The times of ops on a kind of device.

    Attributes:
      overhead: seconds that starting an op takes.
      bandwidth: bytes per second that ops read and write.
    """

    def __init__(self, device: Device) -> None:
        self.overhead = device.launch_overhead
        self.bandwidth = device.bandwidth.reached
        self._device = device
        self._rates: Dict[Tuple[str, str], Optional[OpRate]] = {}

    def seconds(self, cost: OpCost) -> float:
        """How long one run of an op takes."""
        return 0.0 if cost.kind == Kind.FREE else self.overhead + self.work_seconds(cost)

    def work_seconds(self, cost: OpCost) -> float:
        """How long one run of an op takes after it has started."""
        if cost.kind == Kind.FREE:
            return 0.0
        moving = cost.bytes / self.bandwidth * _SLOWER.get(cost.kind, 1.0)
        key = (cost.kind, cost.dtype)
        if key not in self._rates:
            self._rates[key] = self._device.rate(*key)
        rate = self._rates[key]
        return moving if rate is None else max(moving, cost.flops / rate.reached(cost.narrowest))


def times_on(device_type: str) -> OpTimes:
    """The times on the device that stands for a type of device, in any case: "cpu" or "gpu"."""
    return OpTimes(DEVICES[_PRESETS[device_type.lower()]])
