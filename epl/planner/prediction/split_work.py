"""How the ranks of a group compute the ops of a split: each op's share of the work, and what they exchange.

    choices of a strategy    MatMul 1    full, shard(1: 4+4) -> shard(1: 4+4)      half of the columns on each rank
                             MatMul 2    shard(1: 4+4), shard(0: 4+4) -> partial   a summand on each rank
    exchanges                before MatMul 1    all-gather of the rows; backward a reduce-scatter
                             after MatMul 2     all-reduce, or a reduce-scatter to the rows

The reshardings are those of `split/resharding_paths.py`, which lower a split for real. Collectives exchange rows: each
device copies what is cut by another dimension, before and after them, and transposes it if its parts differ in size.
"""

import re
from typing import Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple, cast

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.costs.op_times import OpTimes
from epl.parallel.costs.ops import OpCost
from epl.parallel.plan.sections import InsideExchange
from epl.parallel.plan.strategy import Strategy
from epl.parallel.sharding.placements import REPLICATED, Placement, balanced_sizes, shard, shares
from epl.parallel.sharding.resharding import is_uneven
from epl.parallel.sharding.rules.registry import TensorInfo
from epl.parallel.split.program import RESULT, Value
from epl.parallel.split.resharding_paths import Form, Resharding, collectives, is_half, route, wanted_form
from epl.planner.machine.machine import Device
from epl.planner.machine.op_kinds import Kind
from epl.planner.prediction.facts import ModelFacts, Output, source_of
from epl.planner.simulator.model_costs import ModelOp
from epl.utils.errors import PlanError

_PLACEMENT = re.compile(r"(full|partial|shard\((\d+)(?:: ([0-9+]+))?\))")
_ROWS = shard(0, None)
_UNKNOWN = 1 << 20  # parts of a dimension whose size a placement does not tell


class SplitExchange(NamedTuple):
    """A collective of a group.

    Attributes:
      at: the op before which it runs in the forward pass, or after whose backward op in the backward pass; in the
        stage of the tensor, if an op of the split computes it, else in that of the op that takes it.
      is_backward: which of the two.
      what: the tensor and the reason, in words.
      collective: its name.
      source: the tensor.
      fraction: of the bytes of the full tensor, those that its cost is computed with.
      copied: the bytes that a device copies for it in long runs, as a multiple of those of the full tensor.
      transposed: the bytes that it copies one element at a time, likewise.
      copy_ops: how many ops do both.
      received: by place in the group, the fraction of the full tensor that it leaves there.
      is_kept: whether the backward pass reads what it leaves.
    """

    at: int
    is_backward: bool
    what: str
    collective: str
    source: Output
    fraction: float
    copied: float
    transposed: float
    copy_ops: int
    received: Tuple[float, ...]
    is_kept: bool = False

    def copy_seconds(self, kind: Device, nbytes: float) -> float:
        """How long a device copies and transposes the tensor, of so many bytes."""
        times = OpTimes(kind)
        copied = OpCost(Kind.MOVE, 0.0, 2.0 * self.copied * nbytes, 0)
        transposed = OpCost(Kind.REARRANGE, 0.0, 2.0 * self.transposed * nbytes, 0)
        return self.copy_ops * times.overhead + times.work_seconds(copied) + times.work_seconds(transposed)


class SplitWork(NamedTuple):
    """What the ranks of a group do of the ops of a split.

    Attributes:
      of_group: by op, whether it is computed for the rows of all ranks of the group, not for those of the rank alone.
      work: by place in the group and op, the share of the op's work for these rows.
      held: by place in the group and op, the share of the op's outputs.
      variables: variable -> by place in the group, the share that the rank holds; 1 for all of it.
      exchanges: in the order of the forward pass.
      sent: (tensor, op of another stage) -> by place in the group, the share of the tensor that the stage of the op
        gets for the op: of tensors and variables of the split.
    """

    of_group: np.ndarray
    work: np.ndarray
    held: np.ndarray
    variables: Dict[int, Tuple[float, ...]]
    exchanges: Tuple[SplitExchange, ...]
    sent: Dict[Tuple[Output, int], Tuple[float, ...]]

    @property
    def is_equal(self) -> bool:
        """Whether all ranks of a group do the same."""
        return bool((self.work == self.work[0]).all() and (self.held == self.held[0]).all())


