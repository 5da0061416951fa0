"""Puts what all replicas have in place of what a replica has, at an identity of its graph, forward and backward.

    own --> identity --> ...              =>   own --> collective --> identity --> ...
    ... --> identity --> gradient         =>   ... --> * w --> collective --> / w --> identity --> gradient

w is the weight of the replica in the mean of the losses: each replica computes the gradient of its own loss.
"""

from typing import AbstractSet, Callable, Dict, List

import tensorflow.compat.v1 as tf

from epl.ir.control_flow import run_order
from epl.ir.view import GraphView
from epl.ops.weighing import weighed
from epl.parallel.rewriting.by_hand import unless_by_hand
from epl.parallel.rewriting.context import RewriteContext
from epl.utils import tf_compat

Exchange = Callable[[tf.Tensor], tf.Tensor]


def by_stage(rewrite: RewriteContext, view: GraphView, nodes: AbstractSet[int]) -> Dict[int, List[str]]:
    """The names of nodes by stage, in the order of the graph: in a pipeline, micro batch after micro batch."""
    found: Dict[int, List[str]] = {}
    for node in run_order(view):
        if node in nodes:
            name = view.nodes[node].name
            found.setdefault(rewrite.stage_of.get(name, 0), []).append(name)
    return found


def put(rewrite: RewriteContext, name: str, scope: str, exchange: Exchange, stage: int) -> tf.Operation:
    """Lets an identity of replica 0 take what a collective makes of its input, unless the run is by hand.

    Args:
      rewrite: learns of the collective.
      name: of the identity.
      scope: of the names of the ops.
      exchange: adds the collective, one op, which takes what it is given.
      stage: of the identity.

    Returns:
      The collective.
    """
    op = rewrite.remember(rewrite.operation(name))
    with rewrite.building(f"{scope}/{name}", stage):
        whole, (collective,) = unless_by_hand(rewrite, op.inputs[0], exchange)
        whole.set_shape(op.outputs[0].shape)
    tf_compat.set_input(op, 0, whole)
    return collective


def with_weight(weight: tf.Tensor, exchange: Exchange) -> Exchange:
    """The exchange of gradients of the replicas' own losses, which gives that of the loss of all rows."""

    def exchange_gradient(gradient: tf.Tensor) -> tf.Tensor:
        total = exchange(weighed(gradient, weight))
        return tf.math.divide_no_nan(total, tf.fill(tf.shape(total), tf.cast(weight, total.dtype)))

    return exchange_gradient
