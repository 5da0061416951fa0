"""Scopes of `epl.replicate(n)` with different n in one model: which devices each has, and what a smaller one becomes.

A replica of the model has as many ranks as its largest scope has devices, and these divide the batch. A scope of fewer
devices is lowered like a split whose shards all lie on the first rank of each group: rows go to that rank, and results
and gradients go back (Whale's bridge).

    epl.replicate(4), epl.replicate(2)     rank          0    1    2    3
                                           replicate(4)  rows rows rows rows     a quarter of the batch each
                                           group         0    0    1    1
                                           replicate(2)  all  -    all  -        variables, and rows of the group

The scopes share devices, or each has devices of its own and is a stage of a pipeline; `shares_devices` says which.
"""

import logging
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.cluster.cluster import Cluster
from epl.cluster.device_layouts import VirtualDevice
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.taskgraph import TaskGraph
from epl.parallel.plan.dedicated_devices import devices_by_rank, has_dedicated_devices
from epl.parallel.plan.plan import worker_of
from epl.strategies.parallel_strategy import ParallelStrategy
from epl.strategies.split import Split
from epl.utils.errors import LayoutError, NotAvailableError, PlanError

logger = logging.getLogger("epl")


class FirstOfGroup(Split):
    """A scope of `epl.replicate` with fewer devices than others of the model, as a split that the first rank has whole.

    Attributes:
      annotated: the scope of the user.
    """

    def __init__(self, annotated: ParallelStrategy, devices: int) -> None:
        """Takes the scope, and the number of ranks of which the first one has it."""
        super().__init__(devices, annotated.name)
        self.annotated = annotated
        self.index = annotated.index
        self.ratios = (1,) + (0,) * (devices - 1)

    def __repr__(self) -> str:
        return f"{self.annotated} on the first of each {self.device_count} devices"


class UnequalScopes(NamedTuple):
    """The numbers of devices of the scopes of a model.

    Attributes:
      largest: the first scope with most devices.
      smaller: the first scope with fewer.
      most, fewer: their devices; `fewer` divides `most`.
    """

    largest: ParallelStrategy
    smaller: ParallelStrategy
    most: int
    fewer: int

    @property
    def group(self) -> int:
        """The number of ranks of which the first one has the smaller scopes."""
        return self.most // self.fewer