def parse_placement(text: str, ranks: int) -> Placement:
    """A placement as a printed plan has it: "full", "partial", "shard(0)" for rows, "shard(1: 3+1)".

    A part of another dimension than the first may leave its sizes out: they are equal then.

    Raises:
      ValueError: it is none.
    """
    match = _PLACEMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no placement")
    if match.group(2) is None:
        return Placement(match.group(1))
    sizes = tuple(int(size) for size in (match.group(3) or "").split("+") if size)
    if not sizes and int(match.group(2)):
        sizes = balanced_sizes(_UNKNOWN * ranks, ranks) or ()
    if sizes and len(sizes) != ranks:
        raise ValueError(f"{text!r} has {len(sizes)} parts for {ranks} ranks")
    return shard(int(match.group(2)), sizes or None)


def find_split_work(
    strategy: Strategy,
    facts: ModelFacts,
    splits: Sequence[int],
    ranks: int,
    tensor_bytes: Callable[[int, int], float],
    half: bool,
) -> SplitWork:
    """What the ranks of a group do.

    Args:
      strategy: the strategy.
      facts: of its model.
      splits: numbers of the blocks that are computed on shards.
      ranks: of a group.
      tensor_bytes: bytes of an output for some rows; which one is cheapest depends on them.
      half: whether all-to-alls send float16 (`communication.fp16`).

    Raises:
      PlanError: a choice is none, or its placements cannot be had.
    """
    walk = _Walk(strategy, facts, frozenset(splits), ranks, tensor_bytes, half)
    for number in range(len(facts.ops)):
        walk.add(number)
    return SplitWork(walk.of_group, walk.work, walk.held, walk.variables, tuple(walk.exchanges), walk.sent)


def tensor_value(facts: ModelFacts, source: Output, nbytes: float, half: bool) -> Value:
    """A tensor as the search for reshardings sees it: as many bytes, in one dimension of rows."""
    by_rows = facts.ops[source[0]].by_rows
    shape = (max(1, round(nbytes / tf.float32.size)),)
    has_gradient = facts.has_gradient[source[0]]
    info = TensorInfo(shape, tf.float32, None, 0 if by_rows else None)
    return Value(
        cast(tf.Tensor, None), RESULT, info, None, -1, shape, has_gradient, has_gradient, half and has_gradient
    )  # fmt: skip


def exchanges_of(
    facts: ModelFacts, number: int, source: Output, value: Value, step: Resharding, nbytes: float, ranks: int
) -> List[SplitExchange]:
    """The collectives of a resharding of a tensor of some bytes that op `number` takes."""
    found = []
    names = collectives(step.kind, value.trained)
    for is_backward, (name, sent) in enumerate(zip(names, (step.forward, step.backward))):
        if name and sent:
            # In all algorithms of n ranks, a rank sends (n - 1) / n of what the cost is computed with.
            whole = sent / max(nbytes, 1.0) * ranks / (ranks - 1) / (2.0 if name == "all-reduce" else 1.0)
            before, after = step.source.placement, step.target.placement
            if is_backward:
                before, after = after, before
            received = _fractions(after, ranks) or (1.0,) * ranks
            copied, transposed, copy_ops = _copies(name, before, after, ranks)
            if is_half(name, value):
                copied, transposed = copied / 2, transposed / 2
            what = f"{facts.ops[source[0]].name}: {step.source.placement.kind} -> {step.target.placement.kind}"
            found.append(
                SplitExchange(
                    number, bool(is_backward), what, name, source, whole, copied, transposed, copy_ops, received
                )
            )
    return found


def inside_exchanges(op: ModelOp, number: int, inside: Sequence[InsideExchange], ranks: int) -> List[SplitExchange]:
    """The collectives inside op `number`, which is computed on shards, as its choice tells them."""
    return [
        SplitExchange(
            number, one.is_backward, f"{op.name}: inside", one.collective, (number, 0), one.share, 0.0, 0.0, 0,
            (one.held,) * ranks, not one.is_backward and 0 in op.read_inputs,
        )
        for one in inside
    ]  # fmt: skip


