"""Gradients that can be reduce-scattered, as with ZeRO: the interface for planner and aggregation."""

from typing import NamedTuple, Optional

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.parallel.sharding.packed import Member
from epl.parallel.sharding.resharding import Resharder


class Cut(NamedTuple):
    """Where a gradient is cut.

    Attributes:
      part: an identity, which the optimizer reads.
      member: full shape, and placement of the shards.
    """

    part: tf.Tensor
    member: Member


class ScatteredGradients:
    """The gradients of one graph that are cut into shards, implemented by the feature that cuts them."""

    @property
    def resharder(self) -> Resharder:
        """Moves data between the ranks."""
        raise NotImplementedError

    def scatters(self, gradient: Gradient) -> bool:
        """Whether a gradient can be reduce-scattered: the graph uses only this rank's shard of the reduced gradient."""
        raise NotImplementedError

    def cut_of(self, gradient: tf.Tensor) -> Optional[Cut]:
        """Where a gradient is cut, if its shard is its only use."""
        raise NotImplementedError
