"""The sections of the plan: one NamedTuple for each feature of training that is in use.

A section holds the decisions of a feature, before they change the graph. It has the names of ops and variables, and no
object of TensorFlow, so a plan can be written as text, compared between processes, and read again.
"""

from typing import Dict, List, NamedTuple, Tuple, Union

_NAMED = 3  # ops of a kind that a description names; the others are only counted


class StageRun(NamedTuple):
    """Consecutive ops, in creation order, of one stage.

    Attributes:
      op: name of the first op.
      stage: the stage.
    """

    op: str
    stage: int


class PartitionSection(NamedTuple):
    """Stages that were found automatically: `auto.auto_parallel`.

    Attributes:
      policy: the method that found them, in words.
      stages: number of stages.
      runs: the ops that the objective needs, in creation order; a run ends where the next one begins.
    """

    policy: str
    stages: int
    runs: Tuple[StageRun, ...]

    def without_names(self) -> "PartitionSection":
        """The same with numbers in place of names of ops."""
        runs = tuple(run._replace(op=str(number)) for number, run in enumerate(self.runs))
        return self._replace(runs=runs)

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        firsts = {run.stage: run.op for run in reversed(self.runs)}
        begin = ", ".join(firsts[stage] for stage in sorted(firsts))
        return [f"{self.stages} stages found automatically ({self.policy}), which begin with {begin}"]


class ShardedVariable(NamedTuple):
    """The placement of a variable on the ranks of its group.

    Attributes:
      variable: name of its op.
      bytes: size of the full variable.
      dim: the dimension that is cut; -1: every rank holds the full variable.
      sizes: sizes of the shards along that dimension, by rank.
    """

    variable: str
    bytes: int
    dim: int
    sizes: Tuple[int, ...]


COLLECTIVES_INSIDE = ("all-reduce", "all-gather", "all-to-all")


class InsideExchange(NamedTuple):
    """A collective inside an op that is computed on shards, such as that of the maximum of a softmax.

    Attributes:
      collective: one of COLLECTIVES_INSIDE.
      is_backward: whether it is of the backward pass.
      share: the bytes that its cost is computed with, as a multiple of those of the op's first output in full.
      held: those of the tensor that each rank has after it, likewise.
    """

    collective: str
    is_backward: bool
    share: float
    held: float


class OpChoice(NamedTuple):
    """An op of a split that is computed on shards, or whose placements are given.

    Attributes:
      op: its name.
      inputs, outputs: their placements: "full", "partial", "shard(dim)" or "shard(dim: size+size)".
      given: whether the annotation of the scope gives them.
      inside: the collectives of the op itself.
    """

    op: str
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    given: bool = False
    inside: Tuple[InsideExchange, ...] = ()

    def text(self) -> str:
        """The placements as text: "full, shard(1) -> shard(1)"."""
        return "{} -> {}".format(", ".join(self.inputs), ", ".join(self.outputs))


class SplitRatios(NamedTuple):
    """The relative sizes of the shards of a split TaskGraph.

    Attributes:
      taskgraph: its index.
      ratios: by rank of a group, 0 for empty shards; () if they are as equal as possible.
      scope: its annotation.
    """

    taskgraph: int
    ratios: Tuple[int, ...]
    scope: str = ""

    def __str__(self) -> str:
        return ":".join(map(str, self.ratios)) or "equal"


