"""Orders the collectives of a split in a pipeline: in each stream, a micro batch follows the one before.

    a ──▶ b               a ──▶ b ──▶ a/1 ──▶ b/1
          `──▶ c    =>          `──▶ c                         c: only in micro batch 0

Streams: see `epl/parallel/sharding/stage_streams.py`. All ranks of a group have the same order, so their collectives
match with any schedule, and also in runs that no schedule orders. When the copies are in the graph,
`needed_collectives.py` decides where `c` runs, and which collectives a run needs.
"""

from typing import Dict, List, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.plan_nodes import Waits
from epl.parallel.sharding.stage_streams import StagePass, StageResharder

Streams = Dict[StagePass, List[int]]


def streams_of(rewrite: RewriteContext, view: GraphView) -> Streams:
    """The nodes of the collectives of each stream, in order; no streams without a split."""
    ranks = replica_groups(rewrite.graph)
    if ranks is None or not isinstance(ranks.resharder, StageResharder):
        return {}
    return {
        of_pass: [view.index[op.name] for op in stream.collectives]
        for of_pass, stream in ranks.resharder.of_passes.items()
        if stream.collectives
    }


def nodes_of(streams: Streams, backward_only: bool = False) -> Set[int]:
    """The nodes of all streams, or of those of backward passes."""
    return {node for of_pass, nodes in streams.items() if of_pass.backward or not backward_only for node in nodes}


def order_streams(
    rewrite: RewriteContext, view: GraphView, streams: Streams, copied: Set[int], copies: Sequence[int], waits: Waits
) -> None:
    """In each stream, the first collective of a micro batch waits for the last one of the micro batch before.

    A collective waits for the earlier ones of its stream, so the collectives with copies are the first ones.

    Args:
      rewrite: its `collectives` gets the copies.
      view: view of the graph before it is cloned.
      streams: from `streams_of`.
      copied: nodes that are copied for each micro batch.
      copies: the further micro batches.
      waits: the waits are added here.
    """
    for nodes in streams.values():
        names = [view.nodes[node].name for node in nodes if node in copied]
        for copy in copies if names else ():
            waits.setdefault((copy, nodes[0]), []).append(rewrite.in_micro_batch(names[-1], copy - 1))
            rewrite.collectives.update(rewrite.in_micro_batch(name, copy) for name in names)


def keys_of_copies(
    view: GraphView, streams: Streams, copied: Set[int], copies: Sequence[int]
) -> Dict[Tuple[int, int], tf.AttrValue]:
    """By micro batch and node, the keys of the copies of collectives; messages contain them."""
    keys = {node: view.nodes[node].attr["key"].s.decode() for node in nodes_of(streams) & copied}
    return {
        (copy, node): tf.AttrValue(s=f"{key} of micro batch {copy}".encode())
        for copy in copies
        for node, key in keys.items()
    }
