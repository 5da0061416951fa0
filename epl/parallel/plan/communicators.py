"""The communicators of a plan: their names, ranks and transports."""

from typing import Callable, List, Sequence, Tuple, Union

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.ops.communicator_groups import SubCommunicators
from epl.ops.service import CommunicatorSpec
from epl.parallel.plan.hierarchy import is_hierarchical
from epl.parallel.plan.plan import GradientGroup, Plan, Stage, section, split_groups, worker_of
from epl.parallel.plan.sections import BatchNormSection, HierarchySection, OffloadSection, WholeBatchSection
from epl.parallel.plan.stages import span_processes
from epl.planner.machine.collective_algorithms import transport_between

PROCESSES = "/processes"  # after a plan's name: the communicator of its processes
PART_WRITES = "/part_writes"  # after that: the one for how variables in parts got their values
AVERAGED_WRITES, WHOLE_WRITES = "averaged_writes", "whole_writes"  # of a step: each has a communicator of its own
PARTS = "/parts"  # after a plan's name: the communicators of the ranks that hold the same shards


def ranks_of_stage(plan: Plan, stage: int) -> List[int]:
    """The process that runs a stage, by replica."""
    return processes_of(plan.stages)[stage]


def processes_of(stages: Sequence[Stage]) -> List[List[int]]:
    """By stage, the process that runs it, by replica."""
    return [[worker_of(device) for device in stage.devices] for stage in stages]


def transport_of(plan: Plan, name: str = "") -> str:
    """The transport of the collectives of a plan, or of the communicator `name`.

    The communicators of processes exchange variables: if these are in host memory, they do not use a device.
    """
    on_host = name.startswith(plan.name + PROCESSES) and section(plan, OffloadSection) is not None
    hierarchy = section(plan, HierarchySection)
    return transport_between("CPU" if on_host else plan.device_type, hierarchy is not None and hierarchy.hierarchical)


def transport_of_job(config: Config, cluster: Cluster, on_host: bool = False) -> str:
    """The transport of collectives on the devices of a job, or `on_host`: of tensors in host memory."""
    return transport_between("CPU" if on_host else cluster.device_type, is_hierarchical(config, cluster))


def all_communicators(plan: Plan) -> List[CommunicatorSpec]:
    """Every communicator that the passes ask for, in the same order in every process."""
    ranks = [(gate_communicator(plan, group), ranks_of_stage(plan, group.stage)) for group in plan.groups]
    ranks += [
        (transfer.communicator, ranks_of_stage(plan, group.stage))
        for group in plan.groups
        if not group.of_shards
        for transfer in group.transfers
    ]
    ranks += [
        (output.communicator, ranks_of_stage(plan, output.stage)) for output in plan.outputs if output.communicator
    ]
    ranks += _of_rows(plan, section(plan, BatchNormSection), batch_norm_communicator)
    ranks += _of_rows(plan, section(plan, WholeBatchSection), whole_batch_communicator)
    ranks += [(plan.name + PROCESSES + purpose, sorted(set(plan.owners))) for purpose in ("", PART_WRITES)]
    specs = [CommunicatorSpec(name, tuple(owners), transport_of(plan, name)) for name, owners in dict(ranks).items()]
    of_shards = {
        transfer.communicator: group.stage for group in plan.groups if group.of_shards for transfer in group.transfers
    }
    if len(split_groups(plan)) > 1:
        of_shards[plan.name + PARTS] = 0
    return specs + [spec for name, stage in of_shards.items() for spec in shard_holders(plan, name, stage).specs()]


def _of_rows(
    plan: Plan, planned: Union[BatchNormSection, WholeBatchSection, None], name: Callable[[Plan, str, int], str]
) -> List[Tuple[str, List[int]]]:
    """The communicators of what is of all rows, in the stages that have it."""
    stages = () if planned is None else planned.stages
    return [
        (name(plan, way, stage), ranks_of_stage(plan, stage)) for stage in stages for way in ("forward", "backward")
    ]


def whole_batch_communicator(plan: Plan, direction: str, stage: int) -> str:
    """The communicator of losses of all rows in a stage, "forward" or "backward"."""
    return f"{plan.name}/whole_batch/{stage}/{direction}"


def batch_norm_communicator(plan: Plan, direction: str, stage: int) -> str:
    """The communicator of the batch norms of a stage, "forward" or "backward"."""
    return f"{plan.name}/batch_norm/{stage}/{direction}"


def is_of_writes(plan: Plan, communicator: str) -> bool:
    """Whether a communicator is that of a write of all rows."""
    return communicator.startswith(tuple(f"{plan.name}/{kind}/" for kind in (AVERAGED_WRITES, WHOLE_WRITES)))


def gate_communicator(plan: Plan, group: GradientGroup) -> str:
    """The communicator of all replicas of a stage for the gate of a group of gradients; see aggregate_gradients.py."""
    return group.transfers[0].communicator if group.transfers else f"{plan.name}/{group.name}"


def shard_holders(plan: Plan, name: str, stage: int) -> SubCommunicators:
    """The communicators of the ranks of a stage that hold the same shard, one rank in each group of a split."""
    holders = list(zip(*split_groups(plan)))
    across = span_processes(plan.stages, plan.owners)
    return SubCommunicators(name, holders, ranks_of_stage(plan, stage), transport_of(plan), across)
