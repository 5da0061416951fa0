"""Refusals that do not depend on features, made before the graph is changed."""

from typing import Sequence

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.plan.dedicated_devices import has_dedicated_devices
from epl.parallel.plan.plan import proportions
from epl.parallel.plan.replica_groups import replica_groups
from epl.utils.errors import NotAvailableError, PlanError


def refuse_contradictions(config: Config) -> None:
    """Raises PlanError for settings that contradict each other."""
    makes_stages = config.auto.auto_parallel or config.auto.planner == "search"
    if config.pipeline.num_stages > 1 and not makes_stages:
        raise PlanError(
            "pipeline.num_stages is {} and auto.auto_parallel is off: the number of stages is that of the annotations "
            "then. Set auto.auto_parallel to True, or leave pipeline.num_stages out.".format(config.pipeline.num_stages)
        )
    recomputation = config.gradient_checkpoint
    if recomputation.memory_budget and recomputation.type != "auto":
        raise PlanError(
            "gradient_checkpoint.memory_budget is {} and gradient_checkpoint.type is {!r}: a budget decides what is "
            'recomputed where it is chosen automatically. Set gradient_checkpoint.type to "auto", or leave the budget '
            "out.".format(recomputation.memory_budget, recomputation.type)
        )


def refuse_foreign_synchronisation(tf_graph: tf.Graph) -> None:
    """Raises PlanError for ops that synchronise gradients by other means."""
    for op in tf_graph.get_operations():
        if op.type in op_types.FOREIGN_SYNCHRONISATION:
            raise PlanError(
                "{!r} ({}) synchronises gradients by itself. Remove tf.train.SyncReplicasOptimizer or the distribution "
                "strategy: EPL aggregates the gradients.".format(op.name, op.type)
            )


def refuse_uneven_rows(graph: Graph, cluster: Cluster, row_shares: Sequence[int]) -> None:
    """Raises NotAvailableError for uneven rows in a split that counts on as many rows on each device."""
    if not row_shares:
        return
    key = _uneven_with_split(row_shares)
    if has_dedicated_devices(graph.taskgraphs, cluster):
        refuse_uneven_rows_of_dedicated(row_shares)
    groups = replica_groups(graph)
    if groups is not None and groups.resharder.batch_weights is None:
        raise NotAvailableError(
            key,
            "The number of rows that enter the split is built into the graph, the same on each device. Leave the first "
            'dimension of batches open (None), or set auto.balance to "even".',
        )


def refuse_uneven_rows_of_dedicated(row_shares: Sequence[int]) -> None:
    """Raises NotAvailableError for uneven rows next to a split on devices of its own."""
    if row_shares:
        raise NotAvailableError(
            _uneven_with_split(row_shares), 'The split has devices of its own. Set auto.balance to "even".'
        )


def _uneven_with_split(row_shares: Sequence[int]) -> str:
    return f'auto.balance "{proportions(row_shares)}" with epl.split'
