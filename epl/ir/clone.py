"""Cloning in bulk: all copies of a set of ops are written into one GraphDef and imported in one call.

        x ---> f ---> g                x ---> f ---> g
        |                       =>     |
        s (shared)                     s ---> P1/f ---> P1/g      x is in the set or not; s is not

Names, control inputs, colocation groups, loop frames and shared names that point into the set point to the copy; what
points outside is shared with the original.
"""

from typing import Callable, Iterable, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.utils import tf_compat

# NodeDef attributes that name a thing that must not be shared between copies.
_OWN_NAME_ATTRS = ("frame_name", "shared_name", "var_name")


def clone_nodes(
    tf_graph: tf.Graph,
    view: GraphView,
    nodes: Iterable[int],
    prefixes: Sequence[str],
    edit: Callable[[tf.NodeDef, int, int], None],
    extra: Sequence[tf.NodeDef] = (),
) -> None:
    """Adds one copy of `nodes` per prefix to the graph.

    Args:
      tf_graph: the graph, whose GraphDef `view` has read.
      view: the view.
      nodes: indices of the ops to copy.
      prefixes: name prefix of each copy, ending in "/".
      edit: called with (NodeDef of the copy, index of the copy from 0, index of the original) to change it.
      extra: further nodes to import in the same call; they may name nodes of the copies and of the graph.
    """
    ordered = sorted(nodes)
    inside = {view.nodes[i].name for i in ordered}
    clones = tf.GraphDef()
    clones.versions.CopyFrom(view.graph_def.versions)
    outside_data: Set[Tuple[str, int]] = set()
    outside_control: Set[str] = set()
    templates = [_Template(view.nodes[i], inside, outside_data, outside_control) for i in ordered]
    for copy, prefix in enumerate(prefixes):
        for template, original in zip(templates, ordered):
            node = clones.node.add()
            template.write(node, prefix)
            edit(node, copy, original)
    known = {node.name for node in clones.node}
    for node in extra:
        for name in node.input:
            producer = name[1:] if name[0] == "^" else name.partition(":")[0]
            if producer in known:
                continue
            if name[0] == "^":
                outside_control.add(producer)
            else:
                outside_data.add((producer, int(name.partition(":")[2] or 0)))
        clones.node.add().CopyFrom(node)
        known.add(node.name)
    operation = tf_graph.get_operation_by_name
    tf_compat.import_nodes(
        tf_graph,
        clones,
        [(name, output, operation(name).outputs[output]) for name, output in sorted(outside_data)],
        [(name, operation(name)) for name in sorted(outside_control)],
    )


class _Template(object):
    """A NodeDef taken apart once, so that each copy costs little: which inputs and attributes take the prefix."""

    __slots__ = ("_colocated", "_inputs", "_name", "_node", "_prefixed_attrs")

    def __init__(
        self, node: tf.NodeDef, inside: Set[str], outside_data: Set[Tuple[str, int]], outside_control: Set[str]
    ) -> None:
        self._node = node
        self._name = node.name
        inputs: List[Tuple[int, str, str]] = []
        for i, name in enumerate(node.input):
            if name[0] == "^":
                producer, mark = name[1:], "^"
                if producer not in inside:
                    outside_control.add(producer)
            else:
                producer, _, output = name.partition(":")
                mark = ""
                if producer not in inside:
                    outside_data.add((producer, int(output or 0)))
            if producer in inside:
                inputs.append((i, mark, name[len(mark) :]))
        self._inputs = inputs
        attrs = node.attr
        self._prefixed_attrs = [key for key in _OWN_NAME_ATTRS if key in attrs and attrs[key].s]
        # Of each colocation group: its name where it points into the set, and as it stands.
        self._colocated: List[Tuple[Optional[bytes], bytes]] = []
        if "_class" in attrs:
            groups = [
                (s[5:] if s[:5] == b"loc:@" and s[5:].decode() in inside else None, s) for s in attrs["_class"].list.s
            ]
            if any(inner is not None for inner, _ in groups):
                self._colocated = groups

    def write(self, node: tf.NodeDef, prefix: str) -> None:
        """Makes `node` the copy with `prefix`."""
        node.CopyFrom(self._node)
        node.name = prefix + self._name
        inputs = node.input
        for i, mark, rest in self._inputs:
            inputs[i] = mark + prefix + rest
        if self._prefixed_attrs:
            for key in self._prefixed_attrs:
                value = node.attr[key]
                value.s = prefix.encode() + value.s
        if self._colocated:
            names = node.attr["_class"].list
            del names.s[:]
            encoded = prefix.encode()
            names.s.extend(b"loc:@" + encoded + inner if inner is not None else s for inner, s in self._colocated)
