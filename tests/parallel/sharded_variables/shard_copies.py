"""The other ranks of one process, made as EPL makes them: copies of what was built, with what differs between ranks."""

import tensorflow.compat.v1 as tf

from epl.ir.clone import Edit, clone_nodes
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.utils import tf_compat

PREFIX = "EPL_REPLICA_{}/"


def copy_ranks(after, resharder, shapes, seeds, ranks):
    """Copies every op created after op number `after`, for each of the further ranks."""
    graph = tf.get_default_graph()
    view = GraphView(graph)
    nodes = [view.index[op.name] for op in tf_compat.ops_since(graph, after)]
    clone_nodes(
        graph, view, nodes, [PREFIX.format(rank) for rank in ranks], edits(view, resharder, shapes, seeds, ranks)
    )


def edits(view, resharder, shapes, seeds, ranks):
    """`clone_nodes`' edit: the recorded values of each rank."""

    def edit(copy, original):
        name, rank = view.nodes[original].name, ranks[copy]
        attrs = []
        if name in resharder.owned:
            owned = resharder.owned[name]
            attrs.append(("value", tf.AttrValue(tensor=tf.make_tensor_proto(owned.values[rank], owned.dtype))))
        if name in shapes:
            attrs.append(("shape", tf.AttrValue(shape=tf.TensorShape(shapes[name][rank]).as_proto())))
        if name in seeds:
            attrs.append(("seed2", tf.AttrValue(i=seeds[name][rank])))
        if view.types[original] in COLLECTIVE_OP_TYPES:
            attrs.append(("rank", tf.AttrValue(i=rank)))
        return Edit(None, attrs)

    return edit
