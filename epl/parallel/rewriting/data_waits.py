"""Waits for the data of a step: ops wait for the used outputs of a data source, not for the source itself.

    get_next --> x --> identity --> gate        a run that feeds x does not run get_next

If a run feeds all outputs of a source that it uses, TensorFlow does not run the source, unless an op waits for the
source by a control edge. In other runs the dependency optimizer of TensorFlow 1.15 turns the identities into such
edges, so they cost nothing. Where a source is fed it does not run: it does not know the type of such a feed, and
leaves the graph as it is. That of TensorFlow 2 runs there, too, so it is told to keep the identities.
"""

from typing import AbstractSet, Iterable, List

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.taskgraph import HOST_ATTR
from epl.ir.view import GraphView
from epl.parallel.rewriting.context import RewriteContext
from epl.utils import tf_compat


def ends_of_data(
    rewrite: RewriteContext, view: GraphView, nodes: Iterable[int], takers: AbstractSet[int], micro_batch: int = 0
) -> List[tf.Operation]:
    """The ops to wait for in place of nodes: for a data source, identities of its used outputs.

    Args:
      rewrite: the rewriting.
      view: view of its graph.
      nodes: the nodes to wait for.
      takers: nodes that the step needs; outputs that only other nodes read do not count.
      micro_batch: the micro batch, whose copies of the nodes are used.
    """
    found: List[tf.Operation] = []
    for node in nodes:
        op = rewrite.operation(rewrite.in_micro_batch(view.nodes[node].name, micro_batch))
        found += outputs_shown(rewrite, op, outputs_taken(view, node, takers))
    return found


def outputs_taken(view: GraphView, node: int, takers: AbstractSet[int]) -> List[int]:
    """The positions of the outputs of a data source that `takers` read; none for another op."""
    if view.types[node] not in op_types.DATA_SOURCES:
        return []
    found = set()
    for taker in takers & set(view.consumers()[node]):
        for taken in view.nodes[taker].input:
            name, _, position = taken.partition(":")
            if name == view.nodes[node].name:
                found.add(int(position or 0))
    return sorted(found)


def outputs_shown(rewrite: RewriteContext, op: tf.Operation, positions: Iterable[int]) -> List[tf.Operation]:
    """Identities of these outputs of an op, which run after it; without positions the op itself."""
    tensors = [op.outputs[position] for position in positions]
    for tensor in tensors:
        if tensor.name not in rewrite.data_shown:
            with rewrite.building("data"), tf.device(rewrite.host):
                shown = tf.identity(tensor).op
            tf_compat.set_attr(shown, HOST_ATTR, tf.AttrValue(b=True))
            tf_compat.keep_when_optimized(shown)
            rewrite.data_shown[tensor.name] = shown
    return [rewrite.data_shown[tensor.name] for tensor in tensors] or [op]
