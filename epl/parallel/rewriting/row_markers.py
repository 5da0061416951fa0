"""Markers in the user's graph: identities of what a replica has, which pass on what all replicas have.

    forward      own sums or rows --> marker --> ...
    backward          gradient <-- marker <-- ...

A feature makes them while the user builds the model, and gives each its kind. The feature's pass puts a collective
before each of them (of_all_rows.py). A graph that is not rewritten has one replica, whose rows are all rows: there a
marker is what it looks like.

Recomputation keeps what a marker passes on, and never copies a marker: the copy would pass on what the replica has.
"""

from typing import List

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.utils import tf_compat

_KIND_ATTR = "_epl_all_rows"


def marked(tensor: tf.Tensor, kind: bytes, gradient: str, name: str) -> tf.Tensor:
    """A marker of a tensor.

    Args:
      tensor: what the replica has.
      kind: by which the pass knows what to put before it.
      gradient: the name under which its gradient is registered.
      name: of the op.
    """
    with tf.get_default_graph().gradient_override_map({"Identity": gradient}):
        made = tf.identity(tensor, name)
    tf_compat.set_attr(made.op, _KIND_ATTR, tf.AttrValue(s=kind))
    return made


def kind_of(marker: tf.Operation) -> bytes:
    """The kind of a marker."""
    kind: bytes = marker.get_attr(_KIND_ATTR)
    return kind


def find_markers(view: GraphView, *kinds: bytes) -> List[int]:
    """The markers of some kinds; of all, if none is given."""
    found = view.of_attrs(lambda attrs: attrs[_KIND_ATTR].s if _KIND_ATTR in attrs else b"")
    return [
        node
        for node, kind in enumerate(found)
        if kind and (not kinds or kind in kinds) and view.types[node] == "Identity"
    ]
