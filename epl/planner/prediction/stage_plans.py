"""What each class of ranks does in each stage: the ops, as arrays, and where they are cut into pieces.

    cuts of a stage    forward    exchanges of a split, or of rows; uses of gathered weights
                       backward   the same exchanges, segments of recomputation, a few more to follow the memory
                       last       the same, and where a bucket of gradients is complete

The cuts are the same for all classes, as their collectives are.
"""

from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ops.compression import compressible
from epl.parallel.costs.op_times import OpTimes
from epl.parallel.costs.ops import OpCost
from epl.parallel.plan.strategy import Strategy
from epl.parallel.plan.zero_decisions import DROPS
from epl.planner.machine.machine import Device
from epl.planner.machine.op_kinds import Kind
from epl.planner.prediction import gradients
from epl.planner.prediction.facts import ModelFacts, StageOps
from epl.planner.prediction.gradients import GradientBucket, StageVariable, WeightGather
from epl.planner.prediction.host_memory import HOST
from epl.planner.prediction.layout import StrategyLayout
from epl.planner.prediction.rank_classes import RankClass
from epl.planner.prediction.recomputation import COLLECTION, StageRecomputation, divide_at_checkpoints, divide_stage
from epl.planner.prediction.split_work import SplitWork
from epl.planner.prediction.stage_work import StageWork, even_cuts
from epl.planner.simulator.model_costs import ModelCosts, OpCosts, RowExchange, RowWay

_SLICES = 8  # pieces by bytes, so that the backward pass frees and makes tensors in turn
_MOST_PIECES = 8_000  # of all stages and micro batches; with more the memory is followed less closely
_BYTES_OF_ELEMENT = 4
_ADDING = frozenset("Add AddN AddV2 BiasAdd BiasAddV1 Sub".split())  # their backward pass reads none of their inputs
_FLOPS_OF_UPDATE = 2.0  # of each element of a variable, and of each slot of it: a product and a sum


class StageCuts(NamedTuple):
    """What is the same for all classes in a stage; positions are those of the ops of the stage.

    Attributes:
      ops: their numbers in the forward pass.
      buckets: of gradients.
      gathers: of weights, or copies of them from the host.
      host_gathers: of weights in the memory of the hosts, before they are copied: offload with ZeRO.
      segments: positions where segments of recomputation begin.
      forward, gathering: cuts of a forward pass, and of one that gathers weights.
      backward, last: cuts of a backward pass, and of that of the last micro batch.
    """

    ops: Tuple[int, ...]
    buckets: Tuple[GradientBucket, ...]
    gathers: Tuple[WeightGather, ...]
    host_gathers: Tuple[WeightGather, ...]
    segments: Tuple[int, ...]
    forward: FrozenSet[int]
    gathering: FrozenSet[int]
    backward: FrozenSet[int]
    last: FrozenSet[int]


class ClassStage(NamedTuple):
    """A stage as a class of ranks has it.

    Attributes:
      work: the ops.
      variables: the trained ones, in the order of those of the cuts.
      state: role -> bytes that stay from step to step.
      updates: seconds of the update of each variable.
    """

    work: StageWork
    variables: Tuple[StageVariable, ...]
    state: Mapping[str, int]
    updates: Tuple[float, ...]


class StagePlans(NamedTuple):
    """All stages.

    Attributes:
      cuts: by stage.
      stages: by class and stage.
    """

    cuts: Tuple[StageCuts, ...]
    stages: Tuple[Tuple[ClassStage, ...], ...]


class StepOptions(NamedTuple):
    """Values of configuration keys.

    Attributes:
      zero: `zero.level`, "" where it has no effect.
      offload: whether weights are in the memory of the host.
      scatters: whether gradients are reduced to shards.
      checkpoint: `gradient_checkpoint.type`.
      end_taskgraph: the last block that is; -1 for all.
      budget: `gradient_checkpoint.memory_budget`.
      max_splits, communicators: `communication.max_splits`, `communication.num_communicators`.
      half: `communication.fp16`.
      sparse_as_dense: `communication.sparse_as_dense`.
      apply_groups: `optimizer.num_apply_group`.
      schedule: `pipeline.strategy`.
      scales: whether gradients are divided by a loss scale.
      checks: whether updates wait until all gradients are found to be finite.
      dtype: name of the one in which contractions compute.
    """

    zero: str
    offload: bool
    scatters: bool
    checkpoint: str
    end_taskgraph: int
    budget: int
    max_splits: int
    communicators: int
    half: bool
    sparse_as_dense: bool
    apply_groups: int
    schedule: str
    scales: bool
    checks: bool
    dtype: str = "float32"

    @property
    def drops(self) -> bool:
        """Whether weights come in blocks, are dropped after their use, and come again for the backward pass."""
        return self.offload or self.zero == DROPS


