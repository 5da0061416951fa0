"""What waits for the data of a step waits for the outputs of a data source that the step takes, not for the source.

    get_next --> x --> identity --> gate        in a run that is fed x, get_next does not run

TensorFlow does not read a source of which a run takes nothing but what it is fed, unless something waits for the
source by a control edge. In other runs the dependency optimizer makes such edges of the identities, which so cost
nothing. It does not run where a source is fed: TensorFlow 1.15 cannot tell the type of such a feed, and leaves the
graph as it is.
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
    """The ops to wait for in place of nodes: of each data source among them, what shows its outputs.

    Args:
      rewrite: of the graph.
      view: of it.
      nodes: what is waited for.
      takers: nodes that the step needs; what others take of a source is no matter.
      micro_batch: in whose copies of the nodes.
    """
    found: List[tf.Operation] = []
    for node in nodes:
        op = rewrite.operation(rewrite.in_micro_batch(view.nodes[node].name, micro_batch))
        found += outputs_shown(rewrite, op, outputs_taken(view, node, takers))
    return found


def outputs_taken(view: GraphView, node: int, takers: AbstractSet[int]) -> List[int]:
    """The positions of the outputs of a data source that some of `takers` take; none of another op."""
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
    """The ops that have run once these outputs of an op have values; without positions the op itself."""
    tensors = [op.outputs[position] for position in positions]
    for tensor in tensors:
        if tensor.name not in rewrite.data_shown:
            with rewrite.building("data"), tf.device(rewrite.host):
                shown = tf.identity(tensor).op
            tf_compat.set_attr(shown, HOST_ATTR, tf.AttrValue(b=True))
            rewrite.data_shown[tensor.name] = shown
    return [rewrite.data_shown[tensor.name] for tensor in tensors] or [op]
