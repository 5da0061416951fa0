"""Groups of updates (`optimizer.num_apply_group`) as a feature."""

from epl.config.config import Config
from epl.ir.graph import Graph
from epl.parallel.feature import Feature
from epl.parallel.grouped_apply import order_groups


class GroupedApplyFeature(Feature):
    """Variables are updated group by group, so that the temporary tensors of one group are there at a time."""

    name = "optimizer.num_apply_group"
    passes = (order_groups.PASS,)

    def missing_after_plan(self, graph: Graph, config: Config) -> str:
        """Updates are put in order by the pass."""
        return "without groups of updates" if config.optimizer.num_apply_group > 1 else ""