def _copies(collective: str, before: Placement, after: Placement, ranks: int) -> Tuple[float, float, int]:
    """How `Resharder` prepares a collective: the fields `copied`, `transposed` and `copy_ops` of `SplitExchange`.

    To blocks of rows, a split and a concatenation copy all; back, the concatenation alone if rows are aligned.
    """
    cut = [placement for placement in (before, after) if placement.is_shard]
    share = max(max(shares(placement, ranks)) for placement in cut) if cut else 1.0
    uneven_before, uneven_after = is_uneven(before), is_uneven(after)
    if collective != "all-to-all":
        if not cut or cut[0].dim == 0:
            return 0.0, 0.0, 0
        if uneven_before or uneven_after:
            return 0.0, 1.0 + share, 2
        return (1.0 if collective == "all-gather" else 2.0), 0.0, 2
    if uneven_after:
        transposes = 0 if (before.dim, after.dim) == (0, 1) else 2  # to the order in which it is sent, and back
        if not uneven_before and (before.dim, after.dim) != (1, 0):  # (1, 0): the first two are one another's inverse
            transposes += 2
        return 0.0, transposes * share, transposes
    transposes = 2 if uneven_before and before.dim else 0
    to_blocks, from_blocks = bool(after.dim or transposes), bool(before.dim and not uneven_before)
    return (2 * to_blocks + from_blocks) * share, transposes * share, transposes + 2 * to_blocks + 2 * from_blocks


