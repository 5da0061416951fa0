"""Groups of updates (`optimizer.num_apply_group`) as a feature."""

from typing import Optional

from epl.config.config import Config
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Feature
from epl.parallel.grouped_apply import order_groups
from epl.parallel.plan.sections import GroupedApplySection
from epl.parallel.rewriting.context import RewriteContext


class GroupedApplyFeature(Feature):
    """Variables are updated group by group, so that the temporary tensors of one group are there at a time."""

    origin = OpOrigin("optimizer.num_apply_group", "groups of updates")

    passes = (order_groups.PASS,)

    def missing_after_plan(self, graph: Graph, config: Config) -> str:
        """Updates are put in order by the pass."""
        return "without groups of updates" if config.optimizer.num_apply_group > 1 else ""

    def plan(self, rewrite: RewriteContext) -> Optional[GroupedApplySection]:
        """In how many groups variables are updated."""
        count = rewrite.config.optimizer.num_apply_group
        return GroupedApplySection(count) if count > 1 else None
