"""The interface of features that cut variables: epl.split and ZeRO are such owners of shards."""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Set, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.group_communicators import GroupCommunicators
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.resharding import Resharder

SPLIT = "epl.split"
ZERO = "zero.level"


class NewVariable(NamedTuple):
    """A variable that was made while gradients were applied.

    Attributes:
      variable: the object.
      name: starts with the name of the full variable, if the variable was made for a shard.
    """

    variable: Any
    name: str


class ShardedTensor(NamedTuple):
    """Where the shards of a tensor are, for a run that gives the full value.

    Attributes:
      local: gives the shard of a rank, from the prefix of the rank's ops.
      placement: of the shards.
      op: name of an op in the stage where the shards are.
      on_rank: computes a rank's value from a resharder, the prefix of the rank's ops and the full value; None: the
        value is the full value.
    """

    local: Callable[[str], tf.Tensor]
    placement: Placement
    op: str
    on_rank: Optional[Callable[[Resharder, str, tf.Tensor], tf.Tensor]] = None


class ShardOwner:
    """A feature that cuts variables of a graph: its hooks while the graph is built, rewritten and run, empty here.

    Attributes:
      setting: SPLIT or ZERO.
      group: the communicators of its ranks.
      values: tensor of the user's program -> the tensor that has its value now.
    """

    setting = ""

    def __init__(self, group: GroupCommunicators) -> None:
        self.group = group
        self.values: Dict[tf.Tensor, tf.Tensor] = {}

    @property
    def resharder(self) -> Resharder:
        """Moves data between the ranks of a group."""
        return self.group.resharder

    @property
    def ranks(self) -> int:
        """The number of ranks of a group."""
        return self.group.resharder.ranks

    @property
    def groups(self) -> Tuple[Tuple[int, ...], ...]:
        """Ranks of the job, by group."""
        return self.group.groups

    def adopt_updates(self, made: Sequence[NewVariable] = ()) -> None:
        """Adds the slots of an apply_gradients to the registry; `made` are the variables that it made."""

    def finish(self) -> None:
        """Does what needs the complete graph, before the graph is rewritten."""

    def follow_late(self, after: int) -> None:
        """Handles the ops that were built after the first run, those with a number above `after` for the first time."""

    def results(self) -> Set[str]:
        """Names of the ops whose results the user may ask for, without variables."""
        return set()

    def value_of(self, tensor: tf.Tensor) -> Union[None, tf.Tensor, ShardedTensor]:
        """The value that a fetch of a tensor gives; None if the tensor is none of the owner's."""
        return None

    def refuse_feed(self, tensor: tf.Tensor) -> None:
        """Raises FeedError for a tensor, other than a variable, that no op takes in full any more."""

    def primary_ranks(self) -> Dict[tf.Tensor, Tuple[Tuple[int, ...], ...]]:
        """The feeds of a run that trains nothing: tensor -> value, by rank of the job."""
        return {}

    def refuse_replicated_rows(self, fetches: Sequence[tf.Tensor], differentiates: bool) -> None:
        """Raises FeedError for fetches whose values differ from those of one device in a run that trains nothing.

        Args:
          fetches: tensors of `fetch_value`.
          differentiates: whether the run needs gradients; `primary_ranks` are not fed then.
        """
