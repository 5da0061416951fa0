"""Cloning in bulk: all copies of a set of ops are written into one GraphDef and imported in one call.

        x ---> f ---> g                x ---> f ---> g
        |                       =>     |
        s (shared)                     s ---> P1/f ---> P1/g      x is in the set or not; s is not

Names, control inputs, colocation groups, loop frames and shared names that point into the set point to the copy; what
points outside is shared with the original.
"""

from typing import Callable, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.utils import tf_compat

Edit = NamedTuple("Edit", [("device", Optional[str]), ("attrs", Optional[Sequence[Tuple[str, tf.AttrValue]]])])
Edit.__doc__ = """What differs in a copy, besides names.

Attributes:
  device: its device; None: that of the original.
  attrs: attributes to set.
"""

# NodeDef attributes that name a thing that must not be shared between copies.
_OWN_NAME_ATTRS = ("frame_name", "shared_name", "var_name")


def clone_nodes(
    tf_graph: tf.Graph,
    view: GraphView,
    nodes: Iterable[int],
    prefixes: Sequence[str],
    edit: Callable[[int, int], Edit],
    extra: Sequence[tf.NodeDef] = (),
) -> None:
    """Adds one copy of `nodes` per prefix to the graph.

    Args:
      tf_graph: the graph, whose GraphDef `view` has read.
      view: the view.
      nodes: indices of the ops to copy.
      prefixes: name prefix of each copy, ending in "/".
      edit: called with (index of the copy from 0, index of the original); says what differs in the copy.
      extra: further nodes to import in the same call; they may name nodes of the copies and of the graph.
    """
    ordered = sorted(nodes)
    inside = {view.nodes[i].name for i in ordered}
    outside = _Outside()
    templates = [(_Template(view.nodes[i], inside, outside), i) for i in ordered]
    parts = []
    names: Set[str] = set()
    for copy, prefix in enumerate(prefixes):
        encoded = prefix.encode()
        for template, original in templates:
            parts.append(_field(_NODE, template.write(encoded, edit(copy, original))))
        names.update(prefix + name for name in inside)
    names.update(node.name for node in extra)
    for node in extra:
        for name in node.input:
            if name[name[0] == "^" :].partition(":")[0] not in names:
                outside.add(name)
        parts.append(_field(_NODE, node.SerializeToString()))
    parts.append(tf.GraphDef(versions=view.graph_def.versions).SerializeToString())
    operation = tf_graph.get_operation_by_name
    tf_compat.import_nodes(
        tf_graph,
        b"".join(parts),
        names,
        [(name, output, operation(name).outputs[output]) for name, output in sorted(outside.data)],
        [(name, operation(name)) for name in sorted(outside.control)],
    )


class _Outside(object):
    """Inputs of the copies that are not copied: they come from the graph itself."""

    def __init__(self) -> None:
        self.data: Set[Tuple[str, int]] = set()
        self.control: Set[str] = set()

    def add(self, name: str) -> None:
        """Notes the input `name` of a NodeDef."""
        if name[0] == "^":
            self.control.add(name[1:])
        else:
            producer, _, output = name.partition(":")
            self.data.add((producer, int(output or 0)))


class _Template(object):
    """A NodeDef in wire format, cut where the copies differ, so that a copy is a few joined strings.

    A NodeDef is written as name, op, inputs, device, attributes. Of a field that is written twice the last one counts,
    so what differs behind the inputs is appended.
    """

    __slots__ = ("_attrs", "_inputs", "_name", "_op", "_rest")

    def __init__(self, node: tf.NodeDef, inside: Set[str], outside: _Outside) -> None:
        self._name = node.name.encode()
        self._op = _field(_OP, node.op.encode())
        self._inputs: List[Tuple[bytes, Optional[bytes]]] = []
        start = len(_field(_NAME, self._name)) + len(self._op)
        for name in node.input:
            encoded = name.encode()
            start += len(_field(_INPUT, encoded))
            mark = b"^" if name[0] == "^" else b""
            if name[len(mark) :].partition(":")[0] in inside:
                self._inputs.append((mark, encoded[len(mark) :]))
            else:
                outside.add(name)
                self._inputs.append((_field(_INPUT, encoded), None))
        self._rest = node.SerializeToString()[start:]
        self._attrs = _own_names(node, inside)

    def write(self, prefix: bytes, edit: Edit) -> bytes:
        """The copy with `prefix`."""
        parts = [_field(_NAME, prefix + self._name), self._op]
        for mark, rest in self._inputs:
            parts.append(mark if rest is None else _field(_INPUT, mark + prefix + rest))
        parts.append(self._rest)
        if edit.device is not None:
            parts.append(_field(_DEVICE, edit.device.encode()))
        for key, value in edit.attrs or ():
            parts.append(_attr(key, value))
        for key, values, is_list in self._attrs:
            named = [before + prefix + name if before is not None else name for before, name in values]
            parts.append(_attr(key, tf.AttrValue(list={"s": named}) if is_list else tf.AttrValue(s=named[0])))
        return b"".join(parts)


def _own_names(node: tf.NodeDef, inside: Set[str]) -> List[Tuple[str, List[Tuple[Optional[bytes], bytes]], bool]]:
    """Attributes that name what a copy has of its own: (key, names, is a list).

    A name has two parts, between which the prefix goes. One whose first part is None stays as it is.
    """
    attrs = node.attr
    found: List[Tuple[str, List[Tuple[Optional[bytes], bytes]], bool]] = [
        (key, [(b"", attrs[key].s)], False) for key in _OWN_NAME_ATTRS if key in attrs and attrs[key].s
    ]
    if "_class" in attrs:
        groups = attrs["_class"].list.s
        own = [(b"loc:@", s[5:]) if s[:5] == b"loc:@" and s[5:].decode() in inside else (None, s) for s in groups]
        if any(before is not None for before, _ in own):
            found.append(("_class", own, True))
    return found


# Field numbers of GraphDef.node and of NodeDef (tensorflow/core/framework/{graph,node_def}.proto).
_NODE = b"\x0a"
_NAME, _OP, _INPUT, _DEVICE, _ATTR = b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a"
_KEY, _VALUE = b"\x0a", b"\x12"  # of an entry of the map NodeDef.attr


def _field(tag: bytes, payload: bytes) -> bytes:
    """A length-delimited field in protobuf wire format."""
    size = len(payload)
    if size < 128:
        return tag + _ONE_BYTE[size] + payload
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return tag + bytes(length) + payload


_ONE_BYTE = [bytes([size]) for size in range(128)]


def _attr(key: str, value: tf.AttrValue) -> bytes:
    return _field(_ATTR, _field(_KEY, key.encode()) + _field(_VALUE, value.SerializeToString()))
