"""Groups of ranks that compute one replica of the model together, as in a split: the interface for planner and passes.

The ranks of a group hold shards of weights, equal to those of the corresponding rank in every other group. So a group
is one replica in data parallelism, with the rows of all its ranks.
"""

from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.ir.graph import Graph
from epl.ops.communicator_groups import SubCommunicators
from epl.parallel.plan.plan import Plan
from epl.parallel.sharding.resharding import Resharder


class ReplicaGroups:
    """The groups of one graph, implemented by the feature that makes them.

    Attributes:
      complete: names of the ops of gradients that are not averaged over the ranks of a group.
    """

    complete: Set[str]

    @property
    def groups(self) -> Tuple[Tuple[int, ...], ...]:
        """The ranks of the job, by group."""
        raise NotImplementedError

    @property
    def resharder(self) -> Resharder:
        """Moves data between the ranks of a group."""
        raise NotImplementedError

    @property
    def sub_communicators(self) -> List[SubCommunicators]:
        """The communicators of the groups, and of the ranks that have the same shards."""
        raise NotImplementedError

    @property
    def lowered_ops(self) -> FrozenSet[tf.Operation]:
        """The ops of the user that were replaced."""
        raise NotImplementedError

    def is_complete(self, variable: str, gradient: Gradient) -> bool:
        """Whether each rank computes the gradient that it needs: that of its own shard, or a full sparse one.

        Equal dense gradients are averaged nevertheless: this keeps the ranks equal to the last bit.
        """
        raise NotImplementedError

    def note_gradient(self, variable: str, gradient: Gradient) -> None:
        """Notes a boundary of a variable's gradient."""
        raise NotImplementedError

    def has_shard(self, variable: str) -> bool:
        """Whether each rank of a group has a shard of a variable."""
        raise NotImplementedError

    def is_of_group(self, output: str) -> bool:
        """Whether the ranks of a group compute the value of an output together, given the name of the merged tensor."""
        raise NotImplementedError

    def values_of_groups(self) -> Set[str]:
        """Names of the tensors without rows that the ranks of a group compute together in place of the user's."""
        raise NotImplementedError

    def output(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor that is merged in place of a tensor of an output collection."""
        raise NotImplementedError

    def local(self, item: Any) -> Any:
        """The replacement of a tensor or op of the user on a rank; the same tensor or op if there is none."""
        raise NotImplementedError

    def users_tensors(self) -> Dict[str, str]:
        """Name of a tensor that replaces one of the user -> the name of the user's tensor."""
        raise NotImplementedError


def replica_groups(graph: Graph) -> Optional[ReplicaGroups]:
    """The groups of a graph; None if every rank is a replica by itself."""
    return graph.state_of(ReplicaGroups)


def is_one_part(graph: Graph, plan: Plan) -> bool:
    """Whether each replica has one stage, one micro batch, and rows of its own."""
    return len(plan.stages) == 1 and plan.num_micro_batch == 1 and replica_groups(graph) is None
