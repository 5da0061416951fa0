"""Ranks that compute one replica of the model together, as those of a split do: what planner and passes ask of them.

The ranks of a group have shards of weights, each the same ones as the rank in its place in every other group. So a
group is one replica in data parallelism, and its rows are those of all its ranks.
"""

from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.ir.graph import Graph
from epl.ops.communicator_groups import SubCommunicators
from epl.parallel.sharding.resharding import Resharder


class ReplicaGroups:
    """The groups of one graph. The feature that makes them implements it.

    Attributes:
      complete: names of the ops of gradients that the ranks of a group need not make a mean of.
    """

    complete: Set[str]

    @property
    def groups(self) -> Tuple[Tuple[int, ...], ...]:
        """Ranks of the job, by group."""
        raise NotImplementedError

    @property
    def resharder(self) -> Resharder:
        """Moves data between the ranks of a group."""
        raise NotImplementedError

    @property
    def sub_communicators(self) -> List[SubCommunicators]:
        """Of the groups, and of the ranks that have the same shards."""
        raise NotImplementedError

    @property
    def lowered_ops(self) -> FrozenSet[tf.Operation]:
        """The ops of the user that others run in place of."""
        raise NotImplementedError

    def is_complete(self, variable: str, gradient: Gradient) -> bool:
        """Whether each rank has the gradient that it needs: that of its own shard, or all of a sparse one.

        The mean of equal dense gradients is made all the same: it keeps the ranks equal to the last bit.
        """
        raise NotImplementedError

    def note_gradient(self, variable: str, gradient: Gradient) -> None:
        """The gradient of a variable passes this boundary."""
        raise NotImplementedError

    def has_shard(self, variable: str) -> bool:
        """Whether each rank of a group has a shard of a variable."""
        raise NotImplementedError

    def is_of_group(self, output: str) -> bool:
        """Whether the ranks of a group have the value of an output together, given the name of what is merged."""
        raise NotImplementedError

    def output(self, tensor: tf.Tensor) -> tf.Tensor:
        """What is merged in place of a tensor in an output collection."""
        raise NotImplementedError

    def local(self, item: Any) -> Any:
        """What a rank computes in place of a tensor or op of the user; the same if it computes that itself."""
        raise NotImplementedError

    def users_tensors(self) -> Dict[str, str]:
        """Name of a tensor that a rank computes in place of one of the user -> that of the user's."""
        raise NotImplementedError


def replica_groups(graph: Graph) -> Optional[ReplicaGroups]:
    """The groups of a graph; None if every rank is a replica by itself."""
    return graph.state_of(ReplicaGroups)
