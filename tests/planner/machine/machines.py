"""Random machines, for properties."""

from hypothesis import strategies as st

from epl.planner.machine.machine import Device, Interconnect, LinkLevel, Machine, MachineNode, OpRate, Speed
from epl.planner.machine.op_kinds import DTYPES, RATED

_POSITIVE = st.floats(1e-3, 1e18)
_SECONDS = st.floats(0, 1)
_TEXTS = st.text("abc :#{}[]'\"\\\u00b5", min_size=1).map(str.strip).filter(bool)


def speeds():
    """Any speed."""
    return st.builds(Speed, _POSITIVE, st.floats(0.01, 1.0))


@st.composite
def sources(draw, keys):
    """Sources of some keys, or of all."""
    if draw(st.booleans()):
        return (("", draw(_TEXTS)),)
    return tuple((key, draw(_TEXTS)) for key in draw(st.lists(st.sampled_from(keys), unique=True)))


@st.composite
def devices(draw, name):
    """A kind of device."""
    rates = []
    for kind in draw(st.lists(st.sampled_from(RATED), unique=True, max_size=3)):
        others = draw(st.lists(st.sampled_from(DTYPES[1:]), unique=True))
        rates += [OpRate(kind, dtype, draw(speeds())) for dtype in ["float32"] + others]
    memory = draw(st.one_of(st.none(), st.integers(1, 2**50)))
    known = draw(sources(["flops", "bandwidth", "memory", "launch_overhead", "threads"]))
    threads, shared_by = draw(st.integers(1, 99)), draw(st.integers(0, 5))
    kind = draw(st.sampled_from(["CPU", "GPU"]))
    return Device(name, tuple(rates), draw(speeds()), memory, draw(_SECONDS), threads, known, kind, shared_by)


@st.composite
def links(draw, name):
    """A kind of link."""
    known = draw(sources(["latency", "bandwidth", "shared_by"]))
    return Interconnect(name, draw(_SECONDS), draw(speeds()), draw(st.integers(0, 5)), known)


@st.composite
def nodes(draw, kinds, link_names, most):
    """A node of up to `most` devices, with up to two levels inside the outermost."""
    count = draw(st.integers(1, most))
    names = tuple(draw(st.sampled_from(kinds)) for _ in range(count))
    network = draw(st.sampled_from(link_names))
    if count == 1:
        return MachineNode(names, (), network)
    # Each level joins some groups of the one before it.
    groups = [(device,) for device in draw(st.permutations(range(count)))]
    levels = []
    for _ in range(draw(st.integers(0, 2))):
        size = draw(st.integers(1, 3))
        groups = [sum(groups[at : at + size], ()) for at in range(0, len(groups), size)]
        joined = tuple(sorted(tuple(sorted(group)) for group in groups if len(group) > 1))
        if joined:
            levels.append(LinkLevel(draw(st.sampled_from(link_names)), joined))
    levels.append(LinkLevel(draw(st.sampled_from(link_names)), (tuple(range(count)),)))
    return MachineNode(names, tuple(levels), network)


@st.composite
def machines(draw, most_nodes=4, most_devices=6):
    """A machine whose nodes and devices differ."""
    kinds, link_names = ["a", "b-2", "c.d_3"], ["x", "y", "z"]
    found = draw(st.lists(nodes(kinds, link_names, most_devices), min_size=1, max_size=most_nodes))
    if len(found) == 1 and draw(st.booleans()):
        found = [found[0]._replace(network="")]
    used_devices = dict.fromkeys(device for node in found for device in node.devices)
    used_links = dict.fromkeys(
        link for node in found for link in [level.link for level in node.levels] + [node.network] if link
    )
    return Machine(
        draw(_TEXTS),
        tuple(draw(devices(name)) for name in used_devices),
        tuple(draw(links(name)) for name in used_links),
        tuple(found),
    )
