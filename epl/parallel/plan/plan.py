"""The plan: an immutable value that can be printed, hashed and compared between processes."""

import hashlib
import re
from typing import List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from epl.parallel.plan import values
from epl.parallel.plan.sections import (
    BatchNormSection,
    PartitionSection,
    RecomputeSection,
    Section,
    SplitSection,
    WholeBatchSection,
)

_Section = TypeVar("_Section")
_WITH_NAMES = (PartitionSection, SplitSection, RecomputeSection, BatchNormSection, WholeBatchSection)  # of ops
_TASK = re.compile(r"/task:(\d+)/")


class Stage(NamedTuple):
    """TaskGraphs that run together, on one device of each model replica.

    Attributes:
      taskgraphs: the indices of the TaskGraphs.
      strategy: the annotation, for messages.
      devices: by replica, the name of the device in the job.
    """

    taskgraphs: Tuple[int, ...]
    strategy: str
    devices: Tuple[str, ...]


class BatchPart(NamedTuple):
    """Which rows of a batch a replica has.

    Attributes:
      reader: rank of the replica that reads the batch; its own rank, or that of another one of the same process.
      index, parts: the replica has the rows of part `index` of `parts`.
    """

    reader: int
    index: int  # type: ignore[assignment]  # hides a method of tuple
    parts: int


class Reduction(NamedTuple):
    """One gradient to be aggregated over all replicas.

    Attributes:
      variable: name of the variable's op.
      dtype: name of the gradient's dtype.
      shape: static shape, with None for unknown entries; None if the rank is unknown.
      sparse: an IndexedSlices, gathered rather than summed.
      ordered: rows of a sparse one are summed by index after that, in the order of the ranks.
    """

    variable: str
    dtype: str
    shape: Optional[Tuple[Optional[int], ...]]
    sparse: bool
    ordered: bool = False


class Transfer(NamedTuple):
    """One collective: a bucket of dense gradients, or one sparse gradient.

    Attributes:
      communicator: its name; transfers of one communicator run in their order in the plan.
      key: names the collective, the same on every rank.
      members: indices into the group's reductions.
      scattered: whether it is a reduce-scatter: each rank gets its shards (ZeRO); otherwise each gets all.
    """

    communicator: str
    key: str
    members: Tuple[int, ...]
    scattered: bool


class GradientGroup(NamedTuple):
    """The gradients of one apply_gradients call for the variables of one stage.

    They are aggregated together, in the order of readiness: over all ranks, or (`of_shards`) over the ranks that hold
    the same shard, one in each group of a split; without transfers if there is only one group.
    """

    name: str
    stage: int
    of_shards: bool
    reductions: Tuple[Reduction, ...]
    transfers: Tuple[Transfer, ...]


class Output(NamedTuple):
    """A tensor whose fetched value is merged.

    Attributes:
      tensor: its name.
      stage: the stage that computes it.
      scope: "global" (all replicas) or "local" (those of one process).
      merge: "concat", "mean" or "sum".
      communicator: the communicator of a global output, else "".
    """

    tensor: str
    stage: int
    scope: str
    merge: str
    communicator: str


class Plan(NamedTuple):
    """The replicas of a model, the devices and the schedule of their stages, and their communication.

    Attributes:
      name: prefix of the communicators.
      workers, device_type: number of processes of the job, and the type of their devices.
      stages: the stages of the model; one, unless it is a pipeline.
      owners: by replica (its rank), the process that builds and runs it; ascending.
      row_shares: by rank, the proportions of the replicas' rows; () if all have as many (`auto.balance`).
      batch_rows: with row_shares, what is shared out in place of the batch sizes of the input pipeline: rows of all
        replicas, by batch size in the order of the graph; () if no batch size changes.
      batch_parts: by rank, the rows of a batch that it has; () if each replica reads its own batches.
      num_micro_batch: micro batches of one step of a pipeline; 1 with one stage.
      schedule: text form of the Schedule of a pipeline; "" with one stage.
      reduce_method: "mean" or "sum" over the micro batches and replicas.
      fp16_scale: gradients are sent as float16 after multiplication by it; None: sent as they are.
      features: the decisions of the features in use, one section each.
      groups, outputs: the groups of gradients, and the merged outputs.
    """

    name: str
    workers: int
    device_type: str
    stages: Tuple[Stage, ...]
    owners: Tuple[int, ...]
    row_shares: Tuple[int, ...]
    batch_rows: Tuple[int, ...]
    batch_parts: Tuple[BatchPart, ...]
    num_micro_batch: int
    schedule: str
    reduce_method: str
    fp16_scale: Optional[int]
    features: Tuple[Section, ...]
    groups: Tuple[GradientGroup, ...]
    outputs: Tuple[Output, ...]


def world_size(plan: Plan) -> int:
    """Number of replicas of the plan."""
    return len(plan.owners)


def ranks_of(plan: Plan, worker: int) -> List[int]:
    """The replicas that a process builds and runs."""
    return [rank for rank, owner in enumerate(plan.owners) if owner == worker]


def worker_of(device: str) -> int:
    """The process of a device of the job."""
    return int(_TASK.search(device).group(1))  # type: ignore[union-attr]  # devices of a Stage name their task


def host_of_device(device: str) -> str:
    """The first CPU device of the process of a device of the job."""
    return f"/job:worker/replica:0/task:{worker_of(device)}/device:CPU:0"


def section(plan: Plan, kind: Type[_Section]) -> Optional[_Section]:
    """A feature's section of the plan, by its class; None if the feature is not in use."""
    return next((one for one in plan.features if isinstance(one, kind)), None)


