"""Where a strategy puts what on a machine: stages, ranks, groups of a split, rows. No graph is needed.

    strategy     two blocks of epl.replicate(1), 1 worker x 4 devices, 12 rows, 2 micro batches
    rank         0            1
    stage 0      device 0     device 2         block 0
    stage 1      device 1     device 3         block 1
    rows         6            6                3 in each micro batch

The device d of worker w is device w * D + d of the machine. Devices are dealt out as when a model is planned: the same
functions decide it.
"""

import json
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.config.keys import KEY_BY_NAME
from epl.env import Env
from epl.ir.taskgraph import TaskGraph
from epl.parallel.plan.dedicated_devices import has_dedicated_devices
from epl.parallel.plan.plan import worker_of
from epl.parallel.plan.refusals import refuse_uneven_rows_of_dedicated
from epl.parallel.plan.row_shares import reduced, share_out
from epl.parallel.plan.stages import rank_order, stage_devices
from epl.parallel.plan.strategy import DECIDED_KEYS, Block, Strategy
from epl.parallel.plan.unequal_scopes import FirstOfGroup, planned_taskgraphs
from epl.parallel.split.groups import split_groups
from epl.planner.machine.machine import Machine
from epl.strategies.parallel_strategy import ParallelStrategy
from epl.strategies.replicate import Replicate
from epl.strategies.split import Split
from epl.utils.errors import MachineError, NotAvailableError, PlanError


