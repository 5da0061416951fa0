"""The values of a machine: its kinds of devices and links, its nodes, and where each device sits.

    device number        0   1   2   3     4   5   6   7          8 ...
    level 0, nvlink2    [0   1   2   3]   [4   5   6   7]    of node 0: the innermost first
    level 1, pcie3      [0   1   2   3     4   5   6   7]
    network, eth-50     node 0                                    node 1 ...

Two devices of a node talk over the first level that has both in one group, devices of different nodes over the network.
`plain_form.py` reads and checks machines; a value here is taken to be right.
"""

import collections
import hashlib
import itertools
import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.planner.machine import quantities
from epl.planner.machine.op_kinds import CONTRACTION, CONTRACTIONS, Kind

Sources = Tuple[Tuple[str, str], ...]

CALIBRATED_BY = "epl-plan --calibrate"  # how sources of numbers begin that were measured
HALF_WIDTH = 40  # of a rate that gives no other


class Speed(NamedTuple):
    """How fast something is.

    Attributes:
      peak: of the data sheet, in FLOP/s or bytes/s; what was measured if `fraction` is 1.
      fraction: of the peak that programs reach, above 0 and up to 1.
    """

    peak: float
    fraction: float = 1.0

    @property
    def reached(self) -> float:
        """What programs reach, in FLOP/s or bytes/s: what costs are computed with."""
        return self.peak * self.fraction


class OpRate(NamedTuple):
    """How fast a device computes ops of a kind in a dtype.

    Attributes:
      kind: a name of `op_kinds.RATED`.
      dtype: a name of `op_kinds.DTYPES`.
      flops: in FLOP/s, of ops without a narrow dimension.
      half_width: size of the narrowest dimension with which a contraction runs at half of this rate. A matmul of n
        rows takes as long as n + half_width rows at the full rate: it arranges its weights, however few rows come.
    """

    kind: str
    dtype: str
    flops: Speed
    half_width: int = HALF_WIDTH

    def reached(self, narrowest: int = 0) -> float:
        """FLOP/s that an op reaches; `narrowest`: the size of its narrowest dimension, 0 for one that has none."""
        share = narrowest / (narrowest + self.half_width) if narrowest else 1.0
        return self.flops.reached * share


class Device(NamedTuple):
    """A kind of device.

    Attributes:
      name: by which nodes name it.
      rates: of the kinds of ops that have one; the memory bandwidth limits all others.
      bandwidth: bytes per second that ops read and write.
      memory: bytes; None: no limit is known, and none is kept.
      launch_overhead: seconds that starting an op takes.
      threads: ops that run at the same time, each at these rates.
      sources: (key of the file, where its number comes from); the key "" stands for all.
      type: "CPU" or "GPU", between which NCCL does collectives.
      shared_by: devices that compute with the same cores and memory, by order; each has these rates while the others
        compute nothing; 1: each has its own; 0: all of a node.
    """

    name: str
    rates: Tuple[OpRate, ...]
    bandwidth: Speed
    memory: Optional[int]
    launch_overhead: float
    threads: int
    sources: Sources
    type: str = "GPU"
    shared_by: int = 1

    def peak(self, dtype: str) -> float:
        """FLOP/s of matmuls by the data sheet, of float32 where it has no other rate; 0 if matmuls have none."""
        rate = self.rate(Kind.MATMUL, dtype)
        return 0.0 if rate is None else rate.flops.peak

    def rate(self, kind: str, dtype: str = "float32") -> Optional[OpRate]:
        """How fast ops run; None if memory bandwidth alone limits them.

        Args:
          kind: a constant of `op_kinds.Kind`.
          dtype: name of a dtype; one without a rate counts as float32.
        """
        for name in (kind, CONTRACTION) if kind in CONTRACTIONS else (kind,):
            rates = {rate.dtype: rate for rate in self.rates if rate.kind == name}
            if rates:
                return rates.get(dtype, rates["float32"])
        return None


class Interconnect(NamedTuple):
    """A kind of link between devices or nodes.

    Attributes:
      name: by which nodes name it.
      latency: seconds from the start of a message to its first byte.
      bandwidth: bytes per second in each direction.
      shared_by: devices that share one such link, by order; 1: each has its own; 0: all of the group or node.
      sources: as those of Device.
    """

    name: str
    latency: float
    bandwidth: Speed
    shared_by: int
    sources: Sources


