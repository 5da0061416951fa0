"""Sharded variables as a feature: their hooks while gradients are applied, and in each run."""

from typing import Any

from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Apply, ApplyRequest, Feature, RunRequest
from epl.parallel.sharded_variables import part_writes
from epl.parallel.sharded_variables.fetching import ShardFetches
from epl.parallel.sharded_variables.slots import watched_slots
from epl.parallel.sharding.sharded_variables import ShardedVariables


class ShardedSlotsFeature(Feature):
    """Makes slots of shards known as shards, and gives the full value to a run that fetches a sharded variable."""

    origin = OpOrigin("sharded variables", "slots")
    passes = (part_writes.PASS,)

    def around_optimizer(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Adds the new slots to the registry."""
        sharded = graph.state_of(ShardedVariables)
        if sharded is None:
            return apply(request)
        with watched_slots() as made:
            applied = apply(request)
        with graph.building_shards():
            sharded.adopt_updates(made)
        return applied

    def rewrite_run(self, graph: Graph, request: RunRequest) -> RunRequest:
        """Replaces fetched shards by full values."""
        found = graph.state_of(ShardFetches)
        if found is None:
            return request
        fetches, targets = found.request(request.fetches, request.targets, request.feeds)
        return request._replace(fetches=fetches, targets=targets)
