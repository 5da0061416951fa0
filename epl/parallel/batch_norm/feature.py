"""Batch norm in data parallelism as a feature."""

from typing import Optional

from epl.ir.inserted_ops import OpOrigin
from epl.ir.view import GraphView
from epl.parallel.batch_norm import sites, synchronise
from epl.parallel.feature import Feature
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.sections import BatchNormSection
from epl.parallel.plan.stages import stages_of_nodes
from epl.parallel.rewriting.context import RewriteContext
from epl.utils.errors import NotAvailableError


class BatchNormFeature(Feature):
    """Batch statistics of all rows."""

    origin = OpOrigin("batch_norm.sync", "batch norm")
    passes = (synchronise.PASS,)

    def plan(self, rewrite: RewriteContext) -> Optional[BatchNormSection]:
        """Which ops take statistics of all rows.

        Raises:
          NotAvailableError: they are not proved with what the model has besides.
        """
        if rewrite.world_size == 1 or not rewrite.config.batch_norm.sync:
            return None
        if replica_groups(rewrite.graph) is not None:
            raise NotAvailableError("batch_norm.sync with epl.split", "Leave one of the two out.")
        view = GraphView(rewrite.tf_graph)
        ops = sites.find_synced(rewrite, view)
        of_nodes = stages_of_nodes(view, rewrite.plan.stages)
        stages = sorted({of_nodes[view.index[op]] for op in ops})
        return BatchNormSection(ops, tuple(stages)) if ops else None
