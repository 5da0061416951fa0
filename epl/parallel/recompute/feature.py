"""Recomputation (`gradient_checkpoint.type`) as a feature: its section of the plan, its pass, its checks of runs."""

from typing import Any, List, Optional

from epl.config.config import Config
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Feature, Run, RunRequest
from epl.parallel.plan.sections import RecomputeSection
from epl.parallel.recompute import check_run, recompute_segments
from epl.parallel.rewriting.context import RewriteContext


class RecomputeFeature(Feature):
    """Recomputes ops of the forward pass for the backward pass, so that their outputs need not be kept."""

    origin = OpOrigin("gradient_checkpoint.type", "recomputation")

    passes = (recompute_segments.PASS,)

    def changes_runs(self, graph: Graph) -> bool:
        """Feeds of a graph that recomputes are checked."""
        return check_run.recomputing(graph) is not None

    def around_run(self, graph: Graph, request: RunRequest, run: Run) -> List[Any]:
        """Refuses feeds of recomputed tensors; with `check_gradients`, compares gradients in the first step."""
        return check_run.run(graph, request, run)

    def missing_after_plan(self, graph: Graph, config: Config) -> str:
        """Segments are found when the graph is planned, so a step that is built later recomputes nothing."""
        return "without recomputation" if config.gradient_checkpoint.type else ""

    def plan(self, rewrite: RewriteContext) -> Optional[RecomputeSection]:
        """Which ops of the forward pass the backward pass computes a second time."""
        return recompute_segments.find(rewrite)
