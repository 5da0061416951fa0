"""The registry of rules: a rule lists all the ways in which an op can be computed on shards of its tensors.

A rule knows nothing of the rest of the graph. It lists choices; `search.py` takes those which cost least together,
`lowering.py` builds them. Any op can run with every tensor REPLICATED, and no rule lists that.
"""

from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import PARTIAL, Placement, balanced_sizes, proportional_sizes, shard
from epl.parallel.sharding.slices import slice_along

Shape = Tuple[Optional[int], ...]


class TensorInfo(NamedTuple):
    """Facts about a tensor of the unsplit program.

    Attributes:
      shape: static; None entries where a size is not known, None if not even the rank is.
      dtype: without reference.
      constant: its value if that is known at graph construction and small.
      batch: the dimension that holds the rows of the batches of all ranks; None if none does, or it is not known which.
        It is cut as shard(batch, None), all others into shards of known sizes.
    """

    shape: Optional[Shape]
    dtype: tf.DType
    constant: Optional[np.ndarray] = None
    batch: Optional[int] = None


class OpInfo(NamedTuple):
    """An op of the unsplit program.

    Attributes:
      type: op type.
      name: for error messages.
      attrs: attribute -> Python value, as `tf.Operation.get_attr` gives it.
      inputs, outputs: its tensors.
      ranks: devices in the group of the split.
      granularities: size of a dimension -> multiples in which it may be cut, 1 first (see `shard_choices`).
      ratios: of the sizes of shards, by rank, 0 for empty ones; () if shards are balanced.
    """

    type: str
    name: str
    attrs: Dict[str, Any]
    inputs: Tuple[TensorInfo, ...]
    outputs: Tuple[TensorInfo, ...]
    ranks: int
    granularities: Dict[int, Tuple[int, ...]]
    ratios: Tuple[int, ...] = ()


