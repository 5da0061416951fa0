"""Cloning in bulk: all copies of a set of ops are written into one GraphDef and imported in one call.

        x ---> f ---> g                x ---> f ---> g
        |                       =>     |
        s (shared)                     s ---> P1/f ---> P1/g      x is in the set or not; s is not

Names, control inputs, colocation groups, loop frames and shared names that refer to an op of the set refer to its copy
in the clone; references to other ops stay.
"""

import functools
from typing import (
    AbstractSet,
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import tensorflow.compat.v1 as tf

from epl.ir import node_wire
from epl.ir.view import GraphView
from epl.utils import tf_compat

# Attributes about an op's place in the user's graph, which are wrong for a copy with other inputs.
NOT_COPIED = ("_class", "_output_shapes")


class Edit(NamedTuple):
    """The changes of a copy, apart from names.

    Attributes:
      device: its device; None: that of the original.
      attrs: attributes to set.
      controls: names of further ops that it waits for: ops of the graph, copies, or extra ops.
      op: its type; "": that of the original.
    """

    device: Optional[str]
    attrs: Optional[Sequence[Tuple[str, tf.AttrValue]]]
    controls: Sequence[str] = ()
    op: str = ""


class Leads(NamedTuple):
    """Nodes that several copies share: one of these copies, the lead, has them; the others use those of the lead.

    Attributes:
      nodes: the nodes.
      of_copy: by copy, the index of its lead, which may be itself; -1: the original.
    """

    nodes: FrozenSet[int]
    of_copy: Sequence[int]


_NONE: Mapping[str, str] = {}
SAME = Edit(None, None)  # for copies that differ only in their names: these are written fastest


# NodeDef attributes with a name that copies must not share.
_OWN_NAME_ATTRS = ("frame_name", "shared_name", "var_name")


def clone_nodes(
    tf_graph: tf.Graph,
    view: GraphView,
    nodes: Iterable[int],
    prefixes: Sequence[str],
    edit: Callable[[int, int], Edit],
    extra: Sequence[tf.NodeDef] = (),
    library: Optional[Any] = None,
    inputs: Mapping[str, str] = _NONE,
    leads: Optional[Leads] = None,
    copied: FrozenSet[str] = frozenset(),
) -> Iterator[node_wire.Node]:
    """Adds one copy of `nodes` per prefix to the graph.

    Args:
      tf_graph: the graph.
      view: its view.
      nodes: indices of the ops to copy.
      prefixes: name prefix of each copy, ending in "/".
      edit: called with (index of the copy from 0, index of the original); returns the changes of the copy.
      extra: further nodes to import in the same call; their inputs may be copies or ops of the graph.
      library: functions to add to the graph.
      inputs: input of an original, as in a NodeDef -> the input to use in its place: an op of `nodes` (then its copy),
        of the graph, or an extra one.
      leads: those of `nodes` that several copies share; None: each copy has all nodes.
      copied: names of ops that have a copy for each prefix already, to which the new copies refer.

    Returns:
      The copies as they are in the graph now, created during iteration.
    """
    ordered = sorted(nodes)
    inside = copied.union(view.nodes[i].name for i in ordered)
    outside = _Outside({node.name for node in extra}, copied)
    leads = leads or Leads(frozenset(), range(len(prefixes)))
    led = _Led(frozenset(view.nodes[i].name for i in leads.nodes), -1 in leads.of_copy)
    templates = [(_Template(view.nodes[i], inside, outside, inputs, led), i) for i in ordered]
    others = [one for one in templates if one[1] not in leads.nodes]
    copies = [
        (copy, prefix, prefixes[lead] if lead >= 0 else "", templates if lead == copy else others)
        for copy, (prefix, lead) in enumerate(zip(prefixes, leads.of_copy))
    ]
    parts = []
    names: Set[str] = set()
    controls: Set[str] = set()
    for copy, prefix, lead_prefix, own_templates in copies:
        encoded, lead = prefix.encode(), lead_prefix.encode()
        for template, original in own_templates:
            own = edit(copy, original)
            if own is SAME and not template.is_led:
                parts.append(template.rename(encoded))
                continue
            controls.update(own.controls)
            parts.append(node_wire.field(node_wire.NODE, template.write(encoded, own, lead)))
        names.update(prefix + view.nodes[original].name for _, original in own_templates)
    names.update(node.name for node in extra)
    for prefix in prefixes:
        outside.add_copies(prefix)
    outside.control |= controls - names
    for node in extra:
        for name in node.input:
            if name[name[0] == "^" :].partition(":")[0] not in names:
                outside.add(name)
        parts.append(node_wire.field(node_wire.NODE, node.SerializeToString()))
    _import(tf_graph, view, parts, names, outside, library)
    return (
        template.node(prefix, edit(copy, original), lead_prefix)
        for copy, prefix, lead_prefix, own_templates in copies
        for template, original in own_templates
    )


class Clone(NamedTuple):
    """A copy of some ops of a graph.

    Attributes:
      nodes: indices of the ops to copy.
      prefix: name prefix of the copy, ending in "/".
      inputs: input of an original -> the op of the graph to use in its place.
    """

    nodes: Sequence[int]
    prefix: str
    inputs: Mapping[str, str]


def clone_each(tf_graph: tf.Graph, view: GraphView, clones: Iterable[Clone]) -> None:
    """Adds many different copies in one import: TensorFlow looks at all ops of the graph in each."""
    parts: List[bytes] = []
    names: Set[str] = set()
    outside = _Outside(set(), frozenset())
    for clone in clones:
        inside = {view.nodes[node].name for node in clone.nodes}
        for node in sorted(clone.nodes):
            template = _Template(view.nodes[node], inside, outside, clone.inputs, _Led(frozenset(), False))
            parts.append(node_wire.field(node_wire.NODE, template.write(clone.prefix.encode(), SAME, b"")))
        names.update(clone.prefix + name for name in inside)
    if parts:
        _import(tf_graph, view, parts, names, outside)


def _import(
    tf_graph: tf.Graph,
    view: GraphView,
    parts: List[bytes],
    names: Set[str],
    outside: "_Outside",
    library: Optional[Any] = None,
) -> None:
    """Adds nodes, given as fields of a GraphDef, and functions to the graph."""
    operation = tf_graph.get_operation_by_name
    tf_compat.import_nodes(
        tf_graph,
        b"".join([*parts, tf.GraphDef(versions=view.graph_def.versions, library=library).SerializeToString()]),
        names,
        [(name, output, operation(name).outputs[output]) for name, output in sorted(outside.data)],
        [(name, operation(name)) for name in sorted(outside.control)],
    )


class _Led(NamedTuple):
    """The names of the nodes that copies share; and whether some copies use the originals."""

    names: FrozenSet[str]
    from_graph: bool


class _Outside:
    """Inputs of the copies that are neither copied nor `added`: they are ops of the graph."""

    def __init__(self, added: Set[str], copied: FrozenSet[str]) -> None:
        self._added = added
        self.copied = copied
        self._of_copies: Set[str] = set()  # inputs whose producers have copies
        self.data: Set[Tuple[str, int]] = set()
        self.control: Set[str] = set()

    def add(self, name: str) -> None:
        """Notes the input `name` of a NodeDef."""
        if name[0] == "^":
            self.control.add(name[1:])
        else:
            producer, _, output = name.partition(":")
            if producer not in self._added:
                self.data.add((producer, int(output or 0)))

    def note_copied(self, name: str) -> None:
        """Notes the input `name` of a NodeDef, of which each copy takes its own one."""
        self._of_copies.add(name)

    def add_copies(self, prefix: str) -> None:
        """Notes the inputs of the copy with this prefix that were copied earlier."""
        for name in self._of_copies:
            mark = "^" if name[0] == "^" else ""
            self.add(mark + prefix + name[len(mark) :])


# A shorter mark could be a part of a field's length.
_SHORTEST_MARK = 8


class _Template:
    """A node in wire format, cut where the copies differ, so that a copy is a few joined strings.

    If an attribute is written twice, the last one counts; so changed attributes are appended.
    """

    __slots__ = ("_attrs", "_device", "_inputs", "_name", "_op", "_own_names", "_pieces", "_pieces_for", "is_led")

    def __init__(
        self, node: node_wire.Node, inside: AbstractSet[str], outside: _Outside, inputs: Mapping[str, str], led: _Led
    ) -> None:
        self._name = node.name
        self._op = node.op
        self.is_led = False  # whether it has inputs that copies share
        # (the input, None) or (the input, (text before the prefix, text after it, whether it is the lead's prefix)).
        self._inputs: List[Tuple[str, Optional[Tuple[str, str, bool]]]] = []
        for original in node.input:
            name = inputs.get(original, original)
            mark = "^" if name[0] == "^" else ""
            producer = name[len(mark) :].partition(":")[0]
            if name in inside or producer in inside:
                is_led = producer in led.names
                self.is_led = self.is_led or is_led
                self._inputs.append((name, (mark, name[len(mark) :], is_led)))
                if is_led and led.from_graph:
                    outside.add(name)
                elif producer in outside.copied:
                    outside.note_copied(name)
            else:
                outside.add(name)
                self._inputs.append((name, None))
        self._device = node.device
        self._attrs = node.serialized_attrs
        self._own_names = _own_names(node, inside - led.names if led.names else inside)
        self._pieces: List[bytes] = []
        self._pieces_for = 0

    def rename(self, prefix: bytes) -> bytes:
        """The field of a GraphDef with the copy that differs only in names.

        Copies with prefixes of equal length differ only in the bytes of the prefix: the node is cut there once.
        """
        size = len(prefix)
        if self._pieces_for != size:
            mark = b"\xff" * size  # in no name, as UTF-8 has no such byte
            if size < _SHORTEST_MARK or mark in self._attrs:
                return node_wire.field(node_wire.NODE, self.write(prefix, SAME, prefix))
            self._pieces = node_wire.field(node_wire.NODE, self.write(mark, SAME, mark)).split(mark)
            self._pieces_for = size
        return prefix.join(self._pieces)

    def write(self, prefix: bytes, edit: Edit, lead: bytes) -> bytes:
        """The NodeDef of the copy with `prefix`, whose lead has the prefix `lead`."""
        parts = [node_wire.field(node_wire.NAME, prefix + self._name.encode()), _op_field(edit.op or self._op)]
        for name, own in self._inputs:
            value = name.encode()
            if own is not None:
                value = own[0].encode() + (lead if own[2] else prefix) + own[1].encode()
            parts.append(node_wire.field(node_wire.INPUT, value))
        for name in edit.controls:
            parts.append(node_wire.field(node_wire.INPUT, b"^" + name.encode()))
        device = self._device if edit.device is None else edit.device
        if device:
            parts.append(_device_field(device))
        parts.append(self._attrs)
        parts += self._own_attrs(prefix, edit)
        return b"".join(parts)

    def node(self, prefix: str, edit: Edit, lead: str) -> node_wire.Node:
        """The copy with `prefix`, whose lead has the prefix `lead`, as a Node."""
        inputs = [name if own is None else own[0] + (lead if own[2] else prefix) + own[1] for name, own in self._inputs]
        inputs += ["^" + name for name in edit.controls]
        device = self._device if edit.device is None else edit.device
        attrs = self._attrs
        if self._own_names or edit.attrs:
            attrs = b"".join([attrs] + self._own_attrs(prefix.encode(), edit))
        return node_wire.Node(prefix + self._name, edit.op or self._op, inputs, device, attrs)

    def _own_attrs(self, prefix: bytes, edit: Edit) -> List[bytes]:
        """The attributes of a copy that differ from the original."""
        parts = [node_wire.attr(key, value.SerializeToString()) for key, value in edit.attrs or ()]
        for key, names, is_list in self._own_names:
            named = [name if before is None else before + prefix + name for before, name in names]
            parts.append(node_wire.attr(key, node_wire.strings(named) if is_list else node_wire.string(named[0])))
        return parts


@functools.lru_cache(maxsize=256)
def _op_field(op: str) -> bytes:
    return node_wire.field(node_wire.OP, op.encode())


@functools.lru_cache(maxsize=256)
def _device_field(device: str) -> bytes:
    return node_wire.field(node_wire.DEVICE, device.encode())


# A name in an attribute, cut where the prefix is inserted; if the first part is None, the name stays as it is.
_Name = Tuple[Optional[bytes], bytes]


def _own_names(node: node_wire.Node, inside: AbstractSet[str]) -> List[Tuple[str, List[_Name], bool]]:
    """Attributes with names that get the prefix of a copy: (key, names, is a list)."""
    data = node.serialized_attrs
    if b"_class" not in data and b"_name" not in data:  # most nodes
        return []
    attrs = node.attr
    found: List[Tuple[str, List[_Name], bool]] = []
    for key in _OWN_NAME_ATTRS:
        name = node_wire.read_string(attrs.serialized(key))
        if name:
            found.append((key, [(b"", name)], False))
    own: List[_Name] = [
        (b"loc:@", group[5:]) if group[:5] == b"loc:@" and group[5:].decode() in inside else (None, group)
        for group in node_wire.read_strings(attrs.serialized("_class"))
    ]
    if any(before is not None for before, _ in own):
        found.append(("_class", own, True))
    return found


def copy_op(op: tf.Operation, inputs: Sequence[tf.Tensor], attrs: Dict[str, Any]) -> tf.Operation:
    """A copy of `op` in the default graph, with other inputs and the given attributes."""
    values = {name: value for name, value in op.node_def.attr.items() if name not in NOT_COPIED}
    values.update({name: _attr_value(value) for name, value in attrs.items()})
    name = op.name.split("/")[-1]
    return tf.get_default_graph().create_op(op.type, list(inputs), name=name, attrs=values, op_def=op.op_def)


def _attr_value(value: Any) -> tf.AttrValue:
    """A Python value as an attribute."""
    if isinstance(value, tf.AttrValue):
        return value
    if isinstance(value, bool):
        return tf.AttrValue(b=value)
    if isinstance(value, int):
        return tf.AttrValue(i=value)
    if isinstance(value, float):
        return tf.AttrValue(f=value)
    if isinstance(value, tf.DType):
        return tf.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return tf.AttrValue(shape=value.as_proto())
    if isinstance(value, (str, bytes)):
        return tf.AttrValue(s=value.encode() if isinstance(value, str) else value)
    listed = [_attr_value(element) for element in value]
    field = listed[0].WhichOneof("value") if listed else "i"
    return tf.AttrValue(list=tf.AttrValue.ListValue(**{field: [getattr(element, field) for element in listed]}))
