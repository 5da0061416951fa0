"""Gradient accumulation (`pipeline.num_micro_batch` with one stage) as a feature."""

import logging
from typing import Any, Optional, Sequence

from epl.config.config import Config
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.accumulation.apply import accumulated_apply, steps_of
from epl.parallel.accumulation.record import accumulations_of
from epl.parallel.feature import Apply, ApplyRequest, Feature
from epl.parallel.plan.gradient_groups import BoundaryGroup
from epl.parallel.plan.plan import Stage
from epl.parallel.plan.sections import AccumulationSection
from epl.parallel.rewriting.context import RewriteContext
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")


class AccumulationFeature(Feature):
    """A training step takes several runs, whose gradients are added up."""

    origin = OpOrigin("pipeline.num_micro_batch", "gradient accumulation")

    def around_apply(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Applies the mean of several runs in the last one."""
        steps = steps_of(graph)
        if steps.count == 1 or all(gradient is None for gradient, _ in request.pairs):
            return apply(request)
        return accumulated_apply(
            graph, request.pairs, request.changed, steps, lambda pairs: apply(request._replace(pairs=pairs))
        )

    def missing_after_plan(self, graph: Graph, config: Config) -> str:
        """Runs are counted by ops that the plan knows."""
        return "without accumulation" if steps_of(graph).count > 1 else ""

    def plan(self, rewrite: RewriteContext) -> Optional[AccumulationSection]:
        """Over how many runs gradients are added up."""
        steps = [one.steps for one in accumulations_of(rewrite.graph)]
        return AccumulationSection(max(steps)) if steps else None

    def refuse_plan(
        self, graph: Graph, config: Config, stages: Sequence[Stage], groups: Sequence[BoundaryGroup]
    ) -> None:
        """Raises PlanError where the key could not mean what it says; warns where it means nothing."""
        count = config.pipeline.num_micro_batch
        if count == 1:
            return
        if graph.apply_calls and bool(accumulations_of(graph)) != (len(stages) == 1):
            raise PlanError(
                "pipeline.num_micro_batch is {}, and the model has {} stage(s), not as when apply_gradients was "
                "called: with one stage gradients are accumulated over runs, with several a run is a pipeline. "
                "Annotate the whole model before tf.gradients and apply_gradients.".format(count, len(stages))
            )
        if len(stages) > 1:
            return
        written = sorted(variable for group in groups if group.name == "writes" for variable, _ in group.boundaries)
        if written:
            raise PlanError(
                "pipeline.num_micro_batch is {}, and the gradient of {} is written to a variable without an "
                "optimizer. It would be so in every run, not once in {}. Apply it with apply_gradients of an "
                "optimizer, or set the key to 1.".format(count, ", ".join(written), count)
            )
        if not graph.apply_calls:
            logger.warning(
                "pipeline.num_micro_batch is %d and has no effect: no gradient goes into apply_gradients of an "
                "optimizer.",
                count,
            )