class Emission:
    """Builds the ops of a rule for one rank: copies of the op on other tensors, and collectives between ranks.

    All methods are differentiable as epl/parallel/sharding/placements.py says, except `all_max` and `all_min`, which
    stop gradients.
    """

    rank: int
    ranks: int

    def same(self, inputs: Sequence[tf.Tensor], **attrs: Any) -> List[tf.Tensor]:
        """The op with other inputs, and with other attributes where given; its outputs."""
        raise NotImplementedError

    def own(self, values: Sequence[Any], dtype: tf.DType) -> tf.Tensor:
        """A constant that differs between ranks: `values` by rank. Nothing else may depend on the rank."""
        raise NotImplementedError

    def local_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """The size of a dimension that holds the batches of all ranks -> the size of this rank's shard."""
        raise NotImplementedError

    def enter(self, tensor: tf.Tensor) -> tf.Tensor:
        """REPLICATED, entered by an op that computes a shard: identity forward, all-reduce backward."""
        raise NotImplementedError

    def sum_partial(self, tensor: tf.Tensor) -> tf.Tensor:
        """PARTIAL -> REPLICATED."""
        raise NotImplementedError

    def gather(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """shard -> REPLICATED."""
        raise NotImplementedError

    def cut(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """REPLICATED -> shard, by a placement with sizes."""
        raise NotImplementedError

    def with_halos(self, tensor: tf.Tensor, dim: int, before: int, after: int, value: float) -> tf.Tensor:
        """An equal shard along `dim`, between the edge rows of its neighbours; rows of `value` at both ends."""
        raise NotImplementedError

    def all_max(self, tensor: tf.Tensor) -> tf.Tensor:
        """The element-wise maximum over the ranks."""
        raise NotImplementedError

    def all_min(self, tensor: tf.Tensor) -> tf.Tensor:
        """The element-wise minimum over the ranks."""
        raise NotImplementedError


# Local tensors in the placements of a choice's inputs -> local outputs. REPLICATED inputs have entered already.
Emit = Callable[[Emission, OpInfo, List[tf.Tensor]], List[tf.Tensor]]


class Inside(NamedTuple):
    """A collective that `emit` builds.

    Attributes:
      collective: "all-reduce", "all-gather" or "all-to-all".
      nbytes: of the tensor that each rank has after it; of an all-to-all, what its cost is computed with.
      is_backward: whether it is built for the gradient with respect to the op's first input.
      held: of an all-to-all, bytes of the tensor that each rank has after it; None: `nbytes`.
    """

    collective: str
    nbytes: float
    is_backward: bool = False
    held: Optional[float] = None

    def sent(self, ranks: int) -> float:
        """Bytes that a rank sends, by the algorithm that sends least."""
        return (2.0 if self.collective == "all-reduce" else 1.0) * (ranks - 1) / ranks * self.nbytes


class Choice(NamedTuple):
    """One way to compute an op on shards.

    Attributes:
      inputs: the placements of its inputs.
      outputs: the placements of its outputs.
      emit: builds the op; None: the same op on the local tensors.
      inside: the collectives of `emit`, in their order.
      averages: whether the op itself gives the mean over each shard, of which `emit` makes partial sums.
    """

    inputs: Tuple[Placement, ...]
    outputs: Tuple[Placement, ...]
    emit: Optional[Emit] = None
    inside: Tuple[Inside, ...] = ()
    averages: bool = False

    def moved(self, ranks: int, is_trained: bool) -> float:
        """Bytes that a rank sends inside the op, forward and, if it is trained, backward."""
        return sum(one.sent(ranks) for one in self.built(is_trained))

    def built(self, is_trained: bool) -> List[Inside]:
        """The collectives inside the op, without those of the gradient if it is not trained."""
        return [one for one in self.inside if is_trained or not one.is_backward]


Rule = Callable[[OpInfo], Iterable[Choice]]

RULES: Dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Decorator: the function is the rule of these op types."""

    def register(function: Rule) -> Rule:
        for op_type in types:
            assert op_type not in RULES, op_type
            RULES[op_type] = function
        return function

    return register


def shard_choices(op: OpInfo, size: int) -> List[Tuple[int, ...]]:
    """The ways to cut a dimension of a known size: into balanced shards, or by the ratios; for each granularity."""
    cuts = [
        proportional_sizes(size, op.ratios, granularity) if op.ratios else balanced_sizes(size, op.ranks, granularity)
        for granularity in op.granularities.get(size, (1,))
    ]
    return [cut for place, cut in enumerate(cuts) if cut is not None and cut not in cuts[:place]]


def choices_of(op: OpInfo) -> List[Choice]:
    """The choices of an op, without the one that all is REPLICATED; none if its type has no rule."""
    found = RULES.get(op.type)
    choices = [] if found is None else list(found(op))
    if sum(ratio > 0 for ratio in op.ratios) == 1:
        choices += [kept for choice in choices for kept in _kept_by_one(op, choice)]
    return choices


def _kept_by_one(op: OpInfo, choice: Choice) -> Iterator[Choice]:
    """A choice with a partial sum, with a shard in its place where one rank has all: others have zeros, and drop them.

    x: shard(1: 8+0), w: shard(0: 8+0)  ->  x w: PARTIAL, an all-reduce of it and of zeros
                                        ->  x w: shard(1: 5+0), nothing to exchange
    """
    if choice.outputs != (PARTIAL,) or not any(placement.has_empty for placement in choice.inputs):
        return
    info = op.outputs[0]
    for dim, size in enumerate(info.shape or ()):
        for sizes in shard_choices(op, size) if size and dim != info.batch else []:
            target = shard(dim, sizes)
            yield choice._replace(outputs=(target,), emit=_dropping(choice, target))


def _dropping(choice: Choice, target: Placement) -> Emit:
    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        (output,) = emission.same(inputs) if choice.emit is None else choice.emit(emission, op, inputs)
        return [slice_along(output, target.dim, 0, emission.own(target.sizes or (), tf.int32))]

    return emit