def split_groups(plan: Plan) -> Tuple[Tuple[int, ...], ...]:
    """The ranks that compute one replica together, by group; () if each rank is a replica by itself."""
    split = section(plan, SplitSection)
    return () if split is None else split.groups


def renamed(plan: Plan, name: str) -> Plan:
    """The plan with another name, which the names of its communicators then begin with."""

    def moved(communicator: str) -> str:
        is_own = communicator.startswith(plan.name + "/")
        return name + communicator[len(plan.name) :] if is_own else communicator

    groups = [
        group._replace(transfers=tuple(one._replace(communicator=moved(one.communicator)) for one in group.transfers))
        for group in plan.groups
    ]
    outputs = [output._replace(communicator=moved(output.communicator)) for output in plan.outputs]
    return plan._replace(name=name, groups=tuple(groups), outputs=tuple(outputs))


def to_json(plan: Plan) -> str:
    """The plan as text; `from_json` reads it."""
    return values.to_json(plan)


def from_json(text: str) -> Plan:
    """The plan that `to_json` wrote.

    Raises:
      ValueError: the text is not from `to_json`.
    """
    plan: Plan = values.from_json(Plan, text)
    return plan


def plan_hash(plan: Plan) -> str:
    """A hash of a plan, equal for equal plans only."""
    return hashlib.sha256(to_json(plan).encode()).hexdigest()


def compared(plan: Plan) -> Plan:
    """The plan without names of ops, which may differ between processes: a summary of one worker shifts them."""
    sections = tuple(one.without_names() if isinstance(one, _WITH_NAMES) else one for one in plan.features)
    return plan._replace(features=sections)


def first_difference(mine: Plan, other: Plan) -> Optional[str]:
    """The first place in which two plans differ, in words, or None: variables by name, then the rest."""
    for group, other_group in zip(mine.groups, other.groups):
        here = {reduction.variable: reduction for reduction in group.reductions}
        there = {reduction.variable: reduction for reduction in other_group.reductions}
        for variable in sorted(set(here) | set(there)):
            if variable not in there or variable not in here:
                return "variable {!r} is trained {}".format(
                    variable, "here alone" if variable in here else "there alone"
                )
            if here[variable] != there[variable]:
                return "the gradient of variable {!r} is {} here and {} there".format(
                    variable, _describe_reduction(here[variable]), _describe_reduction(there[variable])
                )
    return values.first_difference("plan", mine, other)


def _describe_reduction(reduction: Reduction) -> str:
    shape = "of unknown shape" if reduction.shape is None else list(reduction.shape)
    return "{}{} {}".format("sparse " if reduction.sparse else "", reduction.dtype, shape)


def _describe_transfers(group: GradientGroup) -> str:
    if not group.transfers:
        return "of parts, which each rank has alone"
    return "in {} transfer(s){}".format(len(group.transfers), " between groups" if group.of_shards else "")


def describe(plan: Plan) -> str:
    """The plan in a few lines, for people."""
    first = "{}: {} over {} worker(s) = {} replica(s) of {} stage(s) on {}, gradients by {}{}".format(
        plan.name,
        plan.stages[0].strategy,
        plan.workers,
        world_size(plan),
        len(plan.stages),
        plan.device_type,
        plan.reduce_method,
        "" if plan.fp16_scale is None else f" as float16 x {plan.fp16_scale}",
    )
    parts = (describe_batches(plan), _describe_stages(plan), describe_features(plan), describe_gradients(plan))
    return "\n".join([first] + ["  " + line for part in parts for line in part])


def proportions(shares: Sequence[int]) -> str:
    """Proportions as the configuration writes them: "5:3:1"."""
    return ":".join(map(str, shares))


def describe_batches(plan: Plan) -> List[str]:
    """Which rows the replicas have, and which ranks divide a batch, in lines for a person."""
    lines = []
    if plan.row_shares:
        lines.append(f"rows of the replicas in the proportions {proportions(plan.row_shares)}")
    lines += [f"a batch size of the input pipeline stands for {rows} rows of all replicas" for rows in plan.batch_rows]
    for reader in sorted({part.reader for part in plan.batch_parts}):
        ranks = [rank for rank, part in enumerate(plan.batch_parts) if part.reader == reader]
        if len(ranks) > 1:
            lines.append("ranks {} divide the batch that rank {} reads".format(", ".join(map(str, ranks)), reader))
    return lines


def _describe_stages(plan: Plan) -> List[str]:
    if len(plan.stages) == 1:
        return []
    stages = [
        "stage {}: {} on {}".format(number, stage.strategy, ", ".join(stage.devices))
        for number, stage in enumerate(plan.stages)
    ]
    return stages + plan.schedule.splitlines()


def describe_features(plan: Plan) -> List[str]:
    """The decisions of the features in use, in lines for a person."""
    return [line for one in plan.features for line in one.describe()]


def describe_gradients(plan: Plan) -> List[str]:
    """The groups of gradients and the merged outputs, in lines for a person."""
    lines = [
        "{}: {} gradients ({} sparse{}) {}".format(
            group.name,
            len(group.reductions),
            sum(one.sparse for one in group.reductions),
            ", summed by index in a fixed order" if any(one.ordered for one in group.reductions) else "",
            _describe_transfers(group),
        )
        for group in plan.groups
    ]
    return lines + [f"output {output.tensor}: {output.scope} {output.merge}" for output in plan.outputs]