class SplitSection(NamedTuple):
    """Tensor parallelism: `epl.split`.

    Attributes:
      groups: the ranks of each group.
      ratios: of each split TaskGraph; () if the shards of all are as equal as possible.
      ops: the ops that are computed on shards, and those with given placements; every rank computes the others in full.
      variables: the variables of the split.
    """

    groups: Tuple[Tuple[int, ...], ...]
    ratios: Tuple[SplitRatios, ...]
    ops: Tuple[OpChoice, ...]
    variables: Tuple[ShardedVariable, ...]

    def without_names(self) -> "SplitSection":
        """The same with numbers in place of names of ops."""
        return self._replace(ops=tuple(one._replace(op=str(number)) for number, one in enumerate(self.ops)))

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        groups = " | ".join(", ".join(map(str, ranks)) for ranks in self.groups)
        told = sorted({str(one) for one in self.ratios})
        if len(told) > 1:
            told = [f"{one} in TaskGraph {one.taskgraph}" for one in self.ratios]
        ratios = "".join(f", {one}" for one in told)
        lines = [
            f"split over {len(self.groups[0])} devices in {len(self.groups)} group(s){ratios}: ranks {groups}",
        ]
        alike: Dict[str, List[str]] = {}
        for choice in self.ops:
            inputs, outputs = (", ".join(map(_without_sizes, some)) for some in (choice.inputs, choice.outputs))
            alike.setdefault(f"{inputs} -> {outputs}{' (given)' if choice.given else ''}", []).append(choice.op)
        for placements, ops in alike.items():
            more = f" and {len(ops) - _NAMED} more" if len(ops) > _NAMED else ""
            lines.append("  {}: {}{}".format(placements, ", ".join(ops[:_NAMED]), more))
        lines += [f"  TaskGraph {one.taskgraph}, {one}: {one.scope}" for one in self.ratios if 0 in one.ratios]
        if any(0 in one.ratios for one in self.ratios):
            size = [sum(_bytes_on(one, rank) for one in self.variables) for rank in range(len(self.groups[0]))]
            lines.append("  variables on the ranks of a group: " + ", ".join(f"{one / 1e6:.3f} MB" for one in size))
        return lines


def _bytes_on(variable: ShardedVariable, rank: int) -> float:
    """The bytes of a variable that are on a rank of its group."""
    return variable.bytes * variable.sizes[rank] / sum(variable.sizes) if variable.sizes else variable.bytes


class AmpSection(NamedTuple):
    """Mixed precision: `amp.level`.

    Attributes:
      dtype: the half type.
      loss_scale: "dynamic", or the number.
      ops, digest: number of ops in the half type, and a digest of their op types, in order.
    """

    dtype: str
    loss_scale: str
    ops: int
    digest: str

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        return [f"mixed precision: {self.dtype}, loss scale {self.loss_scale}, {self.ops} ops"]


class ZeroSection(NamedTuple):
    """Shards of weights and optimizer state: `zero.level`.

    Attributes:
      level: "v0", "v1" or "v2".
      stages: number of stages of the model.
      variables: the trained variables, in the order of the decisions.
    """

    level: str
    stages: int
    variables: Tuple[ShardedVariable, ...]

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        shards = [one for one in self.variables if one.sizes]
        in_full = sum(one.bytes for one in self.variables if not one.sizes)
        ranks = len(shards[0].sizes) if shards else 1
        largest = max(
            in_full + sum(one.bytes * one.sizes[rank] / (sum(one.sizes) or 1) for one in shards)
            for rank in range(ranks)
        )
        return [
            "ZeRO {}: {} of {} trained variables in parts, {:.3f} of {:.3f} MB on {}, and as much of each slot".format(
                self.level,
                len(shards),
                len(self.variables),
                largest / 1e6,
                sum(one.bytes for one in self.variables) / 1e6,
                "a rank" if self.stages == 1 else f"the {self.stages} stages of a replica",
            )
        ]


class AccumulationSection(NamedTuple):
    """Gradient accumulation over several runs: `pipeline.num_micro_batch` with one stage.

    Attributes:
      steps: runs of one training step.
    """

    steps: int

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        return [f"gradients added up over {self.steps} runs"]


class Recomputed(NamedTuple):
    """A recomputed segment: ops of the forward pass that the backward pass computes a second time, together.

    Attributes:
      objective: names of the tensors that are differentiated.
      stage, segment: the stage, and the number of the segment in it.
      ops: number of ops.
      first, last: names of the first and the last op, in creation order.
      digest: digest of the names of all ops.
    """

    objective: str
    stage: int
    segment: int
    ops: int
    first: str
    last: str
    digest: str


class StageDivision(NamedTuple):
    """Where the segments of a stage begin, among its ops that may be recomputed.

    Attributes:
      call: number of the call of tf.gradients, among those that train.
      objective: names of the tensors that it differentiates.
      stage: the stage.
      starts: the first op of each segment but the first, in the order of the forward pass.
      whole: numbers of the segments that are kept, not recomputed.
    """

    call: int
    objective: str
    stage: int
    starts: Tuple[str, ...]
    whole: Tuple[int, ...]


