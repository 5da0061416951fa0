"""What a step moves for the variables of a stage: buckets of gradients, gathers of weights (ZeRO), copies (offload).

plain, v0    bucket 0: all-reduce       bucket 1: all-reduce ...         each when the backward pass has come so far
v1, v2       bucket 0: reduce-scatter   ...                              of the variables in shards
v0, v1       gather of each weight, small ones together, before its first use; held until its last
v2           gather of a block of weights, in the forward and in the backward pass, and where a segment is recomputed
offload      copy of a block of weights, as often; with v0 or v1 their gather is in the memory of the hosts
"""

from typing import Collection, List, NamedTuple, Sequence, Set, Tuple

from epl.ops import bucketing
from epl.parallel.plan import zero_decisions
from epl.parallel.weights.prefetch import WeightUse, cut_blocks, largest
from epl.planner.prediction.facts import TrainedVariable
from epl.planner.simulator.model_costs import ModelOp


class StageVariable(NamedTuple):
    """A trained variable of a stage, as one rank has it.

    Attributes:
      op: number of the op in the forward pass.
      bytes: that a step without ZeRO has on the rank: of the variable, or of its shard in a split.
      gradient_bytes: of its gradient on the rank; of the rows that are looked up, with their indices, if it is sparse.
      sent_bytes: of the same when it is sent; fewer with `communication.fp16`.
      dtype: of the gradient.
      complete: the position in the stage at which the backward pass completes the gradient.
      uses: the positions that compute with it.
      is_sparse: whether the gradient is sparse.
      of_split: whether each rank of a group of a split has a shard.
      in_parts: whether ZeRO cuts it.
      copied_bytes: that the forward pass takes of it from the memory of the host: of looked-up rows, or of all of it.
      is_read_again: whether the backward pass reads it.
    """

    op: int
    bytes: float
    gradient_bytes: float
    sent_bytes: float
    dtype: str
    complete: int
    uses: Tuple[int, ...]
    is_sparse: bool
    of_split: bool
    in_parts: bool
    copied_bytes: float
    is_read_again: bool


class GradientBucket(NamedTuple):
    """Gradients that travel together.

    Attributes:
      collective: its name.
      variables: their places in the list of the stage's variables.
      bytes: of all gradients, on one rank, when they are sent.
      complete: the position at which the backward pass completes the last.
      of_split: whether only the ranks with the same shard exchange it.
    """

    collective: str
    variables: Tuple[int, ...]
    bytes: float
    complete: int
    of_split: bool


class WeightGather(NamedTuple):
    """Weights that are gathered, or copied from the host, together.

    Attributes:
      bytes: of the full weights.
      bytes_again: of those that the backward pass reads.
      bytes_recomputed: of those that ops take which run a second time.
      first, last: the positions of their first and last use.
      variables: how many.
    """

    bytes: float
    bytes_again: float
    bytes_recomputed: float
    first: int
    last: int
    variables: int


def variables_in_parts(
    ops: Sequence[ModelOp], variables: Sequence[TrainedVariable], ranks: int, sparse_as_dense: bool
) -> Set[int]:
    """The ops of the variables that ZeRO cuts; one whose shape is not known stays whole.

    Args:
      ops: of the model.
      variables: of a stage, those in no split.
      ranks: that have them.
      sparse_as_dense: `communication.sparse_as_dense`.
    """
    candidates = []
    for one in variables:
        shape = ops[one.op].variable_shape
        if shape is not None:
            is_sparse = has_sparse_gradient(one, sparse_as_dense)
            candidates.append(zero_decisions.Candidate(str(one.op), shape, one.bytes, is_sparse))
    return set(map(int, zero_decisions.choose_placements(candidates, [0.0] * ranks)))


def has_sparse_gradient(variable: TrainedVariable, sparse_as_dense: bool) -> bool:
    """Whether the gradient of a variable is of rows, and is sent as rows."""
    return bool(variable.rows) and not sparse_as_dense