class LinkLevel(NamedTuple):
    """Links of one kind inside a node.

    Attributes:
      link: name of an Interconnect.
      groups: numbers of devices in the node, ascending; those of a group talk over this link, unless a level further
        inside has both.
    """

    link: str
    groups: Tuple[Tuple[int, ...], ...]


class MachineNode(NamedTuple):
    """One computer.

    Attributes:
      devices: name of the kind of each device.
      levels: its links, the innermost first; the last has one group of all devices. () if it has one device.
      network: name of its link to other nodes; "" if it has none.
    """

    devices: Tuple[str, ...]
    levels: Tuple[LinkLevel, ...]
    network: str


class Measurement(NamedTuple):
    """A time that a number of a machine was found from; it stays in the file, and nothing is computed with it.

    Attributes:
      of: name of the kind of device, or of the link.
      what: the op, or the collective, in words.
      devices: how many took part.
      bytes: of the full tensor of a collective; that an op reads and writes.
      seconds: the median of the runs.
      spread: how far the middle half of them reaches, as a share of the median.
      runs: how often it was measured.
      fitted: seconds by the numbers of the machine.
    """

    of: str
    what: str
    devices: int
    bytes: float
    seconds: float
    spread: float
    runs: int
    fitted: float


class Machine(NamedTuple):
    """What a plan is made for. Devices are numbered through all nodes, in order.

    Attributes:
      name: for people.
      devices: the kinds of devices, in the order in which nodes name them first.
      links: the kinds of links, likewise.
      nodes: the computers.
      measurements: what its numbers were found from, as far as it was measured by `epl-plan --calibrate`.
    """

    name: str
    devices: Tuple[Device, ...]
    links: Tuple[Interconnect, ...]
    nodes: Tuple[MachineNode, ...]
    measurements: Tuple[Measurement, ...] = ()

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return sum(len(node.devices) for node in self.nodes)

    def placed_devices(self) -> Tuple[Device, ...]:
        """The kind of every device, by its number."""
        kinds = {device.name: device for device in self.devices}
        return tuple(kinds[name] for node in self.nodes for name in node.devices)

    @property
    def slowest(self) -> Device:
        """The kind of device that the others wait for: with the least bandwidth."""
        return min(self.devices, key=lambda one: (one.bandwidth.reached, one.name))

    def digest(self) -> str:
        """A hash of all numbers: equal for machines that differ in their name, in sources and measurements alone."""
        plain = to_plain(self._replace(measurements=()))
        del plain["name"]
        for entry in list(plain["devices"].values()) + list(plain["links"].values()):
            entry.pop("source", None)
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def describe(self) -> str:
        """The machine in lines for a person."""
        lines = [f"machine {self.name}: {_counted(len(self.nodes), 'node')}, {_counted(self.num_devices, 'device')}"]
        number = 0
        for node, repeated in itertools.groupby(self.nodes):
            count = len(list(repeated))
            last = number + count - 1
            where = f"node {number}" if count == 1 else f"nodes {number} to {last}, each"
            links = [_level_words(level, len(node.devices)) for level in node.levels]
            links += [f"network {node.network}"] if node.network else []
            kinds = collections.Counter(node.devices)
            devices = " + ".join(f"{kinds[name]} x {name}" for name in dict.fromkeys(node.devices))
            lines.append("  " + ": ".join([where, ", ".join([devices] + links)]))
            number = last + 1
        lines += ["  " + line for device in self.devices for line in describe_device(device)]
        lines += ["  " + describe_link(link) for link in self.links]
        return "\n".join(lines)


def to_plain(machine: Machine) -> Dict[str, Any]:
    """A machine as a machine file has it, in base units; equal nodes that follow each other have one entry."""
    plain = {
        "format": "epl-machine",
        "version": 1,
        "name": machine.name,
        "devices": {device.name: _plain_device(device) for device in machine.devices},
        "links": {link.name: _plain_link(link) for link in machine.links},
        "nodes": [_plain_node(node, len(list(equal))) for node, equal in itertools.groupby(machine.nodes)],
    }
    if machine.measurements:
        plain["measurements"] = [dict(one._asdict()) for one in machine.measurements]
    return plain


