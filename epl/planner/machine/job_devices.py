"""Which devices of a machine a job has, and the machine that is left when the others are taken away.

machine    node 0 [0 1 2 3]   node 1 [4 5 6 7]
job 3 x 2  worker 0: 0 1, worker 1: 2 3, worker 2: 4 5         nodes are filled in order
"""

from typing import Dict, List, Optional, Sequence, Tuple

from epl.planner.machine.machine import LinkLevel, Machine, MachineNode
from epl.utils.errors import MachineError


def machine_of_job(machine: Machine, workers: int, devices: int) -> Machine:
    """The machine with the devices of a job alone: those of worker 0 first, as many for each worker.

    The devices of a worker are in one node. Nodes take workers in order, each as many as it has devices for.

    Args:
      machine: the machine.
      workers, devices: processes, and devices of each.

    Raises:
      MachineError: the machine has no room for so many workers.
    """
    room = [len(node.devices) // devices for node in machine.nodes]
    if sum(room) < workers:
        raise MachineError(
            f"machine {machine.name} has room for {sum(room)} worker(s) of {devices} device(s), and the job has "
            f"{workers}: its nodes have {_ranges([len(node.devices) for node in machine.nodes])} devices. Name a "
            "larger machine, or another number of devices."
        )
    nodes: List[MachineNode] = []
    left = workers
    for node, fitting in zip(machine.nodes, room):
        taken = min(fitting, left)
        left -= taken
        if taken:
            nodes.append(_first_devices(node, taken * devices))
    if len(nodes) == 1:
        nodes = [nodes[0]._replace(network="")]
    names = {name for node in nodes for name in node.devices}
    links = {link for node in nodes for link in [level.link for level in node.levels] + [node.network]}
    return machine._replace(
        devices=tuple(device for device in machine.devices if device.name in names),
        links=tuple(link for link in machine.links if link.name in links),
        nodes=tuple(nodes),
    )


def job_of_machine(machine: Machine) -> Tuple[int, int]:
    """(workers, devices of each) of a job that has all devices of a machine: one worker for each node.

    Raises:
      MachineError: its nodes have unequal numbers of devices.
    """
    sizes = [len(node.devices) for node in machine.nodes]
    if len(set(sizes)) > 1:
        raise MachineError(
            f"machine {machine.name} has nodes of {_ranges(sizes)} devices, and all workers of a job have equally "
            "many. Say how many: --devices WORKERSxDEVICES."
        )
    return len(sizes), sizes[0]


def _first_devices(node: MachineNode, count: int) -> MachineNode:
    if count == len(node.devices):
        return node
    levels = []
    for level in node.levels:
        groups = [tuple(device for device in group if device < count) for group in level.groups]
        levels.append(LinkLevel(level.link, tuple(group for group in groups if group)))
    # A level that joins nothing, or the same devices as the one inside it, is left out: the innermost counts.
    useful: Dict[Tuple[Tuple[int, ...], ...], Optional[LinkLevel]] = {}
    for one in levels:
        if any(len(group) > 1 for group in one.groups):
            useful.setdefault(one.groups, one)
    return MachineNode(node.devices[:count], tuple(one for one in useful.values() if one), node.network)


def _ranges(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
