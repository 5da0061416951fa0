"""The message to the user when a graph is rewritten: one line on standard error, by worker 0; tables on request.

    EPL: 4 replicas = 2 workers x 2 devices (CPU), 1 stage, gradients averaged in 5 buckets; EPL_EXPLAIN=1 for the plan

`EPL_EXPLAIN=1` prints the tables of `epl.explain()` in its place, before the first run of the graph, unless the script
did; `EPL_EXPLAIN=0` leaves the line out. If the script shows the logger `epl` at level INFO, every worker logs line and
plan there instead of the line; a level above INFO, set for that logger, leaves them out.
"""

import logging
import os
import sys

from epl.cluster.cluster import Cluster
from epl.parallel.plan import plan as plans
from epl.parallel.plan.plan import Plan

logger = logging.getLogger("epl")

TABLES = "tables"  # what `Graph.says_first` calls them
_EXPLAIN = "EPL_EXPLAIN"
_ON, _OFF = ("1", "true", "yes"), ("0", "false", "no")


def tell(plan: Plan, cluster: Cluster) -> None:
    """Tells the user the plan of a graph.

    By default Python shows only warnings, and the setup of logging is the script's. So the line goes to standard error,
    unless the logger shows it.
    """
    wanted = _wish()
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info("%s", summary(plan, cluster))
        logger.info("%s", plans.describe(plan))
    elif cluster.worker_index == 0 and logger.level <= logging.INFO and wanted not in _OFF + _ON:
        sys.stderr.write(f"EPL: {summary(plan, cluster)}; {_EXPLAIN}=1 for the plan\n")


def wants_tables(cluster: Cluster) -> bool:
    """Whether this process prints the tables of a graph before its first run; their title is the line of `tell`."""
    return cluster.worker_index == 0 and _wish() in _ON


def _wish() -> str:
    return os.environ.get(_EXPLAIN, "").strip().lower()


def summary(plan: Plan, cluster: Cluster) -> str:
    """The plan in one line."""
    used = plans.world_size(plan) * len(plan.stages)
    parts = [
        "{} {} {} x {} ({})".format(
            _replicas(plan),
            "=" if used == cluster.total_gpu_num else "on",
            _count(cluster.worker_num, "worker"),
            _count(cluster.gpu_num_per_worker, "device"),
            plan.device_type,
        )
    ]
    if len(plan.stages) == 1:
        parts.append("1 stage")
    if plan.row_shares:
        parts.append(f"rows {plans.proportions(plan.row_shares)}")
    divided = max([part.parts for part in plan.batch_parts], default=1)
    if divided > 1:
        parts.append(f"a batch divided among {divided} devices")
    if plan.num_micro_batch > 1:
        parts.append(_count(plan.num_micro_batch, "micro batch", "es"))
    buckets = sum(len(group.transfers) for group in plan.groups)
    if buckets and plans.world_size(plan) > 1:
        how = "averaged" if plan.reduce_method == "mean" else "summed"
        parts.append("gradients {} in {}".format(how, _count(buckets, "bucket")))
    return ", ".join(parts)


def _replicas(plan: Plan) -> str:
    groups_of_ranks = plans.split_groups(plan)
    if groups_of_ranks:
        groups, parts = len(groups_of_ranks), len(groups_of_ranks[0])
        return "{} split over {}{}".format(
            _count(groups, "replica"), _count(parts, "device"), " each" if groups > 1 else ""
        )
    replicas = _count(plans.world_size(plan), "replica")
    return replicas if len(plan.stages) == 1 else "{} x {}".format(replicas, _count(len(plan.stages), "stage"))


def _count(number: int, what: str, plural: str = "s") -> str:
    return "{} {}{}".format(number, what, "" if number == 1 else plural)
