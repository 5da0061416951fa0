"""Which ops write variables in a training step: not those that initialize, restore, or fill an input pipeline."""

from typing import Iterable, List, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.sharding.sharded_variables import ShardedVariables


def find_training_writes(
    tf_graph: tf.Graph, view: GraphView, all_writes: List[int], gradients: Iterable[int]
) -> Set[int]:
    """The writes of a training step.

    Args:
      tf_graph: the graph.
      view: its view.
      all_writes: the result of `view.writes()`.
      gradients: nodes that compute gradients; a queue of values computed from them is no input pipeline.
    """
    graph = Graph.of(tf_graph)
    others = initializers_of(tf_graph)
    sharded = None if graph is None else graph.state_of(ShardedVariables)
    if sharded is not None:
        others.update(sharded.replaced())
    reads = set(view.of_types(op_types.CHECKPOINT_READS))
    variables = set(view.of_types(op_types.VARIABLES))
    trained = view.descendants(gradients)  # a queue of results is no input pipeline
    feeds_a_queue = view.ancestors(set(view.of_types(op_types.ENQUEUES)) - trained)
    writes = set()
    for node in all_writes:
        if view.nodes[node].name in others or node in feeds_a_queue:
            continue
        if reads and view.types[node] in op_types.PLAIN_ASSIGNS:
            values = [p for p in view.producers[node] if p not in variables]
            if view.ancestors(values, lambda n: n in variables or n in reads) & reads:
                continue
        writes.add(node)
    return writes


def initializers_of(tf_graph: tf.Graph) -> Set[str]:
    """Names of the initializers of the variables (or tables) in all collections, and of their shards."""
    graph = Graph.of(tf_graph)
    sharded = None if graph is None else graph.state_of(ShardedVariables)
    found = set() if sharded is None else set(sharded.initializers())
    for key in tf_graph.get_all_collection_keys():
        for item in tf_graph.get_collection_ref(key):
            initializer = getattr(item, "initializer", None)
            name = getattr(initializer, "name", None)
            if isinstance(name, str):
                found.add(name)
    return found
