"""Variables in shards as a feature: what of them happens while gradients are applied, and in each run."""

from typing import Any

from epl.ir.graph import Graph
from epl.parallel.feature import Apply, ApplyRequest, Feature, RunRequest
from epl.parallel.sharded_variables.fetching import ShardFetches
from epl.parallel.sharded_variables.slots import watched_slots
from epl.parallel.sharding.sharded_variables import ShardedVariables


class ShardedSlotsFeature(Feature):
    """Variables that an optimizer makes for shards are shards, too; whoever fetches one gets the full value."""

    def around_optimizer(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Makes the new slots known."""
        sharded = graph.state_of(ShardedVariables)
        if sharded is None:
            return apply(request)
        with watched_slots() as made:
            applied = apply(request)
        with graph.building_parts():
            sharded.adopt_updates(made)
        return applied

    def rewrite_run(self, graph: Graph, request: RunRequest) -> RunRequest:
        """Fetches full values."""
        found = graph.state_of(ShardFetches)
        if found is None:
            return request
        fetches, targets = found.request(request.fetches, request.targets, request.feeds)
        return request._replace(fetches=fetches, targets=targets)
