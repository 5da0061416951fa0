"""Gradients of which each rank needs a shard alone, as with ZeRO: what planner and aggregation ask of them."""

from typing import NamedTuple, Optional

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.parallel.sharding.packed import Member
from epl.parallel.sharding.resharding import Resharder


class Cut(NamedTuple):
    """Where a gradient is cut.

    Attributes:
      part: what the optimizer gets: an identity.
      member: shape and placement.
    """

    part: tf.Tensor
    member: Member


class ScatteredGradients:
    """Those of one graph. The feature that cuts gradients implements it."""

    @property
    def resharder(self) -> Resharder:
        """Moves data between the ranks."""
        raise NotImplementedError

    def scatters(self, gradient: Gradient) -> bool:
        """Whether nothing but this rank's shard is needed of a gradient that is to be reduced."""
        raise NotImplementedError

    def cut_of(self, gradient: tf.Tensor) -> Optional[Cut]:
        """Where a gradient is cut, if nothing else becomes of it."""
        raise NotImplementedError
