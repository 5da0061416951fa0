"""With uneven rows, the batch size of the input pipeline becomes the rows of all replicas of this process.

    auto.balance "5:3:1", 3 workers x 1 device       batch(32) reads 53, 32 and 11 rows, 96 in all
    auto.balance "5:3:1", 1 worker x 3 devices       batch(32) reads 96 rows, which divide_batches.py cuts 53, 32, 11

`epl/parallel/rewriting/batch_constants.py` finds the constants. Nothing changes if each process reads as many rows as
with even ones, or if the script asked for `epl.local_rows`.
"""

import logging
from typing import Dict, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.parallel.plan.plan import Plan, proportions, ranks_of
from epl.parallel.plan.row_shares import ranks_without_rows, rows_for_all, share_out
from epl.parallel.rewriting.batch_constants import BatchSize, UnknownBatchError, batch_sizes_of
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.function_bodies import MAIN, Bodies
from epl.parallel.rewriting.function_inputs import Change, NewInput, rewrite_functions
from epl.parallel.rewriting.pass_manager import Pass
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

logger = logging.getLogger("epl")


def plan_batch_rows(rewrite: RewriteContext, batches: int) -> Tuple[int, ...]:
    """What is shared out in place of batch sizes: rows of all replicas, by batch size; () if none changes.

    Args:
      rewrite: the rewriting, with its plan and the divisions of batches.
      batches: how many batches the processes read together in a step with even rows.

    Raises:
      PlanError: a batch size that is not a constant of the input pipeline, or too small, or that is shared out
        otherwise than that of another data source.
    """
    plan = rewrite.plan
    if not plan.row_shares or Env.get().asked_local_rows or not _changes(plan, batches):
        return ()
    by_source = _by_source(rewrite)
    found = [size.rows * batches for size in _each_once(by_source)]
    for rows in found:
        without = ranks_without_rows(share_out(rows, plan.row_shares))
        if without:
            raise PlanError(
                "The batch size of the input pipeline stands for {} rows of all replicas, which auto.balance "
                '"{}" shares out: replica(s) {} would have none. Make batches of at least {} rows together, or give '
                "proportions that are nearer to each other.".format(
                    rows, proportions(plan.row_shares), ", ".join(map(str, without)), rows_for_all(plan.row_shares)
                )
            )
    _refuse_unequal_shares(plan, {name: [size.rows * batches for size in sizes] for name, sizes in by_source.items()})
    return tuple(found)


def _refuse_unequal_shares(plan: Plan, rows_of: Dict[str, List[int]]) -> None:
    """Raises PlanError if replicas would have unequal shares of the batches of two sources: a weight counts for both.

    Args:
      plan: with the proportions.
      rows_of: by data source, rows of all replicas.
    """
    if len({frozenset(rows) for rows in rows_of.values()}) < 2:
        return
    shared = [(name, rows, share_out(rows, plan.row_shares)) for name, sizes in rows_of.items() for rows in sizes]
    first, rows, own = shared[0]
    for name, other_rows, other in shared[1:]:
        if any(a * other_rows != b * rows for a, b in zip(own, other)):
            raise PlanError(
                'auto.balance "{}" shares out the {} rows that {!r} reads in all replicas as {}, and the {} of {!r} as '
                "{}: the replicas would get unequal shares of the two. Make batches of multiples of {} rows "
                "together.".format(
                    proportions(plan.row_shares),
                    rows,
                    first,
                    ", ".join(map(str, own)),
                    other_rows,
                    name,
                    ", ".join(map(str, other)),
                    sum(plan.row_shares),
                )
            )


def _changes(plan: Plan, batches: int) -> bool:
    """Whether a process reads more or fewer rows than with even ones; `batches` are read in the whole job then."""
    by_worker: Dict[int, int] = {}
    for rank, owner in enumerate(plan.owners):
        by_worker[owner] = by_worker.get(owner, 0) + plan.row_shares[rank]
    return any(rows * batches != sum(plan.row_shares) for rows in by_worker.values())


def _each_once(by_source: Dict[str, List[BatchSize]]) -> List[BatchSize]:
    """The batch sizes of all data sources, in the order of the graph."""
    return list(dict.fromkeys(size for sizes in by_source.values() for size in sizes))


def _by_source(rewrite: RewriteContext) -> Dict[str, List[BatchSize]]:
    """The batch sizes of the batches that are divided, by data source.

    Raises:
      PlanError: one is not a constant of the input pipeline.
    """
    sources = [rewrite.operation(one.source) for one in rewrite.divisions if one.dense or one.sparse]
    if not sources:
        return {}
    bodies = Bodies(rewrite.tf_graph.as_graph_def())
    found: Dict[str, List[BatchSize]] = {}
    for source in sources:
        try:
            found[source.name] = batch_sizes_of(bodies, source.name, may_count=False)
        except UnknownBatchError as error:
            raise PlanError(
                'auto.balance "{}" changes how many rows {!r} ({}) reads in each worker, and its batch size cannot be '
                "changed: {}. Use Dataset.batch with a number, or make batches of epl.local_rows(rows of all replicas) "
                "in the script.".format(
                    proportions(rewrite.plan.row_shares), source.outputs[0].name, user_line(source), error
                )
            ) from None
    return found


def _resize(rewrite: RewriteContext) -> None:
    """Gives the input pipeline the batch sizes of this process."""
    plan = rewrite.plan
    if not plan.batch_rows:
        return
    ranks = ranks_of(plan, rewrite.cluster.worker_index)
    new: List[Tuple[BatchSize, int]] = []
    for size, rows in zip(_each_once(_by_source(rewrite)), plan.batch_rows):
        own = sum(share_out(rows, plan.row_shares)[rank] for rank in ranks)
        logger.info(
            "auto.balance: %r reads batches of %d rows in this worker in place of %d: its part of %d.",
            size.node, own, size.rows, rows,
        )  # fmt: skip
        new.append((size, own))
    graph = rewrite.tf_graph
    graph_def = graph.as_graph_def()
    inputs = [NewInput(*size[:3], np.int64(own)) for size, own in new if size.body != MAIN]
    change = Change("auto.balance", "a batch size", "rows")
    rewrite.added_functions.update(
        rewrite_functions(graph, graph_def, Bodies(graph_def), inputs, change, rewrite.remember)
    )
    for size, own in new:
        if size.body == MAIN:
            op = rewrite.remember(rewrite.operation(size.node))
            with rewrite.building("rows"), tf.device(rewrite.host):
                number = tf.constant(own, op.inputs[size.position].dtype, name="batch_size")
            tf_compat.set_input(op, size.position, number)


PASS = Pass("resize_batches", _resize, "auto.balance")