def plan_stages_of_classes(
    strategy: Strategy,
    facts: ModelFacts,
    costs: ModelCosts,
    layout: StrategyLayout,
    classes: Sequence[RankClass],
    split: Optional[SplitWork],
    options: StepOptions,
) -> StagePlans:
    """What each class does in each stage.

    Raises:
      PlanError: a stage needs more than `gradient_checkpoint.memory_budget`.
    """
    maker = _Maker(strategy, facts, costs, layout, split, options)
    found = [maker.plan(stage, classes) for stage in range(len(layout.stages))]
    return StagePlans(tuple(cuts for cuts, _ in found), tuple(zip(*[stages for _, stages in found])))


class _Maker:
    """Makes the plans of all stages."""

    def __init__(
        self,
        strategy: Strategy,
        facts: ModelFacts,
        costs: ModelCosts,
        layout: StrategyLayout,
        split: Optional[SplitWork],
        options: StepOptions,
    ) -> None:
        self._strategy, self._facts, self._costs = strategy, facts, costs
        self._layout, self._split, self._options = layout, split, options
        self._arrays: Dict[Tuple[int, str], Dict[str, np.ndarray]] = {}
        self._in_parts = self._variables_in_parts()

    def plan(self, stage: int, classes: Sequence[RankClass]) -> Tuple[StageCuts, Tuple[ClassStage, ...]]:
        """The cuts of a stage, and what each class does in it."""
        ops = self._facts.stages[stage]
        variables = [self._variables(stage, one, ops.position) for one in classes]
        largest = [_largest(of_all) for of_all in zip(*variables)]
        recomputation = self._recomputation(stage, ops, classes[0])
        works = [self._work(stage, ops, one, recomputation, own) for one, own in zip(classes, variables)]
        cuts = self._cuts(ops, largest, recomputation, works[0])
        stages = tuple(
            ClassStage(work, own, self._state(stage, one, own), self._updates(one.kinds[stage], own))
            for one, work, own in zip(classes, works, variables)
        )
        return cuts, stages

    def _variables_in_parts(self) -> FrozenSet[int]:
        """The variables that ZeRO cuts."""
        found: Set[int] = set()
        if self._options.zero:
            of_split = {op for op, shares in self._sharded().items() if set(shares) != {1.0}}
            for stage in range(len(self._layout.stages)):
                own = [one for one in self._facts.variables if self._facts.stage_of[one.op] == stage]
                cut = [one for one in own if one.op not in of_split]
                dense = self._options.sparse_as_dense
                found |= gradients.variables_in_parts(self._facts.ops, cut, self._layout.ranks, dense)
        return frozenset(found)

    def _sharded(self) -> Mapping[int, Tuple[float, ...]]:
        return {} if self._split is None else self._split.variables

    def _variables(self, stage: int, one: RankClass, position: Mapping[int, int]) -> Tuple[StageVariable, ...]:
        found = []
        for variable in self._facts.variables:
            if self._facts.stage_of[variable.op] != stage:
                continue
            shares = self._sharded().get(variable.op, (1.0,))
            of_split = set(shares) != {1.0}
            share = shares[one.place % len(shares)]
            rows = one.group_rows if of_split else one.rows
            indices, values = [sum(self._costs.tensor_bytes(rows, *one[at]) for one in variable.rows) for at in (0, 1)]
            looked_up = indices + values
            uses = tuple(position[use] for use in variable.uses)
            is_sparse = gradients.has_sparse_gradient(variable, self._options.sparse_as_dense)
            if not is_sparse:
                indices, values = 0.0, variable.bytes * share
            in_half = self._options.half and compressible(tf.as_dtype(variable.dtype))
            factor = tf.float16.size / tf.as_dtype(variable.dtype).size if in_half else 1.0
            found.append(
                StageVariable(
                    op=variable.op,
                    bytes=variable.bytes * share,
                    gradient_bytes=indices + values,
                    sent_bytes=indices + factor * values,
                    dtype=variable.dtype,
                    complete=min(uses, default=0),
                    uses=uses,
                    is_sparse=is_sparse,
                    of_split=of_split,
                    in_parts=variable.op in self._in_parts,
                    copied_bytes=looked_up if variable.rows else variable.bytes * share,
                    is_read_again=not variable.rows and any(map(self._reads_again, variable.uses)),
                )
            )
        return tuple(found)

    def _reads_again(self, use: int) -> bool:
        """Whether the backward pass of an op reads a weight that it takes: for the gradient of its other input."""
        op = self._facts.ops[use]
        data = [producer for producer, _ in op.inputs if self._facts.from_data[producer]]
        return op.type not in _ADDING and any(self._facts.has_gradient[producer] for producer in data)

    def _costs_of(self, rows: int, kind: Device) -> Dict[str, np.ndarray]:
        key = rows, kind.name
        if key not in self._arrays:
            costs = self._costs.at(rows, kind)
            names = [name for name in OpCosts._fields if name != "basis"]
            self._arrays[key] = {name: np.asarray(getattr(costs, name), float) for name in names}
        return self._arrays[key]

    def _shared(self, one: RankClass, kind: Device, name: str, ops: StageOps) -> np.ndarray:
        """A cost of the ops of a stage for the rows of a rank, or its share of those of its group."""
        own = self._costs_of(one.rows, kind)[name]
        if self._split is not None:
            share = self._split.held if name.endswith("bytes") else self._split.work
            group = self._costs_of(one.group_rows, kind)[name] * share[one.place]
            own = np.where(self._split.of_group, group, own)
        return own[ops.index]

    def _recomputation(self, stage: int, ops: StageOps, one: RankClass) -> StageRecomputation:
        options, facts = self._options, self._facts
        none = np.zeros(len(ops.ops), bool)
        by_script = options.checkpoint == COLLECTION
        if not options.checkpoint or (by_script and not any(op.is_checkpoint for op in facts.ops)):
            return StageRecomputation((), none, none)
        may_all = options.end_taskgraph < 0 or by_script
        may = np.asarray(
            [
                facts.ops[op].is_repeatable and (may_all or self._strategy.ops[op].block <= options.end_taskgraph)
                for op in ops.ops
            ],
            bool,
        )
        is_last_stage = stage == len(self._layout.stages) - 1
        kept = self._shared(one, one.kinds[stage], "kept_bytes", ops)
        if by_script:
            checkpoints = np.asarray([facts.ops[op].is_checkpoint for op in ops.ops], bool)
            return divide_at_checkpoints(may, kept, ops.producers, ops.memory, checkpoints, ops.leaves, is_last_stage)
        return divide_stage(
            may,
            self._shared(one, one.kinds[stage], "output_bytes", ops),
            kept,
            self._shared(one, one.kinds[stage], "forward_flops", ops),
            ops.last_use,
            ops.producers,
            ops.leaves,
            is_last_stage,
            options.budget,
        )

    def _work(
        self,
        stage: int,
        ops: StageOps,
        one: RankClass,
        recomputation: StageRecomputation,
        variables: Sequence[StageVariable],
    ) -> StageWork:
        kind = one.kinds[stage]
        backward = self._shared(one, kind, "backward", ops)
        if self._options.scales:
            for variable in variables:
                backward[variable.complete] += _elementwise(kind, variable.gradient_bytes, 2.0)
        outputs = self._shared(one, kind, "output_bytes", ops)
        kept = np.minimum(self._shared(one, kind, "kept_bytes", ops), outputs)
        again, freed = recomputation.recomputed, recomputation.freed
        taken_again = np.zeros(len(ops.ops), bool)
        taken = [producer for at in np.flatnonzero(again) for producer in ops.producers[at]]
        taken_again[taken] = taken_again[ops.memory[taken]] = True
        return StageWork(
            threads=kind.threads,
            producers=ops.producers,
            once=~ops.from_data,
            forward=self._shared(one, kind, "forward", ops),
            backward=backward,
            outputs=outputs,
            kept=np.where(freed, 0.0, np.where(taken_again, outputs, kept)),
            again=np.where(freed, kept, 0.0),
            recomputed=again,
            gradients=np.where(ops.has_gradient, outputs, 0.0),
            last=ops.last_use,
        )

    def _cuts(
        self,
        ops: StageOps,
        variables: Sequence[StageVariable],
        recomputation: StageRecomputation,
        work: StageWork,
    ) -> StageCuts:
        options = self._options
        buckets = gradients.plan_gradients(variables, options.scatters, options.max_splits)
        again = frozenset(np.flatnonzero(recomputation.recomputed).tolist())
        gathers = gradients.plan_gathers(variables, options.zero, again) if options.zero else []
        host_gathers: Sequence[WeightGather] = ()
        if options.offload:
            gathers, host_gathers = gradients.plan_copies(variables, again), gathers
        of_rows = self._costs.exchanges if self._layout.ranks > 1 else ()
        exchanges = {ops.position[op] for op in _exchanging(self._split, of_rows) if op in ops.position}
        complete = np.zeros(len(ops.ops))
        for one in variables:
            complete[one.complete] += one.gradient_bytes
        runs = len(self._layout.stages) * self._layout.micro_batches
        slices = even_cuts(work.kept + work.again + complete, max(1, min(_SLICES, _MOST_PIECES // runs)))
        first_uses = {one.first for one in gathers}
        drops = first_uses if options.drops else set()
        backward = exchanges | set(recomputation.starts) | set(slices) | drops
        return StageCuts(
            ops.ops,
            tuple(buckets),
            tuple(gathers),
            tuple(host_gathers),
            recomputation.starts,
            frozenset(exchanges),
            frozenset(exchanges | first_uses),
            frozenset(backward),
            frozenset(backward | {bucket.complete for bucket in buckets}),
        )

    def _state(self, stage: int, one: RankClass, variables: Sequence[StageVariable]) -> Dict[str, int]:
        """Bytes of variables and slots on the device."""
        if self._options.offload:
            return {}
        ranks = self._layout.ranks
        weights = sum(own.bytes / (ranks if own.in_parts else 1) for own in variables)
        others = [
            op.variable_bytes * self._sharded().get(number, (1.0,) * (one.place + 1))[one.place]
            for number, op in enumerate(self._facts.ops)
            if op.variable_bytes and not op.is_trained and self._facts.stage_of[number] == stage
        ]
        slots = weights * sum(self._costs.slots.values()) + sum(others)
        return {"weights": int(round(weights)), "slots": int(round(slots))}

    def _updates(self, kind: Device, variables: Sequence[StageVariable]) -> Tuple[float, ...]:
        """Seconds of each update, an elementwise op: it reads the gradient, and reads and writes variable and slots."""
        slots = sum(self._costs.slots.values())
        found = []
        sharing = 1
        if self._options.offload:
            kind, sharing = HOST, self._strategy.devices
        for one in variables:
            changed = one.gradient_bytes if one.is_sparse else one.bytes
            changed /= self._layout.ranks if one.in_parts else 1
            seconds = _elementwise(kind, changed, 3.0 + 2.0 * slots, _FLOPS_OF_UPDATE * (1.0 + slots))
            if self._options.checks:  # whether each element is finite, as a byte, and whether all are
                seconds += _elementwise(kind, changed, 1.25) + _elementwise(kind, changed, 0.25)
            found.append(sharing * seconds)
        return tuple(found)


def _exchanging(split: Optional[SplitWork], of_rows: Sequence[RowExchange]) -> List[int]:
    """The ops at which passes wait for an exchange."""
    of_split = [] if split is None else [one.at for one in split.exchanges]
    return of_split + [one.at for one in of_rows if one.way != RowWay.WRITES]


def _elementwise(kind: Device, size: float, passes: float, flops: float = 1.0) -> float:
    """Seconds of an elementwise op on `size` bytes that it reads and writes so often, with so many FLOPs of each."""
    return OpTimes(kind).seconds(OpCost(Kind.ELEMENTWISE, size / _BYTES_OF_ELEMENT * flops, size * passes, 0))


def _largest(of_classes: Sequence[StageVariable]) -> StageVariable:
    """A variable with the bytes of the rank that has most, so that all ranks have the same buckets."""
    return of_classes[0]._replace(
        bytes=max(one.bytes for one in of_classes),
        gradient_bytes=max(one.gradient_bytes for one in of_classes),
        sent_bytes=max(one.sent_bytes for one in of_classes),
    )