class StrategyLayout(NamedTuple):
    """Where a strategy puts what.

    Attributes:
      stages: by stage and rank, the number of the device in the machine.
      stage_of_block: by block.
      splits: numbers of the blocks that are computed on shards.
      groups: the ranks of each group of a split, the same in all stages; () without one.
      micro_batches: of a step.
      rows: by rank, of one micro batch.
    """

    stages: Tuple[Tuple[int, ...], ...]
    stage_of_block: Tuple[int, ...]
    splits: Tuple[int, ...]
    groups: Tuple[Tuple[int, ...], ...]
    micro_batches: int
    rows: Tuple[int, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks, each with a device in each stage."""
        return len(self.rows)


def decided(strategy: Strategy) -> Dict[str, Any]:
    """The values of the configuration keys that a strategy decides; defaults for those that it leaves out."""
    values = {key: KEY_BY_NAME[key].default for key in DECIDED_KEYS}
    values.update(
        (setting.key, KEY_BY_NAME[setting.key].type.convert(json.loads(setting.value))) for setting in strategy.settings
    )
    return values


def lay_out(strategy: Strategy, machine: Machine, rows: int) -> StrategyLayout:
    """The layout of a strategy on a machine.

    Args:
      strategy: the strategy.
      machine: its first devices are those of the job.
      rows: of the global batch.

    Raises:
      PlanError, LayoutError: the blocks do not fit the devices, or the rows do not fit the replicas.
      MachineError: the machine lacks devices, or a worker would be on several computers.
      NotAvailableError: a layout that cannot be predicted yet.
    """
    _refuse_other_machine(strategy, machine)
    cluster = Cluster(
        [f"worker{number}:1" for number in range(strategy.workers)],
        layout="auto",
        config=_config_of_job(strategy),
    )
    taskgraphs = _taskgraphs(strategy)
    annotated, virtual = stage_devices(taskgraphs, cluster)
    planned = planned_taskgraphs(taskgraphs, cluster)
    if len(annotated) > 1 and any(isinstance(one.strategy, FirstOfGroup) for one in planned):
        raise NotAvailableError(
            "the prediction of scopes of epl.replicate with different numbers on devices of their own",
            "Set cluster.colocate_split_and_replicate to True, or use the same number in all scopes.",
        )
    if any(len(set(device.all_devices)) < len(device.all_devices) for device in virtual):
        raise NotAvailableError(
            "the prediction of an epl.split next to epl.replicate with fewer devices, each on devices of its own",
            "Several devices of the split share one of the others. Give both as many, or set "
            "cluster.colocate_split_and_replicate to True.",
        )
    if len({device.all_devices for device in virtual}) == 1:
        annotated, virtual = [list(taskgraphs)], virtual[:1]
    order = rank_order(virtual[0].all_devices)
    stages = tuple(
        tuple(_number(device.all_devices[replica], strategy.devices) for replica in order) for device in virtual
    )
    stage_of_block = {one.index: stage for stage, members in enumerate(annotated) for one in members}
    splits = [one for one in planned if one.strategy.name_of_kind == "split"]
    groups = _groups(splits, cluster, order, len(stages))
    settings = decided(strategy)
    micro_batches = int(settings["pipeline.num_micro_batch"])
    balance = str(settings["auto.balance"])
    if has_dedicated_devices(taskgraphs, cluster) and ":" in balance:
        refuse_uneven_rows_of_dedicated(reduced([int(number) for number in balance.split(":")]))
    return StrategyLayout(
        stages,
        tuple(stage_of_block[number] for number in range(len(strategy.blocks))),
        tuple(one.index for one in splits) if groups else (),
        groups,
        micro_batches,
        rows_of_ranks(rows, len(order), micro_batches, balance),
    )


def rows_of_ranks(rows: int, ranks: int, micro_batches: int, balance: str) -> Tuple[int, ...]:
    """By rank, the rows of each micro batch; the micro batches of a rank have as many.

    Args:
      rows: of the global batch.
      ranks: the number of ranks.
      micro_batches: of a step.
      balance: the value of `auto.balance`.

    Raises:
      PlanError: the rows do not fit the ranks and their micro batches, or the proportions do not fit the ranks.
      NotAvailableError: a balance that does not exist yet.
    """
    if balance == "speed":
        raise NotAvailableError('auto.balance "speed"', 'Set proportions such as "5:3:1", or "even".')
    shares = [1] * ranks if balance == "even" else [int(number) for number in balance.split(":")]
    if len(shares) != ranks:
        raise PlanError(
            f'auto.balance is "{balance}", proportions for {len(shares)} replica(s), and the strategy has {ranks}: '
            'give as many numbers as there are replicas of the model, or set it to "even".'
        )
    unit = micro_batches * (1 if reduced(shares) else ranks if micro_batches > 1 else 1)
    if rows % unit:
        raise PlanError(
            f"{rows} rows cannot be cut evenly for {ranks} replica(s) x {micro_batches} micro batches: take a multiple "
            f"of {unit} rows."
        )
    found = share_out(rows // micro_batches, shares)
    if 0 in found:
        raise PlanError(
            f"{rows} row(s) are too few for {ranks} replica(s) x {micro_batches} micro batch(es): replica "
            f"{found.index(0)} has none. Take more rows, or fewer devices."
        )
    return found


def _refuse_other_machine(strategy: Strategy, machine: Machine) -> None:
    needed = strategy.workers * strategy.devices
    if needed > machine.num_devices:
        raise MachineError(
            f"the strategy is for {strategy.workers} worker(s) x {strategy.devices} device(s), and machine "
            f"{machine.name} has {machine.num_devices} device(s): take a larger machine, or make a strategy for fewer."
        )
    node_of = [number for number, node in enumerate(machine.nodes) for _ in node.devices]
    for worker in range(strategy.workers):
        nodes = sorted(set(node_of[worker * strategy.devices : (worker + 1) * strategy.devices]))
        if len(nodes) > 1:
            raise MachineError(
                f"worker {worker} of the strategy has {strategy.devices} device(s), which are on the nodes "
                f"{', '.join(map(str, nodes))} of machine {machine.name}: a worker is on one node. Make a strategy for "
                "workers with fewer devices."
            )


def _config_of_job(strategy: Strategy) -> Config:
    current = Env.get().config
    return Config(
        {
            "cluster.num_virtual_devices": strategy.devices,
            "cluster.device_type": "cpu",
            "cluster.device_order": decided(strategy).get("cluster.device_order", ""),
            "cluster.device_place_prefer_intra_node": current.cluster.device_place_prefer_intra_node,
        }
    )


def _taskgraphs(strategy: Strategy) -> List[TaskGraph]:
    nesting: Dict[int, ParallelStrategy] = {}  # the scopes that have splits inside, by number

    def scope_of(block: Block) -> ParallelStrategy:
        made = Replicate(block.outer or block.devices)
        return nesting.setdefault(block.stage, made) if block.stage else made

    found = []
    for number, block in enumerate(strategy.blocks):
        if block.kind == "split":
            split = Split(block.devices or None, ratios=block.ratios or None)
            found.append(TaskGraph(number, split, scope_of(block) if block.outer else None))
        else:
            found.append(TaskGraph(number, scope_of(block), None))
    return found


def _groups(
    splits: Sequence[TaskGraph], cluster: Cluster, order: Sequence[int], stages: int
) -> Tuple[Tuple[int, ...], ...]:
    """The ranks of each group of the splits; () if there is no split, or if it is over one device."""
    counts = sorted({one.strategy.device_count or len(order) for one in splits})
    if not counts or counts == [1]:
        return ()
    if len(counts) > 1 or len(order) % counts[0]:
        raise PlanError(
            "The strategy has splits over {} devices, and {} ranks: all splits are over the same number of devices, "
            "which divides the ranks.".format(" and ".join(map(str, counts)), len(order))
        )
    count = counts[0]
    if any(isinstance(one.strategy, FirstOfGroup) for one in splits):
        rank_of = {position: rank for rank, position in enumerate(order)}
        begins = range(0, len(order), count)
        return tuple(sorted(tuple(sorted(rank_of[begin + i] for i in range(count))) for begin in begins))
    if stages > 1:
        return tuple(tuple(range(begin, begin + count)) for begin in range(0, len(order), count))
    slices = cluster.generate_virtual_devices([count])[0].slice_devices
    return split_groups(count, slices, cluster.all_devices)


def _number(device: str, devices: int) -> int:
    """The number in the machine of a device of the job."""
    return worker_of(device) * devices + int(device.rpartition(":")[2])
