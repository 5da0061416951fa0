"""Gives batch norms the statistics of all rows, forward and backward (`batch_norm.sync`).

The sums that a marker (sums.py) passes on become those of all replicas. A run that neither trains nor writes takes
those of the rows that it has, and waits for no other worker (`epl/parallel/rewriting/by_hand.py`).

Backward, the loss of all rows is the mean of the replicas' losses with their weights w (batch_weights.py), and each
replica computes the gradient of its own: so its sums are multiplied by w, and what it gets is divided by w.

The collectives of a stage in one direction share a communicator, on which they follow each other in the order of the
graph: in a pipeline that of its schedule, micro batch after micro batch.
"""

from typing import List

import tensorflow.compat.v1 as tf

from epl.ir.control_flow import depths_of, ends_of
from epl.ir.taskgraph import PHASE_ATTR
from epl.ir.view import GraphView
from epl.parallel.batch_norm.sums import BACKWARD
from epl.parallel.plan.communicators import batch_norm_communicator
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import BatchNormSection
from epl.parallel.rewriting import of_all_rows
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.needed_collectives import OrderedCollective, order_needed
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.row_markers import find_markers

_PHASE = PHASE_ATTR.encode()  # of the backward pass


def run(rewrite: RewriteContext) -> None:
    """Adds the collectives of replica 0."""
    planned = section(rewrite.plan, BatchNormSection)
    if planned is None:
        return
    view = GraphView(rewrite.tf_graph)
    forward = {view.index[prefix + op] for op in planned.ops for prefix in rewrite.micro_prefixes_of(op)}
    backward = view.descendants(forward).intersection(find_markers(view, BACKWARD))
    for direction, markers in (("forward", forward), ("backward", backward)):
        for stage, ops in of_all_rows.by_stage(rewrite, view, markers).items():
            made = [_put(rewrite, name, number, direction, stage) for number, name in enumerate(ops)]
            _order(rewrite, view, [view.index[name] for name in ops], made, direction, stage)


def _put(rewrite: RewriteContext, name: str, number: int, direction: str, stage: int) -> tf.Operation:
    """Puts the sums of all rows in place of a replica's, or the gradients by them; returns the collective.

    Its key has its number on its communicator: names of ops may differ between workers.
    """
    communicator = rewrite.communicator(batch_norm_communicator(rewrite.plan, direction, stage), stage)

    def exchange(sums: tf.Tensor) -> tf.Tensor:
        return communicator.all_reduce(sums, rewrite.base_rank, f"batch norm {number}")

    if direction == "forward":
        return of_all_rows.put(rewrite, name, "batch_norm", exchange, stage)
    weight = rewrite.weight
    assert weight is not None  # there are several replicas
    if rewrite.plan.reduce_method == "sum":
        with rewrite.building(f"batch_norm/{name}", stage):
            weight = tf.sign(weight)
    return of_all_rows.put(rewrite, name, "batch_norm", of_all_rows.with_weight(weight, exchange), stage)


def _order(
    rewrite: RewriteContext, view: GraphView, nodes: List[int], made: List[tf.Operation], direction: str, stage: int
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
        after = tuple(rewrite.operation(view.nodes[end].name) for end in ends)
        ordered.append(OrderedCollective(op, after or (op,), stage))
    order_needed(rewrite, ordered, f"batch_norm_{stage}_{direction}")


PASS = Pass(
    "sync_batch_norm",
    run,
    "batch_norm.sync",
    adds=names("by_hand of_all_rows collectives orders"),
    requires=names("weight micro_batched stage_of"),
    after=names("aggregate_gradients order_scale_updates"),
)
