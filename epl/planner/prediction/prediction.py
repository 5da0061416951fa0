"""Predicts a step of a strategy on a machine: its time, its memory, its communication, and what it waits for.

    strategy, machine, rows --> layout --> classes of equal ranks --> program --> simulated run --> Prediction
    costs of the model ------------------> work of their stages ---'

No graph is built and nothing runs.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.config.config import Config
from epl.env import Env
from epl.parallel.plan.hierarchy import costs_of_job
from epl.parallel.plan.strategy import ForwardOp, Strategy
from epl.parallel.plan.whole_batch_refusals import not_proved_with
from epl.parallel.plan.zero_decisions import DROPS, scatters_gradients
from epl.parallel.plan.zero_refusals import refuse_stages_with_groups, refuse_v2
from epl.planner.costs.row_exchanges import LOSSES
from epl.planner.machine.collective_algorithms import NCCL_PACK_BYTES
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.machine import Machine
from epl.planner.prediction import host_memory
from epl.planner.prediction.bounds import StepBound, find_bound
from epl.planner.prediction.cores import cores_of_job
from epl.planner.prediction.facts import ModelFacts, find_facts
from epl.planner.prediction.layout import StrategyLayout, decided, lay_out
from epl.planner.prediction.lowering import StepLowering
from epl.planner.prediction.program_builder import (
    ACTIVATIONS,
    COMMUNICATES,
    COMMUNICATION,
    COMPUTES,
    LoweredKind,
    LoweredOp,
    LoweredStep,
)
from epl.planner.prediction.rank_classes import RankClass, find_classes
from epl.planner.prediction.split_work import SplitWork, find_split_work
from epl.planner.prediction.stage_plans import StagePlans, StepOptions, plan_stages_of_classes
from epl.planner.prediction.traffic import Traffic
from epl.planner.simulator.critical_path import critical_path
from epl.planner.simulator.engine import SimulatedRun, simulate
from epl.planner.simulator.model_costs import ModelCosts, RowWay
from epl.utils.errors import NotAvailableError


class PredictedMemory(NamedTuple):
    """What a device holds at its worst moment, in bytes.

    Attributes:
      peak: the sum.
      by_role: the same by role: weights, slots, gradients, activations, communication.
      seconds: when, from the begin of the step.
      at: what starts then.
      limit: of the device; None if there is none.
    """

    peak: int
    by_role: Dict[str, int]
    seconds: float
    at: str
    limit: Optional[int]

    @property
    def lacks(self) -> int:
        """Bytes beyond the limit; 0 if all fits."""
        return 0 if self.limit is None else max(0, self.peak - self.limit)


class PredictedDevices(NamedTuple):
    """Devices that do the same.

    Attributes:
      name: for people.
      stage: theirs.
      ranks: of their replicas.
      devices: their numbers in the machine.
      kind: of device.
      rows: of a step, of each.
      busy: seconds in which each computes.
      exposed: seconds in which it communicates and computes nothing.
      bubble: seconds in which it waits for other devices.
      memory: at the worst moment.
    """

    name: str
    stage: int
    ranks: Tuple[int, ...]
    devices: Tuple[int, ...]
    kind: str
    rows: int
    busy: float
    exposed: float
    bubble: float
    memory: PredictedMemory


class PredictedTraffic(NamedTuple):
    """The collectives, or transfers, of one decision in a step.

    Attributes:
      decision: what asks for them.
      collective: their name.
      times: how many there are on a device.
      bytes: of all of them, each as its cost is computed with: of the full tensor.
      seconds: of all of them.
      devices: that take part in each.
      way: of collectives of rows, a constant of RowWay; "" for others.
    """

    decision: str
    collective: str
    times: int
    bytes: float
    seconds: float
    devices: int
    way: str = ""

    @property
    def in_words(self) -> str:
        """The decision, and where the step has the collectives."""
        return f"{self.decision}, {self.way}" if self.way else self.decision


class CriticalOp(NamedTuple):
    """A part of the critical path: what set the time of the step.

    Attributes:
      name: what runs.
      kind: a constant of LoweredKind.
      devices: index of the entry of `Prediction.devices` that it belongs to.
      reason: why it started when the one before it ended, a constant of StartReason.
      start, end: in seconds from the begin of the step.
    """

    name: str
    kind: str
    devices: int
    reason: str
    start: float
    end: float


class Prediction(NamedTuple):
    """A step, as the simulator sees it.

    Attributes:
      seconds: from the begin of the step to the end of its last op.
      devices: a row for each class of devices; device i of the program is that of row i.
      traffic: by decision, in the order in which they begin.
      critical_path: from the begin of the step to its end.
      bound: what no schedule can beat.
      assumptions: in words.
      lowered, run: the program and its course, for a trace.
    """

    seconds: float
    devices: Tuple[PredictedDevices, ...]
    traffic: Tuple[PredictedTraffic, ...]
    critical_path: Tuple[CriticalOp, ...]
    bound: StepBound
    assumptions: Tuple[str, ...]
    lowered: LoweredStep
    run: SimulatedRun

    @property
    def fits(self) -> bool:
        """Whether no device needs more memory than it has."""
        return not any(one.memory.lacks for one in self.devices)


class PreparedStep(NamedTuple):
    """What the program of a step is made from.

    Attributes:
      facts, layout, options: of the model, of the strategy on the machine, of the configuration.
      links: the costs of collectives.
      split: the work of the ranks of a group; None without a split.
      classes: of the ranks.
      plans: of the stages.
    """

    facts: ModelFacts
    layout: StrategyLayout
    options: StepOptions
    links: CollectiveCosts
    split: Optional[SplitWork]
    classes: List[RankClass]
    plans: StagePlans


class KnownParts:
    """What the predictions of a search have in common: they are of one model on one machine."""

    def __init__(self, costs: ModelCosts, machine: Machine, job: Strategy, config: Optional[Config] = None) -> None:
        """Args: job: a strategy for the job; config: has `communication.hierarchy`, None: that of `epl.init`."""
        asked = (Env.get().config if config is None else config).communication.hierarchy
        self.links = costs_of_job(machine, job.workers, job.devices, asked)
        self._costs = costs
        self._facts: Dict[str, ModelFacts] = {}
        self._in_stages: Dict[int, Tuple[Sequence[ForwardOp], Sequence[int], ModelFacts]] = {}

    def facts(self, strategy: Strategy, stage_of_block: Sequence[int]) -> ModelFacts:
        """The facts of the model: the same for strategies with one stage, and for those with the same ops in stages."""
        if any(stage_of_block):
            known = self._in_stages.get(id(strategy.ops))
            if known is None or known[0] is not strategy.ops or known[1] != stage_of_block:
                known = strategy.ops, stage_of_block, find_facts(strategy, self._costs, stage_of_block)
                self._in_stages[id(strategy.ops)] = known
            return known[2]
        if strategy.model not in self._facts:
            self._facts[strategy.model] = find_facts(strategy, self._costs, stage_of_block)
        return self._facts[strategy.model]


def predict(
    strategy: Strategy,
    costs: ModelCosts,
    machine: Machine,
    rows: int,
    config: Optional[Config] = None,
    known: Optional[KnownParts] = None,
) -> Prediction:
    """Predicts a step.

    Args:
      strategy: any strategy; the machine may have more devices than its job.
      costs: of its model.
      machine: where it would run.
      rows: of the global batch: of all replicas and their micro batches.
      config: has the keys that a strategy does not decide, such as those of buckets; None: that of `epl.init`.
      known: what earlier predictions of this model on this machine have found.

    Raises:
      PlanError, LayoutError: the strategy cannot be trained so.
      NotAvailableError: the strategy uses what cannot be predicted yet.
      MachineError: the machine does not fit the job.
    """
    prepared = prepare(strategy, costs, machine, rows, config=config, known=known)
    return predicted(prepared, costs, machine)


def prepare(
    strategy: Strategy,
    costs: ModelCosts,
    machine: Machine,
    rows: int,
    fold: bool = True,
    config: Optional[Config] = None,
    known: Optional[KnownParts] = None,
) -> PreparedStep:
    """The first half of `predict`; `fold`: whether equal ranks are simulated once."""
    known = known or KnownParts(costs, machine, strategy, config)
    layout = lay_out(strategy, machine, rows)
    options = _options(strategy, layout, Env.get().config if config is None else config)
    facts = known.facts(strategy, layout.stage_of_block)
    _refuse_rows_of_all(costs, bool(layout.splits), options)
    split = None
    if layout.splits:
        group_rows = sum(layout.rows[rank] for rank in layout.groups[0])
        split = find_split_work(
            strategy, facts, layout.splits, len(layout.groups[0]),
            lambda op, output: costs.exchanged_bytes(group_rows, op, output), options.half,
        )  # fmt: skip
    links = known.links
    classes = find_classes(
        layout, machine.placed_devices(), cores_of_job(machine, strategy.workers, strategy.devices), links,
        sorted(facts.crossing), split is None or split.is_equal, fold,
    )  # fmt: skip
    plans = plan_stages_of_classes(strategy, facts, costs, layout, classes, split, options)
    return PreparedStep(facts, layout, options, links, split, classes, plans)


def predicted(step: PreparedStep, costs: ModelCosts, machine: Machine) -> Prediction:
    """The second half of `predict`."""
    traffic = Traffic(step.layout, step.links, step.classes)
    lowered = StepLowering(
        step.facts, costs, step.layout, traffic, step.classes, step.plans, step.split, step.options
    ).run()
    run = simulate(lowered.program, ACTIVATIONS)
    return Prediction(
        run.seconds,
        tuple(_devices(step, lowered, run)),
        tuple(_traffic(lowered, run, len(step.layout.stages))),
        tuple(_critical_path(lowered, run)),
        find_bound(step.layout, costs, step.classes, lowered, step.options.dtype),
        tuple(_assumptions(step, costs, machine)),
        lowered,
        run,
    )


def _refuse_rows_of_all(costs: ModelCosts, is_split: bool, options: StepOptions) -> None:
    """Raises NotAvailableError for what no step can have whose passes wait for values of all rows.

    In a search the collectives of losses are not known, but that there are such losses is.
    """
    decisions = {one.decision for one in costs.exchanges if one.way != RowWay.WRITES}
    decisions |= {LOSSES}.intersection(costs.uncounted)
    beside = ["epl.split"] if is_split else []
    if LOSSES in decisions:
        beside = not_proved_with(is_split, options.zero, options.offload)
    if beside and decisions:
        raise NotAvailableError(f"the prediction of {max(decisions)} with {beside[0]}", "Leave one of the two out.")


def _options(strategy: Strategy, layout: StrategyLayout, config: Config) -> StepOptions:
    """The values of configuration keys.

    Raises:
      NotAvailableError: one asks for what EPL does not do.
    """
    values = decided(strategy)
    zero = str(values["zero.level"]) if layout.ranks > 1 else ""
    if zero and len(layout.stages) > 1 and layout.splits:
        is_dedicated = not any(block.outer for block in strategy.blocks)
        refuse_stages_with_groups(zero, is_unequal=False, is_dedicated=is_dedicated)
    if zero == DROPS:
        refuse_v2(bool(values["offload.level"]), bool(layout.splits), len(layout.stages))
    return StepOptions(
        zero=zero,
        offload=bool(values["offload.level"]),
        scatters=scatters_gradients(zero, bool(config.communication.clip_after_allreduce)),
        checkpoint=str(values["gradient_checkpoint.type"]),
        end_taskgraph=int(values["gradient_checkpoint.end_taskgraph"]),
        budget=int(config.gradient_checkpoint.memory_budget),
        max_splits=int(config.communication.max_splits),
        communicators=int(config.communication.num_communicators),
        half=bool(config.communication.fp16),
        sparse_as_dense=bool(config.communication.sparse_as_dense),
        apply_groups=int(values["optimizer.num_apply_group"]),
        schedule=str(values["pipeline.strategy"]),
        scales=bool(config.amp.level) and config.amp.loss_scale != 1.0,
        checks=bool(config.amp.level) and config.amp.loss_scale == "dynamic",
        dtype=config.amp.dtype if config.amp.level else "float32",
    )


# ---- What the run says.


def _devices(step: PreparedStep, lowered: LoweredStep, run: SimulatedRun) -> List[PredictedDevices]:
    found = []
    computes: Dict[int, List[Tuple[float, float]]] = {}
    communicates: Dict[int, List[Tuple[float, float]]] = {}
    collectives: Dict[int, Dict[Tuple[str, str], int]] = {}  # of the device: how many, by decision and way
    for number, (op, told) in enumerate(zip(lowered.program.ops, lowered.ops)):
        if told.kind != LoweredKind.HOST_UPDATE:
            kind = computes if told.kind in COMPUTES else communicates
            kind.setdefault(op.device, []).append((run.starts[number], run.ends[number]))
        on_hosts = step.options.offload and told.collective == "all-gather"  # of weights, before they are copied
        if told.kind == LoweredKind.COLLECTIVE and not on_hosts:
            of_device = collectives.setdefault(op.device, {})
            key = told.decision, told.way
            of_device[key] = of_device.get(key, 0) + 1
    stages = len(step.layout.stages)
    for device in range(len(lowered.program.pools)):
        number, stage = divmod(device, stages)
        one = step.classes[number]
        busy = sum(end - start for start, end in computes.get(device, ()))
        exposed = _uncovered(communicates.get(device, []), computes.get(device, []))
        communicators = sum(
            _communicators(step.options, way, times) for (_, way), times in collectives.get(device, {}).items()
        )
        where = f"stage {stage}, " if stages > 1 else ""
        found.append(
            PredictedDevices(
                f"{where}{_ranks_in_words(one.ranks)} ({one.kinds[stage].name})",
                stage,
                one.ranks,
                tuple(step.layout.stages[stage][rank] for rank in one.ranks),
                one.kinds[stage].name,
                one.rows * step.layout.micro_batches,
                busy,
                exposed,
                max(0.0, run.seconds - busy - exposed),
                _memory(step, number, stage, lowered, run, communicators),
            )
        )
    return found


def _communicators(options: StepOptions, way: str, times: int) -> int:
    """How many so many collectives of a decision have: each write its own, batch norms and losses one for a way."""
    if way:
        return times if way == RowWay.WRITES else 1
    return min(options.communicators, times)


def _memory(
    step: PreparedStep, number: int, stage: int, lowered: LoweredStep, run: SimulatedRun, communicators: int
) -> PredictedMemory:
    peak = run.peaks[number * len(step.layout.stages) + stage]
    by_role = {role: size for role, size in step.plans.stages[number][stage].state.items() if size}
    for role, size in peak.by_role.items():
        if size:
            by_role[role] = by_role.get(role, 0) + size
    at = lowered.ops[peak.op].name if peak.op >= 0 else "all the time"
    kind = step.classes[number].kinds[stage]
    if kind.type == "GPU" and communicators:
        by_role[COMMUNICATION] = by_role.get(COMMUNICATION, 0) + communicators * NCCL_PACK_BYTES
    return PredictedMemory(sum(by_role.values()), by_role, peak.seconds, at, kind.memory)


def _uncovered(some: List[Tuple[float, float]], others: List[Tuple[float, float]]) -> float:
    """Seconds in which some intervals lie and no others; the others do not overlap each other."""
    total, now = 0.0, 0.0
    covers = sorted(others)
    at = 0
    for start, end in sorted(some):
        start = max(start, now)
        now = max(now, end)
        while at < len(covers) and covers[at][1] <= start:
            at += 1
        here = at
        while start < end:
            if here == len(covers) or covers[here][0] >= end:
                total += end - start
                break
            total += max(0.0, covers[here][0] - start)
            start = max(start, covers[here][1])
            here += 1
    return total


def _traffic(lowered: LoweredStep, run: SimulatedRun, num_stages: int) -> List[PredictedTraffic]:
    """By decision and collective; of the ops of several classes for the same, those of one class count."""
    of_class: Dict[Tuple[str, str, int, str], Dict[int, List[Tuple[int, LoweredOp]]]] = {}
    first_of = {op: ranks[0] for ranks in lowered.program.collectives for op in ranks}
    for number, told in enumerate(lowered.ops):
        if told.kind in COMMUNICATES and first_of.get(number, number) == number:
            # A collective has one op here, for all classes; a transfer has one in the devices of each.
            one = -1 if number in first_of else lowered.program.ops[number].device // num_stages
            same = of_class.setdefault((told.decision, told.collective, told.devices, told.way), {})
            same.setdefault(one, []).append((number, told))
    rows = []
    for (decision, collective, devices, way), same in of_class.items():
        members = max(same.values(), key=len)
        rows.append(
            PredictedTraffic(
                decision,
                collective,
                len(members),
                sum(told.bytes for _, told in members),
                sum(run.ends[number] - run.starts[number] for number, _ in members),
                devices,
                way,
            )
        )
    return rows


def _critical_path(lowered: LoweredStep, run: SimulatedRun) -> List[CriticalOp]:
    path = []
    for step in critical_path(lowered.program, run):
        told, op = lowered.ops[step.op], lowered.program.ops[step.op]
        path.append(CriticalOp(told.name, told.kind, op.device, step.reason, run.starts[step.op], run.ends[step.op]))
    return path


def _ranks_in_words(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    listed = ", ".join(map(str, ranks[:4]))
    return f"ranks {listed}" + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")


def _assumptions(step: PreparedStep, costs: ModelCosts, machine: Machine) -> List[str]:
    layout = step.layout
    found = ["devices are dealt out by the layout auto, in the order of the machine"]
    used = len({device for devices in layout.stages for device in devices})
    if used < machine.num_devices:
        found.append(f"the step uses {used} of the {machine.num_devices} devices of the machine")
    unlimited = sorted({kind.name for one in step.classes for kind in one.kinds if kind.memory is None})
    if unlimited:
        found.append(f"no memory limit is known of {', '.join(unlimited)}, so that everything fits there")
    shared = [cores for one in step.classes for cores in one.cores if cores is not None]
    if any(one.devices > 1 for one in shared):
        found.append(
            "devices of a worker that share cores and compute at the same time take so many times as long as one; "
            "collectives take none of the cores"
        )
    if any(one.workers > 1 for one in shared):
        found.append("the workers of a node have equal parts of its cores, also while others compute nothing")
    own = {device.name for device in machine.devices if device.type == "CPU" and device.shared_by == 1}
    if any(sum(name in own for name in node.devices) > 1 for node in machine.nodes):
        found.append(
            "each CPU device has cores of its own, as the machine says; shared_by: all lets those of a node share them"
        )
    if layout.ranks > 1:
        found.append(
            "all replicas send the same message at the same time and divide the bandwidth of a link that they share"
        )
        applied = "as their buckets come, without a norm of all"
        if step.options.checks:
            applied = "once all are reduced, as amp.loss_scale checks them"
        found.append(f"gradients are applied {applied}; buckets follow each other")
        found += [f"the collectives of {setting} are not counted" for setting in costs.uncounted]
        if costs.exchanges:
            found.append("collectives of rows and those of gradients do not slow each other down")
        if any(one.collective == "all-gather" and one.way == RowWay.FORWARD for one in costs.exchanges):
            found.append("ops that take the gathered rows of all replicas take as long as for those of one")
    if len(layout.stages) > 1:
        found.append("transfers between stages and reductions of gradients do not slow each other down")
    if layout.splits:
        found.append("the ranks of a split compute nothing while they exchange its tensors")
        if len(layout.stages) > 1:
            found.append("exchanges of a split in different stages do not slow each other down")
    if step.options.zero:
        found.append("each variable in shards divides evenly; the smallest, together up to 2% of the bytes, stay whole")
    if step.options.offload:
        found.append(host_memory.describe())
        if step.options.zero:
            found.append(host_memory.describe_gathers())
    found.append("an update reads the gradient, and reads and writes the variable and its slots")
    return found + list(costs.notes)
