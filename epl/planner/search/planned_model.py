"""A model as plans of it are simulated: the decisions of the script, its costs, the machine, the rows of a batch."""

from typing import Dict, List, NamedTuple, Optional, Tuple

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan.strategy import Block, Strategy
from epl.parallel.strategy import record
from epl.parallel.strategy.record import ForwardPass
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.machine.files import read_machine
from epl.planner.machine.job_devices import machine_of_job
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import decided, lay_out
from epl.planner.profile.op_profile import OpProfile, open_profile
from epl.planner.search.speed_balance import is_open, with_balance
from epl.planner.simulator.model_costs import ModelCosts
from epl.utils.errors import PlanError

_ROWS = 32  # of each replica, where the script leaves them open; as the memory estimate assumes


class PlannedModel(NamedTuple):
    """State of a graph (`Graph.state_of`): what plans of a model are simulated with.

    Attributes:
      strategy: the decisions of the script as it is.
      costs: of its forward pass.
      machine: with the devices of the job alone.
      rows: of the global batch.
      profile: what was measured of its ops, by `auto.profile`; None: nothing.
      assumptions: where the machine and the rows come from, for people.
    """

    strategy: Strategy
    costs: ModelCosts
    machine: Machine
    rows: int
    profile: Optional[OpProfile]
    assumptions: Tuple[str, ...]


def planned_model(graph: Graph, found: ForwardPass, slots: Optional[Dict[str, float]] = None) -> PlannedModel:
    """What plans of a model are simulated with.

    Args:
      graph: the model.
      found: its forward pass.
      slots: of the optimizer, as for `GraphCosts`; None: as the graph has them.

    Raises:
      PlanError, MachineError: the machine or the rows are not known, or do not fit the job.
    """
    env = Env.get()
    assert env.cluster is not None
    strategy = record.strategy_of_pass(graph, found)
    if not strategy.blocks:  # without annotation the whole model is one TaskGraph
        strategy = strategy._replace(blocks=(Block("replicate", 1, 0, (), ()),))
    machine, assumed = _machine(env.config, env.cluster)
    profile = open_profile(env.config.auto.profile, env.cluster, machine.devices[0])
    times = None if profile is None else profile.measured
    costs = GraphCosts.of_recorded(graph, found, times, slots)
    rows, counted = _rows(env.config, strategy, machine, costs)
    return PlannedModel(strategy, costs, machine, rows, profile, (*assumed, counted))


def _machine(config: Config, cluster: Cluster) -> Tuple[Machine, List[str]]:
    workers, devices = cluster.worker_num, cluster.gpu_num_per_worker
    if config.auto.machine:
        return machine_of_job(read_machine(config.auto.machine), workers, devices), []
    if cluster.device_type != "CPU":
        raise PlanError(
            "Plans for GPUs are simulated on a machine, and auto.machine names none. Set it to a machine file, or to "
            f"presets such as {workers}x{devices}*v100-32,eth-25; epl-plan --machines lists them."
        )
    nodes: Dict[str, int] = {}
    for name in cluster.machines:
        nodes[name] = nodes.get(name, 0) + devices
    text = "+".join(f"{count}*cpu" for count in nodes.values()) + (",eth-10" if len(nodes) > 1 else "")
    words = f"the machine is {text}: presets, as auto.machine names none"
    return machine_of_job(read_machine(text), workers, devices), [words]


def _rows(config: Config, strategy: Strategy, machine: Machine, costs: ModelCosts) -> Tuple[int, str]:
    if config.auto.rows:
        return config.auto.rows, f"a batch has {config.auto.rows} rows (auto.rows)"
    micro_batches = int(decided(strategy)["pipeline.num_micro_batch"])
    even = with_balance(strategy, "even") if is_open(strategy) else strategy
    ranks = lay_out(even, machine, strategy.workers * strategy.devices * micro_batches).ranks
    if costs.rows is not None:
        rows, why = costs.rows * micro_batches, "as the script says"
    else:
        rows, why = _ROWS * micro_batches, "as the script leaves it open"
    return rows * ranks, f"a batch has {rows * ranks} rows: {rows} for each of {ranks} replica(s), {why}"
