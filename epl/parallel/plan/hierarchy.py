"""Whether collectives between machines are hierarchical (`communication.hierarchy`): the one place that decides it.

    machine 0   worker 0  worker 1      inside a machine by shared memory
                   |         |          between machines one shard of each worker, not all of it
    machine 1   worker 2  worker 3

Which transport has hierarchical algorithms, and of which kinds, says collective_algorithms.py, for plans and for
simulations. NCCL finds machines by itself.
"""

from typing import Callable, Dict, Optional, Tuple

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.parallel.plan.sections import HierarchySection
from epl.planner.machine.collective_algorithms import may_be_hierarchical, transport_between
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.files import read_machine
from epl.planner.machine.job_devices import machine_of_job
from epl.planner.machine.machine import Machine
from epl.planner.machine.routes import Routes
from epl.utils.errors import MachineError, PlanError

_KEY = "communication.hierarchy"


def plan_hierarchy(config: Config, cluster: Cluster) -> Optional[HierarchySection]:
    """How collectives between the machines of a job are done; None if it makes no difference.

    Raises:
      PlanError: the key is "on", and the job cannot do it.
    """
    counts: Dict[str, int] = {}
    for machine in cluster.machines:
        counts[machine] = counts.get(machine, 0) + 1
    workers = tuple(counts.values())
    asked = config.communication.hierarchy
    if asked == "on":
        _refuse(cluster, counts)
    if not may_be_hierarchical(cluster.device_type):
        return None
    devices = cluster.gpu_num_per_worker
    return _decide(asked, workers, devices, lambda: _machine(config, cluster, workers[0] * devices))


def transport_on(machine: Machine, workers: int, devices: int, asked: str) -> str:
    """The transport of the collectives of a job on a machine that need not be there, as its plan has it.

    Args:
      machine: its first devices are those of the job.
      workers, devices: processes, and devices of each.
      asked: the value of `communication.hierarchy`.
    """
    if any(device.type == "GPU" for device in machine.devices):
        return transport_between("GPU", False)
    job = machine_of_job(machine, workers, devices)
    counts = tuple(len(node.devices) // devices for node in job.nodes)
    planned = _decide(asked, counts, devices, lambda: job)
    return transport_between("CPU", planned is not None and planned.hierarchical)


def costs_of_job(machine: Machine, workers: int, devices: int, asked: str) -> CollectiveCosts:
    """The costs of the collectives of a job on a machine; the arguments are those of `transport_on`."""
    return CollectiveCosts(machine, transport_on(machine, workers, devices, asked), devices)


def _decide(
    asked: str, workers: Tuple[int, ...], devices: int, machine: Callable[[], Machine]
) -> Optional[HierarchySection]:
    """The decision for CPUs; `workers` of each machine."""
    if asked == "on":
        return HierarchySection(_fits(workers), workers, f'{_KEY} is "on"')
    if len(workers) == 1 or max(workers) == 1:
        return None
    if asked == "off":
        return HierarchySection(False, workers, f'{_KEY} is "off"')
    if not _fits(workers):
        return HierarchySection(False, workers, "the machines have unequal numbers of workers")
    return _by_links(machine(), workers, devices)


def _fits(workers: Tuple[int, ...]) -> bool:
    return len(workers) > 1 and len(set(workers)) == 1 and workers[0] > 1


def is_hierarchical(config: Config, cluster: Cluster) -> bool:
    """Whether the collectives of a job are hierarchical where its machines allow it."""
    planned = plan_hierarchy(config, cluster)
    return planned is not None and planned.hierarchical


def _refuse(cluster: Cluster, counts: Dict[str, int]) -> None:
    if not may_be_hierarchical(cluster.device_type):
        raise PlanError(
            f'{_KEY} is "on", and the devices are GPUs, whose collectives NCCL does: it finds the machines by itself. '
            'Set it to "auto".'
        )
    if not _fits(tuple(counts.values())):
        found = ", ".join(f"{count} on {machine}" for machine, count in counts.items())
        raise PlanError(
            f'{_KEY} is "on", and the workers of the job are {found}. Hierarchical collectives need several '
            "machines with equally many workers, at least two on each; the host of a worker's address is its machine. "
            'Set it to "auto".'
        )


def _by_links(machine: Machine, workers: Tuple[int, ...], devices: int) -> HierarchySection:
    each = workers[0]
    routes = Routes(machine)
    node = len(machine.nodes[0].devices)
    if len(machine.nodes) == 1 or node < each * devices:
        return HierarchySection(
            True, workers, f"machine {machine.name} does not have these nodes, and networks are slow"
        )
    firsts = [worker * devices for worker in range(each)]
    (inside,) = routes.channels([(firsts[0], firsts[1])])
    across = min(routes.channels([(one, node + one) for one in firsts]), key=lambda channel: channel.bandwidth)
    faster = inside.bandwidth > across.bandwidth
    words = "{} is {} than a worker's share of {} ({})".format(
        inside.link, "faster" if faster else "no faster", across.link, machine.name
    )
    return HierarchySection(faster, workers, words)


def _machine(config: Config, cluster: Cluster, node: int) -> Machine:
    if config.auto.machine:
        try:
            return machine_of_job(read_machine(config.auto.machine), cluster.worker_num, cluster.gpu_num_per_worker)
        except MachineError:
            pass  # for plans of another job: the links of this one are not known
    return read_machine(f"{len(set(cluster.machines))}x{node}*cpu,eth-10")
