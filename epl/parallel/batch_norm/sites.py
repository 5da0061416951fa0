"""Where a model takes statistics over the rows of a batch: FusedBatchNorm ops in training, marked moments."""

from typing import List, Optional, Set, Tuple

from epl.ir import op_types
from epl.ir.control_flow import depths_of, run_order
from epl.ir.dataflow import data_inputs
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView, functions_of
from epl.parallel.batch_norm.moments import BACKWARD, FORWARD, SUMS_ATTR
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.sections import BatchNormOp
from epl.parallel.plan.stages import stages_of_nodes
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils.errors import NotAvailableError, PlanError

FUSED = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
FUSED_GRADS = ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
SAVED_MEAN = 3  # the input of such a gradient that is output 3 of the forward op
_PASSING = op_types.SWITCHES | {"Identity"}


def trained_nodes(rewrite: RewriteContext, view: GraphView) -> Set[int]:
    """The nodes that gradients, and writes of a training step, are computed from; and these."""
    gradients = boundary_nodes(view, [call for call in rewrite.graph.gradient_calls if call.boundaries])
    writes = find_training_writes(rewrite.tf_graph, view, view.writes(), gradients)
    return view.ancestors(gradients | writes)


def fused_nodes(view: GraphView) -> List[int]:
    """The FusedBatchNorm ops that take the statistics of their batch."""
    return [node for node in view.of_types(FUSED) if view.nodes[node].attr["is_training"].b]


def marked_nodes(view: GraphView, which: bytes) -> List[int]:
    """The markers of sums, FORWARD or BACKWARD."""
    marks = view.of_attrs(lambda attrs: attrs[SUMS_ATTR].s if SUMS_ATTR in attrs else b"")
    return [node for node, mark in enumerate(marks) if mark == which and view.types[node] == "Identity"]


def forward_of(view: GraphView, gradient: int) -> Optional[int]:
    """The FusedBatchNorm that a gradient op belongs to; None for one whose statistics are given."""
    node, output = data_inputs(view, gradient)[SAVED_MEAN]
    while view.types[node] in _PASSING:
        node, output = data_inputs(view, node)[0]
    return node if view.types[node] in FUSED and output == SAVED_MEAN else None


def find_synced(rewrite: RewriteContext, view: GraphView) -> Tuple[BatchNormOp, ...]:
    """The ops whose statistics are to be those of all rows, in the order in which they run.

    Raises:
      PlanError: statistics are taken where they cannot be.
    """
    trained = trained_nodes(rewrite, view)
    found = {node for node in [*fused_nodes(view), *marked_nodes(view, FORWARD)] if node in trained}
    _refuse_functions(view, trained)
    if found.intersection(fused_nodes(view)):
        name = view.nodes[min(found.intersection(fused_nodes(view)))].name
        raise NotAvailableError("batch_norm.sync with a fused batch norm", f"Build {name!r} with fused=False.")
    if not found:
        return ()
    found -= _in_split(rewrite, view, found)
    depths = depths_of(view)
    for node in sorted(found):
        if depths[node][0]:
            raise PlanError(
                f"batch_norm.sync is set, and {view.nodes[node].name!r} takes statistics of a batch inside a "
                "tf.while_loop, where the order of collectives is not fixed. Unroll the loop, or leave batch_norm.sync "
                "off."
            )
        if depths[node][1] and rewrite.plan.num_micro_batch > 1:
            raise PlanError(
                f"batch_norm.sync is set, and {view.nodes[node].name!r} takes statistics of a batch in a tf.cond of "
                "a pipeline with several micro batches. Build the model with training=True in place of a tensor, or "
                "leave batch_norm.sync off."
            )
    _refuse_second_gradients(rewrite, view, found)
    stages = stages_of_nodes(view, rewrite.plan.stages)
    return tuple(BatchNormOp(view.nodes[node].name, stages[node]) for node in run_order(view) if node in found)


def _in_split(rewrite: RewriteContext, view: GraphView, found: Set[int]) -> Set[int]:
    """The ops that the ranks of a split compute on the rows of all.

    Raises:
      PlanError: there are several groups of such ranks, each with the rows of its own.
    """
    ranks = replica_groups(rewrite.graph)
    if ranks is None:
        return set()
    lowered = {name for name, origin in rewrite.graph.inserted.by_name().items() if origin.decision == "epl.split"}
    inside = {node for node in found if view.nodes[node].name in lowered}
    if inside and rewrite.world_size > ranks.resharder.ranks:
        raise PlanError(
            f"batch_norm.sync is set, and {view.nodes[min(inside)].name!r} takes statistics of a batch inside of "
            "epl.split, which several groups of devices compute, each on the rows of its own. Move batch norm out of "
            "epl.split, or leave batch_norm.sync off."
        )
    return inside


def _refuse_functions(view: GraphView, trained: Set[int]) -> None:
    library = view.graph_def.library.function
    taking = {
        one.signature.name
        for one in library
        if any(node.op in FUSED and node.attr["is_training"].b for node in one.node_def)
    }
    if not taking:
        return
    calls = {one.signature.name: set().union(*[functions_of(node) for node in one.node_def]) for one in library}
    while True:
        more = {name for name, called in calls.items() if called & taking} - taking
        if not more:
            break
        taking |= more
    for node in sorted(trained):
        if functions_of(view.nodes[node]) & taking:
            raise PlanError(
                f"batch_norm.sync is set, and {view.nodes[node].name!r} calls a function (a tf.function, tf.cond with "
                "control flow v2) that takes statistics of a batch: a function cannot exchange them with other "
                "devices. Build batch norm in the graph itself, or leave batch_norm.sync off."
            )


def _refuse_second_gradients(rewrite: RewriteContext, view: GraphView, found: Set[int]) -> None:
    gradients = {node for node in view.of_types(FUSED_GRADS) if forward_of(view, node) in found}
    objectives = {view.index[y.op.name] for call in rewrite.graph.gradient_calls for y in call.ys}
    again = sorted(gradients & view.ancestors(objectives))
    if again:
        raise PlanError(
            f"batch_norm.sync is set, and {view.nodes[again[0]].name!r}, the gradient of a fused batch norm, is "
            "differentiated again. Use fused=False for layers whose gradients are differentiated, or leave "
            "batch_norm.sync off."
        )


def markers(view: GraphView) -> Tuple[List[int], List[int]]:
    """The markers of forward and of backward sums."""
    return marked_nodes(view, FORWARD), marked_nodes(view, BACKWARD)
