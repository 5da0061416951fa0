"""Puts collectives in place of the markers of a loss of all rows (`replicate.batch: all`).

    own --> SUMS --> ...            =>   own --> all-reduce --> SUMS --> ...
    own --> ROWS --> ...            =>   own --> all-gather --> ROWS --> ...
    ... --> SUMS_BACK --> gradient  =>   ... --> * w --> all-reduce --> / w --> SUMS_BACK --> gradient
    ... --> ROWS_BACK --> gradient  =>   ... --> * w --> all-to-all --> sum over replicas --> / w --> ROWS_BACK

w is the weight of the replica in the mean of the gradients (objective.py says why). A run that neither trains nor
writes takes the rows that it has, and waits for no other worker (`epl/parallel/rewriting/by_hand.py`).

The collectives of a stage in one direction share a communicator, on which they follow each other in the order of the
graph: in a pipeline that of its schedule, micro batch after micro batch.
"""

from typing import Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.plan.communicators import whole_batch_communicator
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import WholeBatchSection
from epl.parallel.rewriting import of_all_rows
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.needed_collectives import OrderedCollective, order_needed
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.row_markers import find_markers, kind_of
from epl.parallel.whole_batch import markers


def run(rewrite: RewriteContext) -> None:
    """Adds the collectives of replica 0."""
    planned = section(rewrite.plan, WholeBatchSection)
    if planned is None:
        return
    view = GraphView(rewrite.tf_graph)
    forward = {view.index[prefix + op] for op in planned.ops for prefix in rewrite.micro_prefixes_of(op)}
    forward_of = _forward_of(rewrite, view)
    backward = {view.index[name] for name, of in forward_of.items() if view.index[of] in forward}
    rows: Dict[str, tf.Tensor] = {}  # by marker: how many rows came from each replica
    for stage, ops in of_all_rows.by_stage(rewrite, view, forward).items():
        made = [_forward(rewrite, name, stage, f"whole batch {n}", rows) for n, name in enumerate(ops)]
        _order(rewrite, made, stage, "forward")
    for stage, ops in of_all_rows.by_stage(rewrite, view, backward).items():
        made = [
            _backward(rewrite, name, stage, f"whole batch {n}", rows.get(forward_of[name]))
            for n, name in enumerate(ops)
        ]
        _order(rewrite, made, stage, "backward")


def _forward_of(rewrite: RewriteContext, view: GraphView) -> Dict[str, str]:
    """Name of a marker of the backward pass -> that of the marker whose gradient it is, in the same micro batch."""
    names = [view.nodes[node].name for node in find_markers(view, *markers.BACKWARD)]
    found = {name: rewrite.operation(name).get_attr(markers.FORWARD_ATTR).decode() for name in names}
    copies = [(prefix, name) for name in names for prefix in rewrite.micro_prefixes_of(name)[1:]]
    return {**found, **{prefix + name: prefix + found[name] for prefix, name in copies}}


def _forward(rewrite: RewriteContext, name: str, stage: int, key: str, rows: Dict[str, tf.Tensor]) -> tf.Operation:
    """Puts the value of all replicas in place of a replica's; returns the collective.

    Its key has no names of ops, which may differ between workers.
    """
    communicator = rewrite.communicator(whole_batch_communicator(rewrite.plan, "forward", stage), stage)

    def exchange(sent: tf.Tensor) -> tf.Tensor:
        if kind_of(rewrite.operation(name)) == markers.SUMS:
            return communicator.all_reduce(sent, rewrite.base_rank, key)
        gathered, rows[name] = communicator.all_gather_with_rows(sent, rewrite.base_rank, key)
        return gathered

    return of_all_rows.put(rewrite, name, "whole_batch", exchange, stage)


def _backward(rewrite: RewriteContext, name: str, stage: int, key: str, from_each: Optional[tf.Tensor]) -> tf.Operation:
    """Puts the gradient of the loss of all replicas in place of that of a replica's; returns the collective.

    `from_each`: how many rows of what was gathered came from each replica.
    """
    op = rewrite.operation(name)
    weight, rank = rewrite.weight, rewrite.base_rank
    assert weight is not None  # there are several replicas
    communicator = rewrite.communicator(whole_batch_communicator(rewrite.plan, "backward", stage), stage)

    def exchange(sent: tf.Tensor) -> tf.Tensor:
        if kind_of(op) == markers.SUMS_BACK:
            return communicator.all_reduce(sent, rank, key)
        parts, received = communicator.all_to_all(sent, rank, key, row_splits=from_each)
        return _sum_of_parts(parts, received, communicator.world_size)

    return of_all_rows.put(rewrite, name, "whole_batch", of_all_rows.with_weight(weight, exchange), stage)


def _sum_of_parts(parts: tf.Tensor, received: tf.Tensor, world: int) -> tf.Tensor:
    """The sum of as many rows as each replica has sent, in the order of the replicas."""
    shape = tf.concat([[world, tf.cast(received[0], tf.int32)], tf.shape(parts)[1:]], 0)
    return tf.reduce_sum(tf.reshape(parts, shape), 0)


def _order(rewrite: RewriteContext, made: Sequence[tf.Operation], stage: int, direction: str) -> None:
    """Fixes the order of collectives on their communicator; none is in a branch."""
    ordered: List[OrderedCollective] = [OrderedCollective(op, (op,), stage) for op in made]
    order_needed(rewrite, ordered, f"whole_batch_{stage}_{direction}")


PASS = Pass(
    "sync_whole_batch",
    run,
    "replicate.batch",
    adds=names("by_hand of_all_rows collectives orders"),
    requires=names("weight micro_batched stage_of"),
    after=names("aggregate_gradients order_scale_updates sync_batch_norm"),
)
