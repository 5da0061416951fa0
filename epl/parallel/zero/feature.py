"""ZeRO (`zero.level`) as a feature: its steps in apply_gradients, and its passes."""

from typing import Any, Optional

from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Apply, ApplyRequest, Feature
from epl.parallel.plan.sections import ZeroSection
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.zero import gather_per_use, order_gathers
from epl.parallel.zero.model import hold_shards, known_to_optimizers, zero_of
from epl.utils.containers import map_items


class ZeroFeature(Feature):
    """Data parallelism in which each rank holds a shard of the weights and of the optimizer state."""

    origin = OpOrigin("zero.level", "shards")

    passes = (gather_per_use.PASS, order_gathers.PASS)

    def around_apply(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Shards the variables that are about to be trained."""
        with graph.building_shards():
            hold_shards(graph, request.pairs)
        return apply(request)

    def around_optimizer(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Hands the optimizer shards of gradients and variables in place of the full ones."""
        zero = zero_of(graph)
        if zero is None:
            return apply(request)
        with graph.building_shards():
            pairs = [zero.part(pair) for pair in request.pairs]
        args, kwargs = map_items(known_to_optimizers, (request.args, request.kwargs))
        return apply(request._replace(pairs=pairs, args=args, kwargs=kwargs))

    def plan(self, rewrite: RewriteContext) -> Optional[ZeroSection]:
        """The decision that apply_gradients made."""
        return rewrite.graph.state_of(ZeroSection)