class _Walk:
    """One walk over the ops of the forward pass; it keeps the forms in which each tensor exists."""

    def __init__(
        self,
        strategy: Strategy,
        facts: ModelFacts,
        splits: FrozenSet[int],
        ranks: int,
        tensor_bytes: Callable[[int, int], float],
        half: bool,
    ) -> None:
        count = len(facts.ops)
        self._strategy, self._facts, self._ranks = strategy, facts, ranks
        self._tensor_bytes, self._half = tensor_bytes, half
        self._inside = [op.block in splits for op in strategy.ops]
        self._choices = {one.op: one.placements for one in strategy.choices}
        self._exchanged_inside = {one.op: one.inside for one in strategy.choices}
        self._taken = {source for op in facts.ops for source, _ in op.inputs}
        self._forms: Dict[Output, Tuple[Form, ...]] = {}
        self._made: Dict[Tuple[Output, Form], int] = {}  # the exchange of the forward pass that makes a form
        self.of_group = np.zeros(count, bool)
        self.work = np.ones([ranks, count])
        self.held = np.ones([ranks, count])
        self.variables: Dict[int, Tuple[float, ...]] = {}
        self.exchanges: List[SplitExchange] = []
        self.sent: Dict[Tuple[Output, int], Tuple[float, ...]] = {}

    def add(self, number: int) -> None:
        """Adds an op: the forms that it takes and gives."""
        op = self._facts.ops[number]
        is_weight = bool(op.variable_bytes) or source_of(self._facts.ops, (number, 0)) != (number, 0)
        if is_weight:
            return
        if not self._inside[number]:
            for at, taken in enumerate(op.inputs):
                source = source_of(self._facts.ops, taken)
                if source in self._forms:
                    self._take(number, source, self._outside(source[0]), False, at in op.read_inputs)
                    self._send(number, taken, self._outside(source[0]))
            return
        if not op.inputs:
            for output in range(len(self._strategy.ops[number].outputs)):
                self._forms[number, output] = (Form(self._outside(number), False),)
            return
        into, out = self._placements(number)
        of_part = any(placement != REPLICATED for placement in (*into, *out))
        for at, (taken, placement) in enumerate(zip(op.inputs, into)):
            source = source_of(self._facts.ops, taken)
            self._take(number, source, placement, of_part, at in op.read_inputs)
            self._send(number, taken, placement)
        self.exchanges += inside_exchanges(op, number, self._exchanged_inside.get(number, ()), self._ranks)
        for output, placement in enumerate(out):
            self._forms[number, output] = (Form(placement, False),)
            if number not in self._taken:
                self._take(number, (number, output), self._outside(number), False)
        self._share(number, into, out)

    def _placements(self, number: int) -> Tuple[List[Placement], List[Placement]]:
        op, outputs = self._facts.ops[number], len(self._strategy.ops[number].outputs)
        text = self._choices.get(number)
        if text is None:
            return [REPLICATED] * len(op.inputs), [REPLICATED] * outputs
        into, _, out = text.partition(" -> ")
        try:
            found = [[parse_placement(one, self._ranks) for one in part.split(",")] for part in (into, out)]
        except ValueError as error:
            raise PlanError(f"The strategy computes {op.name!r} as {text!r}, and {error}.") from None
        if [len(part) for part in found] != [len(op.inputs), outputs]:
            raise PlanError(
                f"The strategy computes {op.name!r} as {text!r}, and the op has {len(op.inputs)} input(s) and "
                f"{outputs} output(s)."
            )
        return found[0], found[1]

    def _outside(self, number: int) -> Placement:
        """The placement in which code outside of the split has an output of an op."""
        return _ROWS if self._facts.ops[number].by_rows else REPLICATED

    def _take(self, number: int, source: Output, placement: Placement, of_part: bool, is_read: bool = False) -> None:
        """An op takes a tensor in a placement: what the ranks exchange for it; `is_read`: by the backward pass, too."""
        value = self._value(source)
        is_variable = bool(self._facts.ops[source[0]].variable_bytes)
        if source not in self._forms:
            native = placement if is_variable else self._outside(source[0])
            self._forms[source] = (Form(native, False),)
            if is_variable:
                self.variables[source[0]] = _fractions(native, self._ranks) or (1.0,) * self._ranks
        wanted = wanted_form(value, placement, of_part)
        path = route(value, self._ranks, self._forms[source], wanted)
        if path is None:
            forms = " or ".join(str(form.placement) for form in self._forms[source])
            raise PlanError(
                f"{self._facts.ops[number].name!r} takes {self._facts.ops[source[0]].name!r} as {placement} by the "
                f"strategy, and that cannot be made of {forms}."
            )
        for step in path:
            self._forms[source] += (step.target,)
            self._exchange(number, source, value, step)
        plain = wanted._replace(entered=False)  # an op that computes a shard may enter what was gathered for others
        made = self._made.get((source, wanted), self._made.get((source, plain), -1))
        if is_read and made >= 0:
            self.exchanges[made] = self.exchanges[made]._replace(is_kept=True)

    def _exchange(self, number: int, source: Output, value: Value, step: Resharding) -> None:
        stages = self._facts.stage_of
        if self._inside[source[0]] and stages[number] != stages[source[0]]:
            number = self._next_of_stage(source[0])
        found = exchanges_of(self._facts, number, source, value, step, self._tensor_bytes(*source), self._ranks)
        if found and not found[0].is_backward:
            self._made[source, step.target] = len(self.exchanges)
        self.exchanges += found

    def _next_of_stage(self, number: int) -> int:
        """The op after another one in its stage; the op itself if it is the last."""
        stages = self._facts.stage_of
        return next((op for op in range(number + 1, len(stages)) if stages[op] == stages[number]), number)

    def _send(self, number: int, taken: Output, placement: Placement) -> None:
        """Notes what a stage sends to an op of another one; what is not of the split has the rows of each rank."""
        source = source_of(self._facts.ops, taken)
        if self._facts.stage_of[taken[0]] == self._facts.stage_of[number] or not self._inside[source[0]]:
            return
        whole = (1.0,) * self._ranks
        self.sent[taken, number] = self.variables.get(source[0], _fractions(placement, self._ranks) or whole)

    def _value(self, source: Output) -> Value:
        return tensor_value(self._facts, source, self._tensor_bytes(*source), self._half)

    def _share(self, number: int, into: Sequence[Placement], out: Sequence[Placement]) -> None:
        cut = [placement for placement in (*into, *out) if placement.is_shard]
        sized = [placement for placement in cut if placement.sizes is not None]
        self.of_group[number] = bool(sized) or not cut
        if sized:
            self.work[:, number] = _fractions(sized[0], self._ranks)
            self.held[:, number] = self._held(number, out)

    def _held(self, number: int, out: Sequence[Placement]) -> np.ndarray:
        """By rank, the part of the bytes of an op's outputs, each of which may be cut or not."""
        sizes = [self._tensor_bytes(number, output) for output in range(len(out))]
        if not sum(sizes):
            return np.ones(self._ranks)
        parts = [np.asarray(_fractions(placement, self._ranks) or (1.0,) * self._ranks) for placement in out]
        return sum(size * part for size, part in zip(sizes, parts)) / sum(sizes)


def _fractions(placement: Placement, ranks: int) -> Optional[Tuple[float, ...]]:
    """By rank, the part of a tensor; None if each rank has all of it. Rows count as equal."""
    if not placement.is_shard:
        return None
    sizes = placement.sizes
    return (1.0 / ranks,) * ranks if sizes is None else tuple(size / sum(sizes) for size in sizes)
