"""From a machine file, already split into mappings, lists and texts, to a checked Machine.

`machine.to_plain` is the other direction. A YAML file gives all numbers as texts, a JSON file as numbers.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, cast

from epl.planner.machine import entries, presets, quantities
from epl.planner.machine.entries import EntryPlace
from epl.planner.machine.machine import Device, Interconnect, LinkLevel, Machine, MachineNode, Measurement, OpRate
from epl.planner.machine.op_kinds import CONTRACTION, CONTRACTIONS, DTYPES, RATED
from epl.planner.machine.quantities import shown
from epl.utils.errors import MachineError

MOST_DEVICES = 65536  # more is a mistake
_KEYS = ("format", "version", "name", "devices", "links", "nodes", "network", "measurements")
_DEVICE_KEYS = ("preset", "type", "flops", "bandwidth", "memory", "launch_overhead", "threads", "shared_by", "source")
_LINK_KEYS = ("preset", "latency", "bandwidth", "shared_by", "source")
_NODE_KEYS = ("devices", "links", "network", "count")
_LEVEL_KEYS = ("link", "groups", "every")
_DEVICE_TYPES = ["cpu", "gpu"]
_DEVICE_EXAMPLE = "{preset: v100-32, memory: 30 GB}"
_LINK_EXAMPLE = "{latency: 10 us, bandwidth: 12 GB/s, shared_by: 1}"
_MEASUREMENT_VALUES = {
    "of": "shm", "what": "all-reduce", "devices": "2", "bytes": "1 MB", "seconds": "3 ms", "spread": "5%", "runs": "9",
    "fitted": "3.1 ms",
}  # fmt: skip
_MEASUREMENT_EXAMPLE = "{" + ", ".join(f"{key}: {value}" for key, value in _MEASUREMENT_VALUES.items()) + "}"
_RATES_EXAMPLE = "{float32: 15.7 TFLOP/s}"


class _Definitions(NamedTuple):
    """What nodes can name: the presets, and what the file defines.

    Attributes:
      devices: by name.
      links: by name.
      default_links: kind of device -> the link of a node that names none.
    """

    devices: Dict[str, Device]
    links: Dict[str, Interconnect]
    default_links: Dict[str, str]


def from_plain(plain: Any, file: str, name: str) -> Machine:
    """The machine of a file.

    Args:
      plain: its mapping.
      file: what messages call it.
      name: of the machine, if the file gives none.

    Raises:
      MachineError: something is unknown, missing or wrong.
    """
    place = EntryPlace(file)
    if plain in (None, "", {}):
        raise MachineError(f"{place} is empty; expected the nodes of a machine, such as nodes: [8*v100-32].")
    entry = entries.mapping(plain, place, _KEYS, "{nodes: [8*v100-32]}")
    _check_format(entry, place)
    definitions = _definitions(entry, place)
    network = _network(entry, place, definitions, "")
    nodes = _nodes(entries.required(entry, place, "nodes", "[8*v100-32]"), place.at("nodes"), definitions, network)
    used_links = [link for node in nodes for link in [level.link for level in node.levels] + [node.network] if link]
    used_devices = [device for node in nodes for device in node.devices]
    return Machine(
        entries.text(entry["name"], place.at("name"), "cluster-1") if "name" in entry else name,
        tuple(definitions.devices[device] for device in dict.fromkeys(used_devices)),
        tuple(definitions.links[link] for link in dict.fromkeys(used_links)),
        tuple(nodes),
        _measurements(entry.get("measurements", []), place.at("measurements"), definitions),
    )


def _measurements(plain: Any, place: EntryPlace, definitions: _Definitions) -> Tuple[Measurement, ...]:
    found = []
    for number, one in enumerate(entries.items(plain, place, f"[{_MEASUREMENT_EXAMPLE}]") if plain != [] else []):
        at = place.at(number)
        entry = entries.mapping(one, at, Measurement._fields, _MEASUREMENT_EXAMPLE)
        given = {key: entries.required(entry, at, key, _MEASUREMENT_VALUES[key]) for key in Measurement._fields}
        name = entries.text(given["of"], at.at("of"), "cpu")
        entries.chosen(name, at.at("of"), [*definitions.devices, *definitions.links], "device or link")
        found.append(
            Measurement(
                name,
                entries.text(given["what"], at.at("what"), "all-reduce"),
                entries.count(given["devices"], at.at("devices")),
                entries.quantity(given["bytes"], at.at("bytes"), quantities.BYTES, True),
                entries.quantity(given["seconds"], at.at("seconds"), quantities.SECONDS, True),
                entries.quantity(given["spread"], at.at("spread"), quantities.FRACTION, True),
                entries.count(given["runs"], at.at("runs")),
                entries.quantity(given["fitted"], at.at("fitted"), quantities.SECONDS, True),
            )
        )
    return tuple(found)


def _check_format(entry: Dict[str, Any], place: EntryPlace) -> None:
    for key, known in (("format", "epl-machine"), ("version", "1")):
        found = entry.get(key, known)
        if isinstance(found, bool) or str(found) != known:
            raise MachineError(
                f"{place.at(key)} is {shown(found)}; expected {known}: this EPL reads no other form of machine files."
            )


def _definitions(entry: Dict[str, Any], place: EntryPlace) -> _Definitions:
    found = _Definitions(dict(presets.DEVICES), dict(presets.LINKS), dict(presets.DEFAULT_LINKS))
    devices = entries.named(entry.get("devices", {}), place.at("devices"), "{big: v100-32}")
    for name, plain in devices.items():
        preset, device = _device(name, plain, place.at("devices").at(name))
        found.devices[name] = device
        found.default_links.pop(name, None)
        if preset is not None:
            found.default_links[name] = presets.DEFAULT_LINKS[preset]
    for name, plain in entries.named(entry.get("links", {}), place.at("links"), "{fast: nvlink2}").items():
        found.links[name] = _link(name, plain, place.at("links").at(name))
    return found


def _device(name: str, plain: Any, place: EntryPlace) -> Tuple[Optional[str], Device]:
    """The preset that an entry is based on, and the device."""
    if isinstance(plain, str):
        plain = {"preset": plain}
    entry = entries.mapping(plain, place, _DEVICE_KEYS, _DEVICE_EXAMPLE)
    sources = entries.sources(entry, place, _DEVICE_KEYS)
    given: Dict[str, Any] = {}
    if "flops" in entry:
        given["rates"] = _rates(entry["flops"], place.at("flops"))
    if "bandwidth" in entry:
        given["bandwidth"] = entries.speed(entry["bandwidth"], place.at("bandwidth"), quantities.BYTES_PER_SECOND)
    if "memory" in entry:
        given["memory"] = _memory(entry["memory"], place.at("memory"))
    if "launch_overhead" in entry:
        overhead = entries.quantity(entry["launch_overhead"], place.at("launch_overhead"), quantities.SECONDS, True)
        given["launch_overhead"] = overhead
    if "threads" in entry:
        given["threads"] = entries.count(entry["threads"], place.at("threads"))
    if "shared_by" in entry:
        given["shared_by"] = _shared_by(entry["shared_by"], place)
    if "type" in entry:
        named = entries.text(entry["type"], place.at("type"), "gpu")
        given["type"] = entries.chosen(named, place.at("type"), _DEVICE_TYPES, "type of a device").upper()
    if "preset" in entry:
        preset = entries.text(entry["preset"], place.at("preset"), "v100-32")
        old = presets.DEVICES[entries.chosen(preset, place, list(presets.DEVICES), "preset of a device")]
        sources = entries.replaced_sources(old.sources, sources, _numbers(entry))
        return preset, old._replace(name=name, sources=sources, **given)
    for key, example in (
        ("flops", "{matmul: " + _RATES_EXAMPLE + "}"), ("bandwidth", "900 GB/s"), ("launch_overhead", "5 us")
    ):  # fmt: skip
        entries.required(entry, place, key, example)
    return None, Device(name=name, sources=sources, **dict({"memory": None, "threads": 1}, **given))


def _numbers(entry: Dict[str, Any]) -> List[str]:
    return [key for key in entry if key not in ("preset", "type", "source")]


def _rates(plain: Any, place: EntryPlace) -> Tuple[OpRate, ...]:
    rates = []
    for kind, by_dtype in entries.mapping(plain, place, RATED, "{matmul: " + _RATES_EXAMPLE + "}").items():
        at = place.at(kind)
        entries.required(entries.mapping(by_dtype, at, DTYPES, _RATES_EXAMPLE), at, "float32", "15.7 TFLOP/s")
        for dtype, rate in by_dtype.items():
            rates.append(_rate(kind, dtype, rate, at.at(dtype)))
    return tuple(rates)


def _rate(kind: str, dtype: str, plain: Any, place: EntryPlace) -> OpRate:
    given: Dict[str, int] = {}
    if isinstance(plain, dict) and "half_width" in plain:
        if kind not in (CONTRACTION, *CONTRACTIONS):
            raise MachineError(
                f"{place.at('half_width')}: ops of the kind {kind} have no narrowest dimension; expected it for "
                f"{', '.join((CONTRACTION, *CONTRACTIONS))} alone."
            )
        given["half_width"] = entries.count(plain["half_width"], place.at("half_width"), 0)
        plain = {key: value for key, value in plain.items() if key != "half_width"}
    return OpRate(kind, dtype, entries.speed(plain, place, quantities.FLOPS), **given)


def _memory(plain: Any, place: EntryPlace) -> Optional[int]:
    if plain == "none":
        return None
    size = int(entries.quantity(plain, place, quantities.BYTES))
    if size == 0:
        raise MachineError(f"{place} is {shown(plain)}, less than a byte; expected bytes such as 16 GB, or none.")
    return size


def _link(name: str, plain: Any, place: EntryPlace) -> Interconnect:
    if isinstance(plain, str):
        plain = {"preset": plain}
    entry = entries.mapping(plain, place, _LINK_KEYS, _LINK_EXAMPLE)
    sources = entries.sources(entry, place, _LINK_KEYS)
    given: Dict[str, Any] = {}
    if "latency" in entry:
        given["latency"] = entries.quantity(entry["latency"], place.at("latency"), quantities.SECONDS, True)
    if "bandwidth" in entry:
        given["bandwidth"] = entries.speed(entry["bandwidth"], place.at("bandwidth"), quantities.BYTES_PER_SECOND)
    if "shared_by" in entry:
        given["shared_by"] = _shared_by(entry["shared_by"], place)
    if "preset" in entry:
        preset = entries.text(entry["preset"], place.at("preset"), "nvlink2")
        old = presets.LINKS[entries.chosen(preset, place, list(presets.LINKS), "preset of a link")]
        sources = entries.replaced_sources(old.sources, sources, _numbers(entry))
        return old._replace(name=name, sources=sources, **given)
    for key, example in (
        ("latency", "10 us"), ("bandwidth", "12 GB/s"), ("shared_by", "1, or all for one network adapter of a node")
    ):  # fmt: skip
        entries.required(entry, place, key, example)
    return Interconnect(name=name, sources=sources, **given)


def _shared_by(plain: Any, place: EntryPlace) -> int:
    return 0 if plain == "all" else entries.count(plain, place.at("shared_by"), also=", or all")


def _network(entry: Dict[str, Any], place: EntryPlace, definitions: _Definitions, default: str) -> str:
    if "network" not in entry:
        return default
    name = entries.text(entry["network"], place.at("network"), "eth-50")
    return entries.chosen(name, place.at("network"), list(definitions.links), "link")


def _nodes(plain: Any, place: EntryPlace, definitions: _Definitions, network: str) -> List[MachineNode]:
    nodes: List[MachineNode] = []
    devices = 0
    for number, one in enumerate(entries.items(plain, place, "[8*v100-32]")):
        count, node = _node(one, place.at(number), definitions, network)
        devices += count * len(node.devices)
        _check_size(devices, place)
        nodes += [node] * count
    for number, node in enumerate(nodes):
        if len(nodes) > 1 and not node.network:
            raise MachineError(
                f"{place} are {len(nodes)} nodes, and node {number} has no link to the others; give a network, such as "
                "network: eth-50 in a file or ,eth-50 at the end of the short form."
            )
    return nodes


def _check_size(devices: int, place: EntryPlace) -> None:
    if devices > MOST_DEVICES:
        raise MachineError(f"{place} has {devices} devices or more; expected at most {MOST_DEVICES} in all nodes.")


def _node(plain: Any, place: EntryPlace, definitions: _Definitions, network: str) -> Tuple[int, MachineNode]:
    """How many such nodes there are, and the node."""
    if isinstance(plain, str):
        count, devices, kind = entries.term(plain, place, of_nodes=True)
        entries.chosen(kind, place, list(definitions.devices), "device")
        _check_size(count * devices, place)
        names = [kind] * devices
        return count, MachineNode(tuple(names), _default_levels(names, place, definitions), network)
    entry = entries.mapping(plain, place, _NODE_KEYS, "{devices: 8*v100-32, links: nvlink2}")
    names = _node_devices(entries.required(entry, place, "devices", "8*v100-32"), place.at("devices"), definitions)
    count = entries.count(entry.get("count", 1), place.at("count"))
    _check_size(count * len(names), place)
    if "links" in entry:
        levels = _levels(entry["links"], place.at("links"), len(names), definitions)
    else:
        levels = _default_levels(names, place, definitions)
    return count, MachineNode(tuple(names), levels, _network(entry, place, definitions, network))


def _node_devices(plain: Any, place: EntryPlace, definitions: _Definitions) -> List[str]:
    names: List[str] = []
    parts = plain if isinstance(plain, list) else [plain]
    for number, part in enumerate(entries.items(parts, place, "[4*v100-32, 4*p100-16]")):
        at = place.at(number) if isinstance(plain, list) else place
        _, count, kind = entries.term(part, at, of_nodes=False)
        entries.chosen(kind, at, list(definitions.devices), "device")
        _check_size(len(names) + count, place)
        names += [kind] * count
    return names


def _default_levels(names: Sequence[str], place: EntryPlace, definitions: _Definitions) -> Tuple[LinkLevel, ...]:
    if len(names) == 1:
        return ()
    links = {definitions.default_links.get(name) for name in names}
    if len(links) > 1 or None in links:
        kinds = ", ".join(dict.fromkeys(names))
        raise MachineError(
            f"{place} has {len(names)} devices ({kinds}) and no links between them; add links, such as links: pcie3."
        )
    return (LinkLevel(cast(str, links.pop()), (tuple(range(len(names))),)),)


def _levels(plain: Any, place: EntryPlace, devices: int, definitions: _Definitions) -> Tuple[LinkLevel, ...]:
    """The levels of a node, the innermost first, as the file has them; () for a node of one device."""
    if plain == [] and devices == 1:
        return ()
    levels: List[LinkLevel] = []
    parts = plain if isinstance(plain, list) else [plain]
    for number, part in enumerate(entries.items(parts, place, "[{link: nvlink2, every: 4}, pcie3]")):
        at = place.at(number) if isinstance(plain, list) else place
        entry = {"link": part} if isinstance(part, str) else part
        entries.mapping(entry, at, _LEVEL_KEYS, "{link: nvlink2, every: 4}")
        link = entries.text(entries.required(entry, at, "link", "nvlink2"), at.at("link"), "nvlink2")
        entries.chosen(link, at, list(definitions.links), "link")
        groups = _groups(entry, at, devices)
        _check_nesting(groups, levels, at)
        levels.append(LinkLevel(link, groups))
    if len(levels[-1].groups) != 1 or len(levels[-1].groups[0]) != devices:
        first, other = 0, min(set(range(1, devices)) - _partners(levels[-1].groups, 0), default=1)
        raise MachineError(
            f"{place} leave devices {first} and {other} of the node without a link; end the list with a link of all "
            f"{devices} devices, such as pcie3."
        )
    return tuple(levels) if devices > 1 else ()


def _partners(groups: Sequence[Tuple[int, ...]], device: int) -> Set[int]:
    return {other for group in groups if device in group for other in group}


def _groups(entry: Dict[str, Any], place: EntryPlace, devices: int) -> Tuple[Tuple[int, ...], ...]:
    if "every" in entry and "groups" in entry:
        raise MachineError(f"{place} has both every and groups; expected one of them.")
    if "every" in entry:
        size = entries.count(entry["every"], place.at("every"))
        if size < 2 or devices % size:
            raise MachineError(
                f"{place.at('every')} is {size}; expected 2 or more that divides the {devices} devices of the node. "
                "Name uneven groups: groups: [[0, 1], [2, 3, 4]]."
            )
        return tuple(tuple(range(first, first + size)) for first in range(0, devices, size))
    if "groups" not in entry:
        return (tuple(range(devices)),)
    groups = []
    seen: Set[int] = set()
    for number, plain in enumerate(entries.items(entry["groups"], place.at("groups"), "[[0, 1], [2, 3]]")):
        at = place.at("groups").at(number)
        group = [_device_number(one, at, devices) for one in entries.items(plain, at, "[0, 1]")]
        if len(set(group)) < 2 or len(set(group)) < len(group) or seen & set(group):
            raise MachineError(
                f"{at} is {group}; expected two or more devices, each in one group of the list and once."
            )
        seen |= set(group)
        groups.append(tuple(sorted(group)))
    return tuple(sorted(groups))


def _device_number(plain: Any, place: EntryPlace, devices: int) -> int:
    number = entries.count(plain, place, least=0)
    if number >= devices:
        raise MachineError(
            f"{place} names device {number}, which is not there: the node has devices 0 to {devices - 1}."
        )
    return number


def _check_nesting(groups: Sequence[Tuple[int, ...]], inner: Sequence[LinkLevel], place: EntryPlace) -> None:
    """Every group further inside lies in one group of this level, or outside of all of them."""
    owner = {device: group for group in groups for device in group}
    for level in inner:
        for group in level.groups:
            if len({owner.get(device) for device in group}) > 1:
                raise MachineError(
                    f"{place} cuts the group {list(group)} of {level.link}, which lies further inside; expected "
                    "groups that take it whole, the innermost link first."
                )