class RecomputeSection(NamedTuple):
    """Recomputation of activations: `gradient_checkpoint.type`.

    Attributes:
      divisions: where EPL lets segments begin ("auto").
      segments: the recomputed segments.
    """

    divisions: Tuple[StageDivision, ...]
    segments: Tuple[Recomputed, ...]

    def without_names(self) -> "RecomputeSection":
        """The same with numbers in place of names of ops."""
        divisions = [
            one._replace(objective="", starts=tuple(map(str, range(len(one.starts))))) for one in self.divisions
        ]
        segments = [one._replace(objective="", first="", last="", digest="") for one in self.segments]
        return self._replace(divisions=tuple(divisions), segments=tuple(segments))

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        return [
            f"recomputed for {one.objective}: stage {one.stage} segment {one.segment}: {one.ops} ops, "
            f"{one.first} to {one.last}"
            for one in self.segments
        ]


class Offloaded(NamedTuple):
    """The variables of a stage in host memory, for each model replica.

    Attributes:
      stage: the stage.
      variables, bytes: number of variables, including slots of optimizers, and their size.
    """

    stage: int
    variables: int
    bytes: int


class OffloadSection(NamedTuple):
    """Weights in host memory: `offload.level`.

    Attributes:
      stages: the variables that each stage keeps there.
    """

    stages: Tuple[Offloaded, ...]

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        return [
            f"in host memory: {one.variables} variables of stage {one.stage}, {one.bytes / 1e6:.1f} MB that its "
            "device need not hold"
            for one in self.stages
        ]


class GroupedApplySection(NamedTuple):
    """Updates of variables that run group by group: `optimizer.num_apply_group`.

    Attributes:
      groups: number of groups.
    """

    groups: int

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        return [f"updates in {self.groups} groups"]


class BatchNormSection(NamedTuple):
    """Batch statistics of all rows: `batch_norm.sync`.

    Attributes:
      ops: the names of the ops that hold sums over the rows of a batch, in the order in which they run.
      stages: those that have such ops.
    """

    ops: Tuple[str, ...]
    stages: Tuple[int, ...]

    def without_names(self) -> "BatchNormSection":
        """The same with numbers in place of names of ops."""
        return self._replace(ops=tuple(str(number) for number in range(len(self.ops))))

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        return [f"batch statistics of all rows: {len(self.ops)} ops"]


class WholeBatchSection(NamedTuple):
    """A loss of the rows of all replicas: `replicate.batch`.

    Attributes:
      ops: the names of the ops that hold what is added up or gathered, in the order in which they run.
      gathers: how many of them hold rows.
      stages: those that have such ops.
    """

    ops: Tuple[str, ...]
    gathers: int
    stages: Tuple[int, ...]

    def without_names(self) -> "WholeBatchSection":
        """The same with numbers in place of names of ops."""
        return self._replace(ops=tuple(str(number) for number in range(len(self.ops))))

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        sums = len(self.ops) - self.gathers
        return [f"losses of all rows: {sums} sums over the replicas, {self.gathers} gathers of rows"]


class HierarchySection(NamedTuple):
    """Collectives between machines with several workers each: `communication.hierarchy`.

    Attributes:
      hierarchical: whether each byte goes between two machines once; otherwise once for each worker.
      workers: the workers of each machine, in the order of their first workers.
      reason: why, in words.
    """

    hierarchical: bool
    workers: Tuple[int, ...]
    reason: str

    def describe(self) -> List[str]:
        """The section in lines for a person."""
        algorithm = "hierarchical" if self.hierarchical else "flat"
        numbers = sorted(set(self.workers))
        workers = "{}".format(numbers[0]) if len(numbers) == 1 else "{} to {}".format(numbers[0], numbers[-1])
        return [f"collectives between {len(self.workers)} machines of {workers} workers are {algorithm}: {self.reason}"]


Section = Union[
    PartitionSection,
    SplitSection,
    ZeroSection,
    AmpSection,
    AccumulationSection,
    RecomputeSection,
    OffloadSection,
    GroupedApplySection,
    BatchNormSection,
    WholeBatchSection,
    HierarchySection,
]


def _without_sizes(placement: str) -> str:
    """A placement as text, "shard(1: 4+4)", without the sizes of the shards."""
    head, colon, _ = placement.partition(":")
    return head + ")" if colon else placement
