"""Devices of a split that has devices of its own: `cluster.colocate_split_and_replicate` is off.

    epl.replicate(1), epl.split(2)      device 0    device 1, 2      a model replica in the layout
    rank                                0           1
    stage 0, replicated                 device 0    device 0         each with the rows of its own batch
    stage 1, split                      device 1    device 2         each with its shard

A split of n devices has n ranks, as always, and each rank needs the replicated ops for the rows of its batch. These run
on a device of the replicated TaskGraph, in the same process if possible. Values are copied between the two devices, as
in a pipeline; and as there, a process without devices of stage 0 serves the processes that have some. Several ranks may
share a device.
"""

import logging
from typing import Dict, List, Sequence

from epl.cluster.cluster import Cluster
from epl.cluster.device_layouts import VirtualDevice
from epl.env import Env
from epl.ir.taskgraph import TaskGraph
from epl.parallel.plan.plan import worker_of
from epl.utils.errors import LayoutError, NotAvailableError, PlanError

logger = logging.getLogger("epl")


def has_dedicated_devices(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> bool:
    """Whether the splits of a model are on other devices than its other TaskGraphs.

    If each TaskGraph asks for all devices of the job, they share the devices.
    """
    return _could_have_dedicated_devices(taskgraphs, cluster) and not _each_asks_for_all(taskgraphs, cluster)


def tell_of_shared_devices(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> None:
    """Logs that a split shares its devices although the configuration does not ask for it."""
    if _could_have_dedicated_devices(taskgraphs, cluster) and _each_asks_for_all(taskgraphs, cluster):
        logger.info(
            "Each of %s asks for all %d devices of the job, so they share them, as with "
            "cluster.colocate_split_and_replicate.",
            ", ".join(str(one.strategy) for one in taskgraphs),
            cluster.total_gpu_num,
        )


def _each_asks_for_all(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> bool:
    return all(one.strategy.device_count == cluster.total_gpu_num for one in taskgraphs)


def _could_have_dedicated_devices(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> bool:
    """Whether the configuration, the layout and the annotations let splits have devices of their own."""
    return (
        not Env.get().config.cluster.colocate_split_and_replicate
        and cluster.layout.name != "all"
        and cluster.total_gpu_num > 1
        and any(one.strategy.name_of_kind != "split" or one.outer is not None for one in taskgraphs)
        and any(one.strategy.name_of_kind == "split" and one.outer is None for one in taskgraphs)
    )


def rank_devices(taskgraphs: Sequence[TaskGraph], cluster: Cluster) -> List[VirtualDevice]:
    """The devices of each TaskGraph, one per rank of each split group; one list for all, if the layout shares devices.

    Args:
      taskgraphs: the TaskGraphs of a model whose splits have devices of their own.
      cluster: the devices.

    Raises:
      LayoutError: the devices of the job are not a multiple of those of a model replica.
      PlanError: the TaskGraphs have numbers of devices that do not fit together.
      NotAvailableError: ranks would share a GPU.
    """
    splits = [one.strategy for one in taskgraphs if one.strategy.name_of_kind == "split"]
    strategy, ranks = splits[0], splits[0].device_count
    nested = next((one for one in taskgraphs if one.outer is not None), None)
    if nested is not None:
        raise PlanError(
            "{} is in the scope of {}, and another epl.split stands beside it, with "
            "cluster.colocate_split_and_replicate off: put all of them into scopes of epl.replicate, which are stages, "
            "or none.".format(nested.strategy, nested.outer)
        )
    if ranks is None or any(one.device_count != ranks for one in splits):
        raise PlanError(
            "cluster.colocate_split_and_replicate is off, and the model has {}: a split on devices of its own says how "
            "many it has, and all splits of a model have as many. Write epl.split(n), or set the key to True.".format(
                " and ".join(map(str, splits))
            )
        )
    try:
        virtual = cluster.generate_virtual_devices([one.strategy.device_count or 1 for one in taskgraphs])
    except LayoutError as error:
        raise LayoutError(
            "{} {} has devices of its own here; set cluster.colocate_split_and_replicate to True to have it on those "
            "of all TaskGraphs.".format(error, strategy)
        ) from None
    if len({device.all_devices for device in virtual}) == 1:
        return virtual[:1]
    slices: List[List[str]] = [[] for _ in virtual]
    for replica in zip(*[device.slice_devices for device in virtual]):
        split = next(names for names, one in zip(replica, taskgraphs) if one.strategy is strategy)
        if len(split) != ranks:
            raise PlanError(
                "{} has {} device(s) in the layout of the cluster: {}. Give it as many as it says.".format(
                    strategy, len(split), ", ".join(split)
                )
            )
        for names, one, found in zip(replica, taskgraphs, slices):
            if len(names) > ranks:
                raise PlanError(
                    "{} is beside {} and has more devices, {}: each device of a split works with one of the "
                    "replicated part, and some would have no work. Give the split as many, or more.".format(
                        one.strategy, strategy, len(names)
                    )
                )
            chosen = _one_for_each(names, split)
            if len(set(chosen)) < ranks and cluster.device_type == "GPU":
                raise NotAvailableError(
                    f"{strategy} beside {one.strategy} on {len(set(chosen))} GPU(s) of its own",
                    "A GPU cannot work for several devices of a split. Use epl.replicate({}), or set "
                    "cluster.colocate_split_and_replicate to True.".format(ranks),
                )
            found += chosen
    return devices_by_rank(slices, cluster)


def devices_by_rank(devices: Sequence[Sequence[str]], cluster: Cluster) -> List[VirtualDevice]:
    """Virtual devices of which each replica is a rank with one device.

    Args:
      devices: of each stage, by rank; ranks may share a device.
      cluster: the devices of the job.
    """
    owners = [worker_of(name) for name in devices[0]]
    local = tuple(rank for rank, owner in enumerate(owners) if owner == cluster.worker_index)
    return [
        VirtualDevice(index, tuple((name,) for name in names), cluster.worker_index, local)
        for index, names in enumerate(devices)
    ]


def _one_for_each(devices: Sequence[str], others: Sequence[str]) -> List[str]:
    """A device for each of the others, in equal shares; of the same process if possible."""
    near = [[name for name in devices if worker_of(name) == worker_of(other)] for other in others]
    alone = [[] if names else list(devices) for names in near]
    chosen: Dict[int, str] = {}
    while len(chosen) < len(others):  # in each turn every device gets one
        left = list(devices)
        for wishes in (near, alone, [list(devices)] * len(others)):
            for number, wished in enumerate(wishes):
                names = [name for name in left if name in wished]
                if number not in chosen and names:
                    chosen[number] = names[0]
                    left.remove(names[0])
    return [chosen[number] for number in range(len(others))]
