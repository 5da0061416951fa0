"""The state that a graph keeps for its sharded variables, after the first feature has begun to cut them."""

from epl.ir.graph import Graph
from epl.parallel.sharded_variables.checkpoints import Checkpoints
from epl.parallel.sharded_variables.fetching import ShardFetches
from epl.parallel.sharding.shard_owner import ShardOwner
from epl.parallel.sharding.sharded_variables import ShardedVariables


def sharded_variables(graph: Graph) -> ShardedVariables:
    """The registry of a graph; a new one if no owner was added yet."""
    return graph.state_of(ShardedVariables) or ShardedVariables(graph)


def add_owner(graph: Graph, variables: ShardedVariables, owner: ShardOwner) -> None:
    """Adds an owner to the registry; with the first one the graph gets the registry, its fetches and checkpoints."""
    variables.owners[owner.setting] = owner
    if graph.state_of(ShardedVariables) is None:
        graph.keep(ShardedVariables, variables)
        graph.keep(ShardFetches, ShardFetches(graph, variables))
        graph.keep(Checkpoints, Checkpoints(graph, variables))
