"""Where a model takes statistics over the rows of a batch: marked sums; other FusedBatchNorm ops, which are refused."""

from typing import Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.control_flow import run_order
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView
from epl.parallel.batch_norm.fused import OWN_STATISTICS
from epl.parallel.batch_norm.sums import FORWARD
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.row_markers import find_markers
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils.errors import NotAvailableError

_FUSED = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")


def find_synced(rewrite: RewriteContext, view: GraphView) -> Tuple[str, ...]:
    """The markers whose sums are to be those of all rows, in the order in which they run.

    Raises:
      NotAvailableError: a fused op takes statistics of a batch that do not go through a marker.
    """
    trained = _trained_nodes(rewrite, view)
    _refuse_fused(view, trained)
    found = trained.intersection(find_markers(view, FORWARD))
    return tuple(view.nodes[node].name for node in run_order(view) if node in found)


def _trained_nodes(rewrite: RewriteContext, view: GraphView) -> Set[int]:
    """The nodes that gradients, and writes of a training step, are computed from; and these."""
    gradients = boundary_nodes(view, [call for call in rewrite.graph.gradient_calls if call.boundaries])
    writes = find_training_writes(rewrite.tf_graph, view, view.writes(), gradients)
    return view.ancestors(gradients | writes)


def _refuse_fused(view: GraphView, trained: Set[int]) -> None:
    fused = [node for node in view.of_types(_FUSED) if node in trained and _takes_statistics(view.nodes[node])]
    named = [view.nodes[node].name for node in fused]
    named += [
        node.name
        for function in view.graph_def.library.function
        for node in function.node_def
        if node.op in _FUSED and _takes_statistics(node)
    ]
    if named:
        raise NotAvailableError(
            "batch_norm.sync with a fused batch norm in a loop or function, or not made by a layer",
            f"{named[0]!r} is one. Build it by a layer in the graph itself, or leave batch_norm.sync off.",
        )


def _takes_statistics(node: tf.NodeDef) -> bool:
    goes_to_marker = node.attr["_gradient_op_type"].s.decode() == OWN_STATISTICS
    return bool(node.attr["is_training"].b) and not goes_to_marker
