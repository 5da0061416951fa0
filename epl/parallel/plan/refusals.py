"""Refusals that do not depend on features, made before the graph is changed."""

import tensorflow.compat.v1 as tf

from epl.config.config import Config
from epl.ir import op_types
from epl.utils.errors import PlanError


def refuse_contradictions(config: Config) -> None:
    """Raises PlanError for settings that contradict each other."""
    if config.pipeline.num_stages > 1 and not config.auto.auto_parallel:
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