def unequal_scopes(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> Optional[UnequalScopes]:
    """The numbers of devices, if the scopes of `epl.replicate` have different ones; None if they agree.

    Next to a split on devices of its own they may differ without being unequal in this sense: each rank of the split
    has a copy of the replicated code there.

    Args:
      taskgraphs: as they are annotated.
      cluster: the devices.

    Raises:
      PlanError: there are more than two numbers, one does not divide the other, or they do not fit the splits.
    """
    scopes = [one.outer or one.strategy for one in taskgraphs]
    replicated = [one for one in scopes if one.name_of_kind == "replicate"]
    counts = sorted({_count(one) for one in replicated})
    if len(counts) < 2 or has_dedicated_devices(taskgraphs, cluster):
        return None
    told = " and ".join(str(one) for one in dict.fromkeys(replicated))
    if len(counts) > 2 or counts[1] % counts[0]:
        raise PlanError(
            "The model has {}: its scopes of epl.replicate have {} devices. They may have two different numbers, of "
            "which one divides the other, such as 2 and 4. Change the others to one of these.".format(
                told, " and ".join(map(str, counts))
            )
        )
    fewer, most = counts
    found = UnequalScopes(
        next(one for one in replicated if _count(one) == most),
        next(one for one in replicated if _count(one) == fewer),
        most,
        fewer,
    )
    for one in taskgraphs:
        if one.strategy.name_of_kind == "split":
            _refuse_split(one, found, cluster)
    return found


def _count(scope: ParallelStrategy) -> int:
    return scope.device_count or 1


def _refuse_split(taskgraph: TaskGraph, scopes: UnequalScopes, cluster: Cluster) -> None:
    """Raises PlanError for a split in one of the scopes, or over other groups than those of the smaller scopes."""
    split = taskgraph.strategy
    if taskgraph.outer is not None:
        raise PlanError(
            "{} is in the scope of {}, and the model has scopes with {} and with {} devices: a scope with a split in "
            "it has as many devices as all others. Give all scopes of epl.replicate the same number, or put the split "
            "next to them.".format(split, taskgraph.outer, scopes.most, scopes.fewer)
        )
    if (split.device_count or cluster.total_gpu_num) != scopes.group:
        raise PlanError(
            "{} is next to {} and {}: of these the second has one of each {} devices, and a split next to them is over "
            "the same groups. Write epl.split({}), or give the scopes of epl.replicate the same number.".format(
                split, scopes.largest, scopes.smaller, scopes.group, scopes.group
            )
        )


def planned_taskgraphs(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> List[TaskGraph]:
    """The TaskGraphs, of which those with fewer devices than others are `FirstOfGroup`.

    On devices of its own such a TaskGraph is in the stage of the user's scope, which is its outer strategy then.

    Args:
      taskgraphs: as they are annotated.
      cluster: the devices.

    Raises:
      PlanError, LayoutError: as `unequal_scopes` and `shares_devices`.
    """
    scopes = unequal_scopes(taskgraphs, cluster)
    if scopes is None:
        return list(taskgraphs)
    shared = shares_devices(taskgraphs, scopes, cluster)
    found = []
    for one in taskgraphs:
        if one.strategy.name_of_kind == "replicate" and _count(one.strategy) == scopes.fewer:
            one = TaskGraph(one.index, FirstOfGroup(one.strategy, scopes.group), None if shared else one.strategy)
        found.append(one)
    return found


def split_taskgraphs(graph: Graph) -> List[TaskGraph]:
    """The TaskGraphs that are lowered: those of epl.split, and scopes of epl.replicate with fewer devices than others.

    Raises:
      PlanError, LayoutError: as `planned_taskgraphs`.
    """
    cluster = Env.get().cluster
    taskgraphs = graph.taskgraphs if cluster is None else planned_taskgraphs(graph.taskgraphs, cluster)
    return [taskgraph for taskgraph in taskgraphs if taskgraph.strategy.name_of_kind == "split"]


def shares_devices(taskgraphs: Sequence[TaskGraph], scopes: UnequalScopes, cluster: Cluster) -> bool:
    """Whether the smaller scopes are on devices of the largest one; else every scope has devices of its own.

    They share with `cluster.colocate_split_and_replicate`, in the layout "all", in a layout that gives the smaller
    scopes some of the devices of the largest, and if the largest asks for all devices of the job.

    Raises:
      LayoutError: the layout gives a smaller scope some devices of the largest, and not the first of each group.
    """
    if cluster.layout.name in ("specific", "aware_row") and len(cluster.virtual_devices) > 1:
        return _layout_shares(taskgraphs, scopes, cluster)
    return (
        Env.get().config.cluster.colocate_split_and_replicate
        or cluster.layout.name != "auto"
        or scopes.most == cluster.total_gpu_num
    )


def tell_of_first_devices(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> None:
    """Logs where the smaller scopes of a model are."""
    scopes = unequal_scopes(taskgraphs, cluster)
    if scopes is not None:
        shared = shares_devices(taskgraphs, scopes, cluster)
        logger.info(
            "%s has its variables and its work on the first of each %d ranks, which bring it their rows; it %s %s.",
            scopes.smaller,
            scopes.group,
            "shares the devices of" if shared else "has devices of its own, next to",
            scopes.largest,
        )


def _by_scope(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> Dict[ParallelStrategy, VirtualDevice]:
    """The devices that a layout gives each scope, in the order of annotation."""
    strategies = list(dict.fromkeys(one.outer or one.strategy for one in taskgraphs))
    return dict(zip(strategies, cluster.generate_virtual_devices([_count(one) for one in strategies])))


def _layout_shares(taskgraphs: Sequence[TaskGraph], scopes: UnequalScopes, cluster: Cluster) -> bool:
    devices = _by_scope(taskgraphs, cluster)
    largest = devices[scopes.largest]
    overlapping = [one for one, found in devices.items() if set(found.all_devices) & set(largest.all_devices)]
    if len(overlapping) == 1 and all(one.name_of_kind == "replicate" for one in devices):
        return False
    for one, found in devices.items():
        expected = largest.slice_devices
        if _count(one) == scopes.fewer:
            expected = tuple(_firsts(replica, scopes.group) for replica in expected)
        if one.name_of_kind == "replicate" and found.slice_devices != expected:
            raise LayoutError(
                "The layout gives {} the devices {}, and {} the devices {}: scopes that share devices have the same, "
                "or the first of each {}, which are {}.".format(
                    scopes.largest,
                    ", ".join(largest.all_devices),
                    one,
                    ", ".join(found.all_devices),
                    scopes.group,
                    ", ".join(device for replica in expected for device in replica),
                )
            )
    return True


def _firsts(devices: Sequence[str], group: int) -> Tuple[str, ...]:
    """The device with the lowest rank of each `group` neighbouring ones: ranks go process after process."""
    begins = range(0, len(devices), group)
    return tuple(min(devices[begin : begin + group], key=worker_of) for begin in begins)


def unequal_devices(
    annotated: Sequence[Sequence[TaskGraph]], scopes: UnequalScopes, taskgraphs: Sequence[TaskGraph], cluster: Cluster
) -> List[VirtualDevice]:
    """The devices of each stage, one for each rank.

        epl.replicate(2), epl.replicate(1)      device 0, 1      device 2
        rank                                    0        1
        stage 0                                 device 0 device 1     its half of the rows
        stage 1                                 device 2 device 2     rank 0 has all; rank 1 brings its rows

    Args:
      annotated: the planned TaskGraphs of each stage.
      scopes: of the model.
      taskgraphs: as they are annotated.
      cluster: the devices.

    Raises:
      LayoutError: the devices of the job are not a multiple of those of a model replica.
      PlanError: the layout gives a scope another number of devices than it says.
      NotAvailableError: ranks would share a GPU.
    """
    if len(annotated) == 1:
        if cluster.layout.name == "auto":
            return cluster.generate_virtual_devices([scopes.most])
        return [_by_scope(taskgraphs, cluster)[scopes.largest]]
    strategies = [stage[0].outer or stage[0].strategy for stage in annotated]
    try:
        virtual = cluster.generate_virtual_devices([_count(one) for one in strategies])
    except LayoutError as error:
        raise LayoutError(
            "{} Scopes of epl.replicate with different numbers are stages on devices of their own here. Set "
            "cluster.colocate_split_and_replicate to True to have {} on the first of each {} devices of {}.".format(
                error, scopes.smaller, scopes.group, scopes.largest
            )
        ) from None
    found: List[Tuple[str, ...]] = []
    for strategy, device in zip(strategies, virtual):
        for replica in device.slice_devices:
            if len(replica) != _count(strategy):
                raise PlanError(
                    "{} has {} device(s) in the layout of the cluster: {}. Give it as many as it says.".format(
                        strategy, len(replica), ", ".join(replica)
                    )
                )
        of_each = scopes.most // _count(strategy)
        found.append(tuple(name for name in device.all_devices for _ in range(of_each)))
    if cluster.device_type == "GPU":
        raise NotAvailableError(
            f"{scopes.smaller} on a GPU of its own next to {scopes.largest}",
            "A GPU cannot work for several ranks. Use the same number in all scopes of epl.replicate, or set "
            "cluster.colocate_split_and_replicate to True to have the smaller scope on GPUs of the larger.",
        )
    return devices_by_rank(found, cluster)
