"""Automatic mixed precision (`amp.level`) as a feature: its steps while the user builds, plans and runs the model."""

from typing import Any, List, Optional

from epl.config.config import Config
from epl.ir.gradient import Gradient
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.amp import gradients as mixed
from epl.parallel.amp import half_ops, loss_scale, order_scale_updates, section
from epl.parallel.amp.refusals import refuse_unskipped, warn_of_precision
from epl.parallel.feature import Apply, ApplyRequest, Feature, GradientsRequest, RunRequest
from epl.parallel.plan.sections import AmpSection
from epl.parallel.rewriting.context import RewriteContext


class AmpFeature(Feature):
    """Ops compute in half precision; gradients are scaled in the backward pass, and steps that overflow are skipped."""

    origin = OpOrigin("amp.level", "mixed precision")

    passes = (order_scale_updates.PASS,)

    def before_gradients(self, graph: Graph, request: GradientsRequest) -> GradientsRequest:
        """Makes half copies of the ops that are differentiated, and scales the objective's gradients."""
        with graph.building_own_ops():
            return mixed.begin(graph, request)

    def after_gradients(
        self, graph: Graph, request: GradientsRequest, gradients: List[Optional[Gradient]]
    ) -> List[Optional[Gradient]]:
        """Returns gradients without the loss scale, each in the type of its `x`."""
        return mixed.finish(graph, request, gradients)

    def around_apply(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Makes an applied gradient NaN if a gradient that tf.gradients returned is not finite."""
        return apply(request._replace(pairs=loss_scale.mark_overflow(graph, request.pairs, request.changed)))

    def around_optimizer(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Skips steps whose gradients are not finite."""
        return loss_scale.apply_if_finite(graph, request.pairs, lambda: apply(request))

    def missing_after_plan(self, graph: Graph, config: Config) -> str:
        """Ops are converted when gradients are built, so a step that is built later stays float32."""
        return "in float32" if config.amp.level else ""

    def refuse(self, graph: Graph, config: Config) -> None:
        """Refuses updates that a dynamic loss scale cannot skip; warns if `amp.level` has no effect."""
        warn_of_precision(graph, config)
        refuse_unskipped(graph, config)

    def complete(self, graph: Graph) -> None:
        """Connects ops that were built since the last differentiation to half copies, too."""
        if graph.state_of(mixed.ConvertedModel) is not None:
            half_ops.use_half_copies(graph)

    def plan(self, rewrite: RewriteContext) -> Optional[AmpSection]:
        """The decision that was made while the model was differentiated."""
        return section.of(rewrite.graph, rewrite.config) if rewrite.config.amp.level else None

    def rewrite_run(self, graph: Graph, request: RunRequest) -> RunRequest:
        """Fetches the values of half copies, in the types of the user's tensors."""
        return request._replace(fetches=mixed.fetched(graph, request.fetches, request.feeds))