def plan_gradients(variables: Sequence[StageVariable], scatters: bool, max_splits: int) -> List[GradientBucket]:
    """The buckets of a stage, in the order in which the backward pass completes them.

    Args:
      variables: of the stage.
      scatters: whether gradients of variables that ZeRO cuts are reduced to their shards.
      max_splits: the most buckets (`communication.max_splits`).
    """
    found = []
    for of_split in (False, True):
        members = [at for at, one in enumerate(variables) if one.of_split == of_split]
        dense = [at for at in members if not variables[at].is_sparse]
        scattered = {at for at in dense if scatters and variables[at].in_parts}
        plan = bucketing.plan_buckets(
            [round(variables[at].gradient_bytes) for at in dense],
            [variables[at].dtype + (" in parts" if at in scattered else "") for at in dense],
            sorted(range(len(dense)), key=lambda place: (-variables[dense[place]].complete, place)),
            max_splits,
        )
        moved = [[dense[at] for at in bucket.tensors] for bucket in plan.buckets]
        moved += [[at] for at in members if variables[at].is_sparse]
        for bucket in moved:
            name = "reduce-scatter" if bucket[0] in scattered else "all-reduce"
            size = sum(variables[at].sent_bytes for at in bucket)
            complete = min(variables[at].complete for at in bucket)
            name = "all-gather" if variables[bucket[0]].is_sparse else name
            found.append(GradientBucket(name, tuple(bucket), size, complete, of_split))
    return sorted(found, key=lambda bucket: -bucket.complete)


def plan_gathers(
    variables: Sequence[StageVariable], level: str, recomputed: Collection[int] = ()
) -> List[WeightGather]:
    """ZeRO's gathers of weights, in the order of their first use in the forward pass.

    Args:
      variables: of the stage.
      level: `zero.level`.
      recomputed: the positions that run a second time.
    """
    cut = sorted((one for one in variables if one.in_parts), key=lambda one: one.uses[:1])
    return _in_blocks(cut, recomputed) if level == zero_decisions.DROPS else _in_packs(cut)


def _in_packs(variables: Sequence[StageVariable]) -> List[WeightGather]:
    found = zero_decisions.packs([one.bytes for one in variables], [one.dtype for one in variables])
    packs = [[variables[number] for number in pack] for pack in found]
    return [
        WeightGather(
            sum(one.bytes for one in pack),
            sum(one.bytes for one in pack),
            0.0,
            min(min(one.uses, default=0) for one in pack),
            max(max(one.uses, default=0) for one in pack),
            len(pack),
        )
        for pack in packs
    ]


def plan_copies(variables: Sequence[StageVariable], recomputed: Collection[int] = ()) -> List[WeightGather]:
    """The copies of weights from the memory of the host, in the order of their first use in the forward pass.

    Args:
      variables: of the stage.
      recomputed: the positions that run a second time.
    """
    uses = _uses([one._replace(bytes=one.copied_bytes) for one in variables])
    again = {one.op for one in variables if one.is_read_again}
    found = []
    for block in cut_blocks(uses, largest(uses)):
        sizes = {use.source: use.bytes for use in block}
        total, read, taken = (
            float(sum(sizes[one] for one in some))
            for some in (sizes.keys(), sizes.keys() & again, _taken_in(block, recomputed))
        )
        found.append(WeightGather(total, read, taken, block[0].consumer, block[-1].consumer, len(sizes)))
    return found


def _in_blocks(variables: Sequence[StageVariable], recomputed: Collection[int]) -> List[WeightGather]:
    uses = _uses(variables)
    forward_and_backward = 2 * sum(use.bytes for use in uses)
    found = []
    for block in cut_blocks(uses, zero_decisions.block_bytes(forward_and_backward)):
        sizes = {use.source: use.bytes for use in block}
        total = float(sum(sizes.values()))
        again = total if _taken_in(block, recomputed) else 0.0
        found.append(WeightGather(total, total, again, block[0].consumer, block[-1].consumer, len(sizes)))
    return found


def _taken_in(block: Sequence[WeightUse], positions: Collection[int]) -> Set[int]:
    """The weights of a block that ops at some positions take."""
    return {use.source for use in block if use.consumer in positions}


def _uses(variables: Sequence[StageVariable]) -> List[WeightUse]:
    return sorted(
        (WeightUse(one.op, 0, use, 0, round(one.bytes), ()) for one in variables for use in one.uses),
        key=lambda use: use.consumer,
    )
