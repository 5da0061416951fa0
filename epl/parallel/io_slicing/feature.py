"""Slicing of input files (`io.slicing`) as a feature."""

import logging

from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Feature
from epl.parallel.io_slicing.rewrite import slice_inputs
from epl.parallel.plan.plan import ranks_of
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass

logger = logging.getLogger("epl")


def _slice(rewrite: RewriteContext) -> None:
    """Gives this worker its share of the files."""
    config, plan = rewrite.config.io, rewrite.plan
    if not config.slicing or plan.workers == 1:
        return
    replicas = [len(ranks_of(plan, worker)) for worker in range(plan.workers)]
    lines = slice_inputs(
        rewrite.tf_graph, replicas, rewrite.cluster.worker_index, config.unbalanced_io_slicing, config.drop_last_files
    )
    for line in lines:
        logger.info("%s", line)


class IoSlicingFeature(Feature):
    """Every worker reads its own share of the input files."""

    origin = OpOrigin("io.slicing", "input files")

    passes = (Pass("slice_inputs", _slice, "io.slicing"),)
