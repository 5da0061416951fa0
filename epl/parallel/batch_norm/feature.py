"""Batch norm in data parallelism as a feature."""

from typing import Optional

from epl.ir.inserted_ops import OpOrigin
from epl.ir.view import GraphView
from epl.parallel.batch_norm import sites, synchronise
from epl.parallel.feature import Feature
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.sections import BatchNormSection
from epl.parallel.rewriting.context import RewriteContext
from epl.utils.errors import NotAvailableError


class BatchNormFeature(Feature):
    """Batch statistics of all rows."""

    origin = OpOrigin("batch_norm.sync", "batch norm")
    passes = (synchronise.PASS,)

    def plan(self, rewrite: RewriteContext) -> Optional[BatchNormSection]:
        """Which ops take statistics of all rows."""
        if rewrite.world_size == 1 or not rewrite.config.batch_norm.sync:
            return None
        _refuse(rewrite)
        ops = sites.find_synced(rewrite, GraphView(rewrite.tf_graph))
        return BatchNormSection(ops) if ops else None


def _refuse(rewrite: RewriteContext) -> None:
    """Raises NotAvailableError for what statistics of all rows are not proved with."""
    config = rewrite.config
    beside = {
        "several stages": len(rewrite.plan.stages) > 1,
        "epl.split": replica_groups(rewrite.graph) is not None,
        "pipeline.num_micro_batch": config.pipeline.num_micro_batch > 1,
        "gradient_checkpoint.type": bool(config.gradient_checkpoint.type),
    }
    asked = [what for what, is_asked in beside.items() if is_asked]
    if asked:
        raise NotAvailableError(f"batch_norm.sync with {asked[0]}", "Leave one of the two out.")
