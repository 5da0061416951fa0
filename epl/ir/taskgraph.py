"""A TaskGraph: the ops of one annotation, the unit that a plan places."""

from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from epl.strategies.parallel_strategy import ParallelStrategy

# Marks conversions of weights to half precision.
WEIGHT_ATTR = "_epl_weight_copy"
# Marks an op that prints, only in replica 0 of a process.
REPLICA_0_ATTR = "_epl_replica_0"

# NodeDef attributes that hold facts about an op.
TASKGRAPH_ATTR = "_epl_taskgraph"
PHASE_ATTR = "_epl_phase"
HOST_ATTR = "_epl_host"  # on the CPU of its process, whichever device its stage runs on
DEFAULT_ATTR = "_epl_default"  # a PlaceholderWithDefault that is never fed: it hides a static value or shape
RANK_0_ATTR = "_epl_rank_0"  # of such a placeholder: its value on rank 0, where ranks have different ones


class Phase:
    """The purpose of an op."""

    FORWARD = "forward"  # also: no phase attribute
    BACKWARD = "backward"
    APPLY = "apply"


class TaskGraph(NamedTuple):
    """The ops whose NodeDef carries `index` in TASKGRAPH_ATTR.

    Attributes:
      index: position in the order of annotation.
      strategy: the `Replicate` or `Split` that annotated them.
      outer: for a split in a scope of `replicate`, that `Replicate`, whose stage it shares; else None.
    """

    index: int  # type: ignore[assignment]  # hides a method of tuple
    strategy: "ParallelStrategy"
    outer: Optional["ParallelStrategy"]
