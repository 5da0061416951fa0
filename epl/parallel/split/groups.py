"""The device groups of a split: if a split is over fewer devices than the job has, each group is a replica.

Each device of a group holds a shard of each variable. Each group has its own batch:

    rank     0   1   2   3      epl.split(2) on four devices
    group    0   0   1   1
    shard    0   1   0   1

A scope of epl.replicate with fewer devices than others is such a split, too, all of which is on the first rank of each
group (epl/parallel/plan/unequal_scopes.py).
"""

from typing import NamedTuple, Optional, Sequence, Tuple

from epl.cluster.cluster import Cluster
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.taskgraph import TaskGraph
from epl.parallel.plan.plan import Stage, worker_of
from epl.parallel.plan.sections import SplitRatios
from epl.parallel.plan.stages import plan_stages, rank_order, stage_devices, stage_of_taskgraph
from epl.parallel.plan.unequal_scopes import FirstOfGroup, split_taskgraphs
from epl.parallel.split.given_choices import ScopeChoices
from epl.strategies.split import Split
from epl.utils.errors import PlanError

Groups = Tuple[Tuple[int, ...], ...]


class SplitPlan(NamedTuple):
    """The devices of the splits of a model, by the annotations and the cluster.

    Attributes:
      groups: the ranks of each group.
      ratios: of each split TaskGraph; () if the shards of all are balanced.
      stages: of the model.
      owners: the process that builds the graph of each rank, by rank of the job.
      choices: that the annotations give.
    """

    groups: Groups
    ratios: Tuple[SplitRatios, ...]
    stages: Tuple[Stage, ...]
    owners: Tuple[int, ...]
    choices: Tuple[ScopeChoices, ...] = ()


def plan_split(graph: Graph) -> Optional[SplitPlan]:
    """Finds the devices of the splits of a model; None without a split, or if it is over one device.

    Raises:
      PlanError: the scopes are over different numbers of devices, the job cannot be divided into such groups, or a
        worker has no device.
    """
    splits = split_taskgraphs(graph)
    if not splits:
        return None
    cluster = Env.get().cluster
    assert cluster is not None
    stages, owners = plan_stages(graph, cluster)
    on_first = any(isinstance(one.strategy, FirstOfGroup) for one in splits)
    total = cluster.total_gpu_num if len(stages) == 1 and not on_first else len(stages[0].devices)
    count = _device_count(splits, total, "the job" if len(stages) == 1 else "each stage of the model")
    if count == 1:
        return None
    if len(stages) > 1:
        used = {worker_of(device) for stage in stages for device in stage.devices}
        if len(used) < cluster.worker_num:
            _refuse_idle(sorted(set(range(cluster.worker_num)).difference(used)))
    if on_first:
        groups = _neighbours(graph, cluster, count)
    elif len(stages) == 1:
        groups = split_groups(count, cluster.generate_virtual_devices([count])[0].slice_devices, stages[0].devices)
    else:
        groups = split_groups(count, (), stages[stage_of_taskgraph(stages)[splits[0].index]].devices)
    return SplitPlan(groups, _ratios(splits), stages, owners, _choices(splits))


def _neighbours(graph: Graph, cluster: Cluster, count: int) -> Groups:
    """The ranks of each group, if the smaller scopes of a model have one device of each `count` neighbouring ones.

    The devices of a model replica are next to each other in the virtual device; ranks go process after process.
    """
    _, virtual = stage_devices(graph.taskgraphs, cluster)
    order = rank_order(virtual[0].all_devices)
    rank_of = {position: rank for rank, position in enumerate(order)}
    begins = range(0, len(order), count)
    return tuple(sorted(tuple(sorted(rank_of[begin + i] for i in range(count))) for begin in begins))


def _device_count(splits: Sequence[TaskGraph], total: int, where: str) -> int:
    """The number of devices of each split; it divides `total`."""
    counts = sorted({taskgraph.strategy.device_count or total for taskgraph in splits})
    if len(counts) > 1:
        raise PlanError(
            "The model has epl.split({}): every split of a model is over the same devices. Give all of them the same "
            "number.".format(") and epl.split(".join(map(str, counts)))
        )
    if total % counts[0]:
        raise PlanError(
            "epl.split({}) needs groups of {} devices, and {} has {} device(s). Use a number that divides them.".format(
                counts[0], counts[0], where, total
            )
        )
    return counts[0]


def _ratios(splits: Sequence[TaskGraph]) -> Tuple[SplitRatios, ...]:
    found = []
    for taskgraph in splits:
        given = taskgraph.strategy.ratios if isinstance(taskgraph.strategy, Split) else ()
        found.append(SplitRatios(taskgraph.index, given if len(set(given)) > 1 else (), str(taskgraph.strategy)))
    return tuple(found) if any(one.ratios for one in found) else ()


def _choices(splits: Sequence[TaskGraph]) -> Tuple[ScopeChoices, ...]:
    scopes = [(one.index, one.strategy) for one in splits]
    return tuple(
        ScopeChoices(index, str(split), split.choices)
        for index, split in scopes
        if isinstance(split, Split) and split.choices
    )


def _refuse_idle(workers: Sequence[int]) -> None:
    raise PlanError(
        "The model has epl.split in the stages of a pipeline, and the layout of the cluster gives worker(s) {} no "
        "device of it. Give every worker a device, or start a job without these workers.".format(
            ", ".join(map(str, workers))
        )
    )


def split_groups(count: int, slices: Sequence[Sequence[str]], devices: Sequence[str]) -> Groups:
    """The ranks of each group.

    Args:
      count: devices of a group; it divides the number of all devices.
      slices: devices of each model replica, if the layout of the cluster has them; used if each has `count` devices.
      devices: of the job, by rank.
    """
    if not slices or any(len(replica) != count for replica in slices):
        slices = [devices[begin : begin + count] for begin in range(0, len(devices), count)]
    rank = {device: number for number, device in enumerate(devices)}
    return tuple(sorted(tuple(sorted(rank[device] for device in replica)) for replica in slices))
