"""What a rule is: given an op, all the ways in which it can be computed on parts of its tensors; and their registry.

A rule knows nothing of the rest of the graph. It lists choices; `search.py` takes those which cost least together,
`lowering.py` builds them. That every tensor is REPLICATED is legal for every op, and no rule lists it.
"""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import Placement, balanced_sizes, proportional_sizes

Shape = Tuple[Optional[int], ...]


class TensorInfo(NamedTuple):
    """What is known of a tensor of the unsplit program.

    Attributes:
      shape: static; None entries where a size is not known, None if not even the rank is.
      dtype: without reference.
      constant: its value if that is known when the graph is built and it is small.
      batch: the dimension that holds the rows of the batches of all ranks; None if none does, or it is not known which.
        It is cut as shard(batch, None), all others in parts whose sizes are known.
    """

    shape: Optional[Shape]
    dtype: tf.DType
    constant: Optional[np.ndarray] = None
    batch: Optional[int] = None


class OpInfo(NamedTuple):
    """An op of the unsplit program.

    Attributes:
      type: op type.
      name: for messages.
      attrs: attribute -> Python value, as `tf.Operation.get_attr` gives it.
      inputs, outputs: its tensors.
      ranks: devices in the group of the split.
      granularities: of a dimension's size -> multiples in which it may be cut, 1 first (see `shard_choices`).
      ratios: of the parts, by rank; () if they are as equal as they can be.
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
    """What a rule builds with, for one rank: the op itself on other tensors, and what moves data between ranks.

        All methods are differentiable as epl/parallel/sharding/placements.py says, `all_max` and `all_min` excepted,
    which stop gradients.
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
        """The size of a dimension that holds the batches of all ranks -> how much of it is this rank's."""
        raise NotImplementedError

    def enter(self, tensor: tf.Tensor) -> tf.Tensor:
        """REPLICATED, for use by an op that computes a part."""
        raise NotImplementedError

    def sum_partial(self, tensor: tf.Tensor) -> tf.Tensor:
        """PARTIAL -> REPLICATED."""
        raise NotImplementedError

    def gather(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """A shard -> REPLICATED."""
        raise NotImplementedError

    def cut(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """REPLICATED -> this rank's part, by a placement with sizes."""
        raise NotImplementedError

    def all_max(self, tensor: tf.Tensor) -> tf.Tensor:
        """The largest of all ranks, element by element."""
        raise NotImplementedError

    def all_min(self, tensor: tf.Tensor) -> tf.Tensor:
        """The smallest of all ranks, element by element."""
        raise NotImplementedError


# Local tensors in the placements of a choice's inputs -> local outputs. REPLICATED inputs have entered already.
Emit = Callable[[Emission, OpInfo, List[tf.Tensor]], List[tf.Tensor]]


class Choice(NamedTuple):
    """One way to compute an op on parts.

    Attributes:
      inputs: the placements in which it takes its inputs.
      outputs: those of its outputs.
      emit: builds it; None: the same op on the local tensors.
      moved: bytes that a rank sends inside `emit`, forward and backward.
    """

    inputs: Tuple[Placement, ...]
    outputs: Tuple[Placement, ...]
    emit: Optional[Emit] = None
    moved: float = 0.0


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
    """The ways to cut a dimension of a known size: in balanced parts, or by the ratios; by each granularity it has."""
    cuts = [
        proportional_sizes(size, op.ratios, granularity) if op.ratios else balanced_sizes(size, op.ranks, granularity)
        for granularity in op.granularities.get(size, (1,))
    ]
    return [cut for place, cut in enumerate(cuts) if cut is not None and cut not in cuts[:place]]


def choices_of(op: OpInfo) -> List[Choice]:
    """The choices of an op besides that all is REPLICATED; none if its type has no rule."""
    found = RULES.get(op.type)
    return [] if found is None else list(found(op))
