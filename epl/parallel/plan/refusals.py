"""What a plan cannot be made for: refused before anything of the graph is changed."""

import logging
from typing import Sequence

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.plan.gradient_groups import BoundaryGroup, find_trained_by_hand
from epl.parallel.plan.plan import Stage
from epl.utils.errors import NotAvailableError, PlanError

logger = logging.getLogger("epl")


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


def refuse_taskgraphs(graph: Graph, cluster: Cluster) -> None:
    """Raises NotAvailableError for a split that nothing has lowered."""
    total_devices = cluster.total_gpu_num
    for taskgraph in graph.taskgraphs:
        strategy = taskgraph.strategy
        if strategy.name_of_kind == "split":
            if graph.split is None and (strategy.device_count or total_devices) > 1 and total_devices > 1:
                raise NotAvailableError("epl.split", f"{strategy} cannot be lowered without tf.gradients yet.")


def refuse_foreign_synchronisation(tf_graph: tf.Graph) -> None:
    """Raises PlanError for ops that synchronise gradients by other means."""
    for op in tf_graph.get_operations():
        if op.type in op_types.FOREIGN_SYNCHRONISATION:
            raise PlanError(
                "{!r} ({}) synchronises gradients by itself. Remove tf.train.SyncReplicasOptimizer or the distribution "
                "strategy: EPL aggregates the gradients.".format(op.name, op.type)
            )


def warn_of_precision(graph: Graph, config: Config) -> None:
    """Warns where `amp.level` means nothing."""
    if config.amp.level and not graph.twins:
        logger.warning(
            "amp.level is %r and has no effect: %s.",
            config.amp.level,
            "no op of the model computes in half precision"
            if graph.gradient_calls
            else "tf.gradients was not called for variables of the model",
        )


def refuse_unskipped(graph: Graph, config: Config) -> None:
    """Raises PlanError for updates that a dynamic loss scale cannot skip: EPL sees those of optimizers.

    Beside an optimizer what the script writes may be taken back, as in adversarial training.
    """
    if not graph.twins or config.amp.loss_scale != "dynamic" or graph.apply_calls:
        return
    by_hand = find_trained_by_hand(graph)
    if by_hand:
        raise PlanError(
            "amp.loss_scale is 'dynamic', and the gradient of {} is written into a variable without apply_gradients "
            "({} in all): a step whose gradients overflow could not be skipped. Apply the gradients by an optimizer, "
            "or set amp.loss_scale to a number.".format(by_hand[0], len(by_hand))
        )


def refuse_accumulation(graph: Graph, stages: Sequence[Stage], groups: Sequence[BoundaryGroup], config: Config) -> None:
    """Raises PlanError where `pipeline.num_micro_batch` could not mean what it says; warns where it means nothing."""
    count = config.pipeline.num_micro_batch
    if count == 1:
        return
    if graph.apply_calls and bool(graph.accumulations) != (len(stages) == 1):
        raise PlanError(
            "pipeline.num_micro_batch is {}, and the model has {} stage(s), not as when apply_gradients was called: "
            "with one stage gradients are accumulated over runs, with several a run is a pipeline. Annotate the whole "
            "model before tf.gradients and apply_gradients.".format(count, len(stages))
        )
    if len(stages) > 1:
        return
    written = sorted(variable for group in groups if group.name == "writes" for variable, _ in group.boundaries)
    if written:
        raise PlanError(
            "pipeline.num_micro_batch is {}, and the gradient of {} is written to a variable without an optimizer. It "
            "would be so in every run, not once in {}. Apply it with apply_gradients of an optimizer, or set the "
            "key to 1.".format(count, ", ".join(written), count)
        )
    if not graph.apply_calls:
        logger.warning(
            "pipeline.num_micro_batch is %d and has no effect: no gradient goes into apply_gradients of an optimizer.",
            count,
        )
