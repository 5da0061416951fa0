"""A feature that cuts variables, as the rest of EPL knows it: epl.split and ZeRO are such owners of shards."""

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
      name: begins with the name of the full variable, if it was made for a shard.
    """

    variable: Any
    name: str


class ShardedTensor(NamedTuple):
    """Where the shards of a tensor are, for a run that gives the full value.

    Attributes:
      local: gives the shard of the rank whose ops have a prefix.
      placement: of the shards.
      op: name of an op in the stage where the shards are.
      on_rank: makes of the full value what the user means on a rank, given a resharder and the prefix of its ops.
    """

    local: Callable[[str], tf.Tensor]
    placement: Placement
    op: str
    on_rank: Optional[Callable[[Resharder, str, tf.Tensor], tf.Tensor]] = None


class ShardOwner:
    """A feature that cuts variables of a graph: how it takes part in the life of the graph. Defaults do nothing.

    Attributes:
      setting: SPLIT or ZERO.
      group: the communicators of its ranks.
      values: what the user's program still names -> what has its value now.
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
        """Of a group."""
        return self.group.resharder.ranks

    @property
    def groups(self) -> Tuple[Tuple[int, ...], ...]:
        """Ranks of the job, by group."""
        return self.group.groups

    def adopt_updates(self, made: Sequence[NewVariable] = ()) -> None:
        """Adds the slots of an apply_gradients to the registry; `made` are the variables that it has made."""

    def finish(self) -> None:
        """Does what can be done only when the whole graph is built: before it is rewritten."""

    def follow_late(self) -> None:
        """Sees to what was built after the first run."""

    def results(self) -> Set[str]:
        """Names of the ops that compute what the user may ask for, besides variables."""
        return set()

    def value_of(self, tensor: tf.Tensor) -> Union[None, tf.Tensor, ShardedTensor]:
        """What has the value that the user means by a tensor; None if the owner has no say in it."""
        return None

    def refuse_feed(self, tensor: tf.Tensor) -> None:
        """Raises FeedError for a tensor that nothing takes as it is, besides variables."""

    def primary_ranks(self) -> Dict[tf.Tensor, Tuple[Tuple[int, ...], ...]]:
        """What is to be fed in a run that trains nothing: tensor -> value, by rank of the job."""
        return {}

    def refuse_replicated_rows(self, fetches: Sequence[tf.Tensor], differentiates: bool) -> None:
        """Raises FeedError for what is not as on one device in a run that trains nothing.

        Args:
          fetches: as `fetch_value` gave them.
          differentiates: whether the run needs gradients; it is not fed `primary_ranks` then.
        """