def _plain_device(device: Device) -> Dict[str, Any]:
    rates: Dict[str, Dict[str, Any]] = {}
    for rate in device.rates:
        rates.setdefault(rate.kind, {})[rate.dtype] = _plain_rate(rate)
    plain = {
        "flops": rates,
        "bandwidth": _plain_speed(device.bandwidth),
        "launch_overhead": device.launch_overhead,
        "threads": device.threads,
        "shared_by": device.shared_by or "all",
        "type": device.type.lower(),
    }
    if device.memory is not None:
        plain["memory"] = device.memory
    return _with_sources(plain, device.sources)


def _plain_link(link: Interconnect) -> Dict[str, Any]:
    plain = {
        "latency": link.latency,
        "bandwidth": _plain_speed(link.bandwidth),
        "shared_by": link.shared_by or "all",
    }
    return _with_sources(plain, link.sources)


def _plain_rate(rate: OpRate) -> Any:
    if rate.half_width == HALF_WIDTH:
        return _plain_speed(rate.flops)
    return {"peak": rate.flops.peak, "fraction": rate.flops.fraction, "half_width": rate.half_width}


def _plain_speed(speed: Speed) -> Any:
    return speed.peak if speed.fraction == 1 else {"peak": speed.peak, "fraction": speed.fraction}


def _with_sources(plain: Dict[str, Any], sources: Sources) -> Dict[str, Any]:
    if sources:
        plain["source"] = sources[0][1] if sources[0][0] == "" else dict(sources)
    return plain


def _plain_node(node: MachineNode, count: int) -> Dict[str, Any]:
    plain: Dict[str, Any] = {
        "devices": [f"{len(list(equal))}*{name}" for name, equal in itertools.groupby(node.devices)],
        "links": [_plain_level(level, len(node.devices)) for level in node.levels],
        "count": count,
    }
    return dict(plain, network=node.network) if node.network else plain


def _plain_level(level: LinkLevel, devices: int) -> Any:
    return level.link if _is_whole(level, devices) else {"link": level.link, "groups": [list(g) for g in level.groups]}


def describe_device(device: Device) -> List[str]:
    """A kind of device in lines for a person."""
    memory = (
        "no memory limit" if device.memory is None else quantities.show(device.memory, quantities.BYTES) + " memory"
    )
    bandwidth = _speed_words(device.bandwidth, quantities.BYTES_PER_SECOND)
    overhead = quantities.show(device.launch_overhead, quantities.SECONDS)
    words = [
        device.name + ": " + memory,
        bandwidth,
        f"{overhead} per op",
        f"{_counted(device.threads, 'op')} at a time",
    ]
    if device.shared_by != 1:
        words.append(f"cores shared by {device.shared_by or 'all'} devices of a node")
    lines = [", ".join(words)]
    for kind, rates in itertools.groupby(device.rates, key=lambda rate: rate.kind):
        words = [f"{rate.dtype} {_speed_words(rate.flops, quantities.FLOPS)}" for rate in rates]
        lines.append(f"  {kind}: {', '.join(words)}")
    return lines


def describe_link(link: Interconnect) -> str:
    """A kind of link in a line for a person."""
    latency = quantities.show(link.latency, quantities.SECONDS)
    shared = {0: "shared by all devices", 1: "one for each device"}
    owners = shared.get(link.shared_by, f"one for {link.shared_by} devices")
    return f"{link.name}: {_speed_words(link.bandwidth, quantities.BYTES_PER_SECOND)}, {latency} latency, {owners}"


def _speed_words(speed: Speed, unit: quantities.Unit) -> str:
    reached = quantities.show(speed.reached, unit)
    return (
        reached if speed.fraction == 1 else f"{reached} ({speed.fraction:.3g} of {quantities.show(speed.peak, unit)})"
    )


def _level_words(level: LinkLevel, devices: int) -> str:
    groups = " ".join("[" + _ranges(group) + "]" for group in level.groups)
    return level.link if _is_whole(level, devices) else f"{level.link} between {groups}"


def _is_whole(level: LinkLevel, devices: int) -> bool:
    return level.groups == (tuple(range(devices)),)


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, briefly: 0 1 2 3 6 -> "0-3 6"."""
    runs: List[List[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
