"""GraphDefs in protobuf's wire format: reads nodes from a serialized graph, and writes serialized nodes.

Protobuf's own Python messages take longer to parse and serialize than TensorFlow takes to import the copies; and of
most nodes only name, type and inputs are read. Attributes are parsed when they are read.

    node: | name | op | input ... | device | attr ... |     a field: | tag | length | that many bytes |
            `- read at once --------------'  `- kept as they are
"""

from collections.abc import MutableMapping
from typing import Any, Dict, Iterator, List, Optional, Tuple

import tensorflow.compat.v1 as tf

# Field numbers of GraphDef, NodeDef, NodeDef.attr's entries and AttrValue, with their wire type
# (tensorflow/core/framework/{graph,node_def,attr_value}.proto).
NODE, LIBRARY, VERSIONS = b"\x0a", b"\x12", b"\x22"
NAME, OP, INPUT, DEVICE, ATTR = b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a"
KEY, VALUE = b"\x0a", b"\x12"
LIST, STRING = b"\x0a", b"\x12"
_GRAPH_FIELDS = (NODE[0], LIBRARY[0], VERSIONS[0])


class Attributes(MutableMapping):  # type: ignore[type-arg]  # typing's takes five times as long to make
    """The attributes of a node, like `NodeDef.attr`: a missing one reads as an empty AttrValue.

    A read returns a copy, so an attribute can only be changed by setting it.
    """

    __slots__ = ("_entries", "_node")

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._entries: Optional[Dict[str, bytes]] = None

    def __getitem__(self, key: str) -> tf.AttrValue:
        value = self._split().get(key)
        return tf.AttrValue() if value is None else tf.AttrValue.FromString(payloads(value)[0])

    def __setitem__(self, key: str, value: tf.AttrValue) -> None:
        self._split()[key] = field(VALUE, value.SerializeToString())
        self._write()

    def __delitem__(self, key: str) -> None:
        del self._split()[key]
        self._write()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.encode() in self._node.serialized_attrs and key in self._split()

    def __iter__(self) -> Iterator[str]:
        return iter(self._split())

    def __len__(self) -> int:
        return len(self._split())

    def get(self, key: str, default: Any = None) -> Any:
        """The attribute, or `default` if it is missing."""
        return self[key] if key in self else default

    def serialized(self, key: str) -> bytes:
        """The attribute as a serialized AttrValue, ten times faster than parsing it; empty if it is missing."""
        value = self._split().get(key)
        return b"" if value is None else payloads(value)[0]

    def _split(self) -> Dict[str, bytes]:
        if self._entries is None:
            self._entries = split_attrs(self._node.serialized_attrs)
        return self._entries

    def _write(self) -> None:
        entries = [field(KEY, key.encode()) + value for key, value in self._split().items()]
        self._node.serialized_attrs = b"".join([field(ATTR, entry) for entry in entries])


class Node:
    """One op, which is read and changed like a NodeDef.

    Attributes:
      name, op, input, device: as in a NodeDef.
      serialized_attrs: the attributes, in wire format.
    """

    __slots__ = ("device", "input", "name", "op", "serialized_attrs")

    def __init__(self, name: str, op: str, inputs: List[str], device: str, serialized_attrs: bytes) -> None:
        self.name = name
        self.op = op
        self.input = inputs
        self.device = device
        self.serialized_attrs = serialized_attrs

    @property
    def attr(self) -> Attributes:
        """The attributes by name."""
        return Attributes(self)

    def to_proto(self) -> tf.NodeDef:
        """The node as a new NodeDef."""
        proto = tf.NodeDef.FromString(self.serialized_attrs)
        proto.MergeFrom(tf.NodeDef(name=self.name, op=self.op, input=self.input, device=self.device))
        return proto


def read_graph(data: bytes) -> Tuple[List[Node], tf.GraphDef]:
    """Cuts a GraphDef, as TensorFlow serializes it, into its nodes and a GraphDef of the rest."""
    nodes = []
    rest = []
    text = data.decode("latin-1")  # of the same length; names, types and devices are ASCII
    position, end = 0, len(data)
    while position < end:
        start = position
        tag, size, position = data[position], data[position + 1], position + 2
        if size > 127:
            size, position = _length(data, position - 1)
        stop = position + size
        if tag == NODE[0]:
            nodes.append(_read_node(data, text, position, stop))
        elif tag in _GRAPH_FIELDS:
            rest.append(data[start:stop])
        else:
            raise ValueError(f"Field tag {tag} of a GraphDef is unknown: it is of another TensorFlow.")
        position = stop
    return nodes, tf.GraphDef.FromString(b"".join(rest))


def read_node(data: bytes) -> Node:
    """Reads a serialized NodeDef; an input from a first output is named "x", as in a GraphDef, not "x:0"."""
    node = _read_node(data, data.decode("latin-1"), 0, len(data))
    node.input = [name[:-2] if name.endswith(":0") else name for name in node.input]
    return node


def _read_node(data: bytes, text: str, position: int, stop: int) -> Node:
    """Reads the node from `position` to `stop`. This is the hot loop: 3 us a node."""
    name = op = device = ""
    inputs = []
    while position < stop:
        tag = data[position]
        if tag >= 0x2A:  # fields are written in the order of their numbers
            break
        size, position = data[position + 1], position + 2
        if size > 127:
            size, position = _length(data, position - 1)
        value = text[position : position + size]
        if tag == 0x1A:
            inputs.append(value)
        elif tag == 0x0A:
            name = value
        elif tag == 0x12:
            op = value
        else:
            device = value
        position += size
    return Node(name, op, inputs, device, data[position:stop])


def split_attrs(data: bytes) -> Dict[str, bytes]:
    """The attributes of a node: key -> the field with the value."""
    entries = {}
    position = 0
    while position < len(data):
        tag, size, position = data[position], data[position + 1], position + 2
        if size > 127:
            size, position = _length(data, position - 1)
        if tag == ATTR[0]:
            key_size, key = data[position + 1], position + 2
            if key_size > 127:
                key_size, key = _length(data, key - 1)
            entries[data[key : key + key_size].decode()] = data[key + key_size : position + size]
        position += size
    return entries


def payloads(data: bytes) -> List[bytes]:
    """The contents of the length-delimited fields in `data`."""
    found = []
    position = 0
    while position < len(data):
        size, position = data[position + 1], position + 2
        if size > 127:
            size, position = _length(data, position - 1)
        found.append(data[position : position + size])
        position += size
    return found


def _length(data: bytes, position: int) -> Tuple[int, int]:
    """The number of variable length at `position`, and where it ends."""
    size = shift = 0
    while True:
        byte = data[position]
        position += 1
        size |= (byte & 127) << shift
        if byte < 128:
            return size, position
        shift += 7


def field(tag: bytes, payload: bytes) -> bytes:
    """A length-delimited field."""
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


def attr(key: str, value: bytes) -> bytes:
    """An attribute of a node; `value` is a serialized AttrValue."""
    return field(ATTR, field(KEY, key.encode()) + field(VALUE, value))


def string(value: bytes) -> bytes:
    """A serialized AttrValue that holds a string."""
    return field(STRING, value)


def strings(values: List[bytes]) -> bytes:
    """A serialized AttrValue that holds a list of strings."""
    return field(LIST, b"".join([field(STRING, value) for value in values]))


def read_string(value: bytes) -> bytes:
    """The string that a serialized AttrValue holds; empty if it holds none."""
    return b"".join(payloads(value))


def read_strings(value: bytes) -> List[bytes]:
    """The strings that a serialized AttrValue holds, which is a list or empty."""
    return payloads(read_string(value))
