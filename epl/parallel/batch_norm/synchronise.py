"""Gives batch norms the statistics of all rows, forward and backward (`batch_norm.sync`).

The sums that a marker (sums.py) passes on become those of all replicas. A run that neither trains nor writes takes
those of the rows that it has, and waits for no other worker (`epl/parallel/rewriting/by_hand.py`).

Backward, the loss of all rows is the mean of the replicas' losses with their weights w (batch_weights.py), and each
replica computes the gradient of its own: so its sums are multiplied by w, and what it gets is divided by w.

The collectives of a direction share a communicator, on which they follow each other in the order of the graph.
"""

from typing import List

import tensorflow.compat.v1 as tf

from epl.ir.control_flow import depths_of, ends_of, run_order
from epl.ir.taskgraph import PHASE_ATTR
from epl.ir.view import GraphView
from epl.parallel.batch_norm import sites
from epl.parallel.batch_norm.sums import BACKWARD
from epl.parallel.plan.communicators import batch_norm_communicator
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import BatchNormSection
from epl.parallel.rewriting import of_all_rows
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.needed_collectives import OrderedCollective, order_needed
from epl.parallel.rewriting.pass_manager import Pass, names

_PHASE = PHASE_ATTR.encode()  # of the backward pass


def run(rewrite: RewriteContext) -> None:
    """Adds the collectives of replica 0."""
    planned = section(rewrite.plan, BatchNormSection)
    if planned is None:
        return
    view = GraphView(rewrite.tf_graph)
    forward = [view.index[op] for op in planned.ops]
    after = view.descendants(set(forward))
    marked = set(sites.marked_nodes(view, BACKWARD))
    backward = [node for node in run_order(view) if node in after and node in marked]
    made = [_sum_forward(rewrite, view.nodes[node].name) for node in forward]
    _order(rewrite, view, forward, made, "forward")
    _order(rewrite, view, backward, [_sum_backward(rewrite, view.nodes[node].name) for node in backward], "backward")


def _sum_forward(rewrite: RewriteContext, name: str) -> tf.Operation:
    """Puts the sums of all rows in place of a replica's; returns the collective."""
    return of_all_rows.put(rewrite, name, "batch_norm", _all_reduce(rewrite, name, "forward"))


def _sum_backward(rewrite: RewriteContext, name: str) -> tf.Operation:
    """Puts the gradient of the loss of all rows in place of a replica's; returns the collective."""
    weight = rewrite.weight
    assert weight is not None  # there are several replicas
    if rewrite.plan.reduce_method == "sum":
        with rewrite.building(f"batch_norm/{name}"):
            weight = tf.sign(weight)
    exchange = of_all_rows.with_weight(weight, _all_reduce(rewrite, name, "backward"))
    return of_all_rows.put(rewrite, name, "batch_norm", exchange)


def _all_reduce(rewrite: RewriteContext, name: str, direction: str) -> of_all_rows.Exchange:
    communicator = rewrite.communicator(batch_norm_communicator(rewrite.plan, direction))
    return lambda sums: communicator.all_reduce(sums, rewrite.base_rank, f"batch norm {name}")


def _order(
    rewrite: RewriteContext, view: GraphView, nodes: List[int], made: List[tf.Operation], direction: str
) -> None:
    """Fixes the order of collectives, one for each node, on their communicator.

    Those of the forward pass do not wait for the backward pass, which follows all of them: a branch ends in both.
    """
    depths = depths_of(view)
    ordered = []
    for node, op in zip(nodes, made):
        ends = ends_of(view, node, depths) if depths[node] != (0, 0) else []
        if direction == "forward":
            ends = [end for end in ends if _PHASE not in view.nodes[end].serialized_attrs]
        ordered.append(OrderedCollective(op, tuple(rewrite.operation(view.nodes[n].name) for n in ends) or (op,), 0))
    order_needed(rewrite, ordered, f"batch_norm_{direction}")


PASS = Pass(
    "sync_batch_norm",
    run,
    "batch_norm.sync",
    adds=names("by_hand of_all_rows collectives orders"),
    requires=names("weight"),
    after=names("aggregate_gradients order_scale_updates"),
)
