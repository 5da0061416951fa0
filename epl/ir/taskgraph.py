"""A TaskGraph: the ops of one annotation, the unit that a plan places."""

from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from epl.strategies.parallel_strategy import ParallelStrategy

# Of conversions of weights to half precision: the attribute that marks them.
WEIGHT_ATTR = "_epl_weight_copy"
# Of an op that prints, and does so in replica 0 of a process alone.
REPLICA_0_ATTR = "_epl_replica_0"

# NodeDef attributes in which the facts about an op travel with the graph.
TASKGRAPH_ATTR = "_epl_taskgraph"
PHASE_ATTR = "_epl_phase"
HOST_ATTR = "_epl_host"  # on the CPU of its process, whichever device its stage runs on
DEFAULT_ATTR = "_epl_default"  # a PlaceholderWithDefault that is never fed: it hides a static value or shape


class Phase:
    """What an op was built for."""

    FORWARD = "forward"  # also: no phase attribute
    BACKWARD = "backward"
    APPLY = "apply"


class TaskGraph(NamedTuple):
    """The ops whose NodeDef carries `index` in TASKGRAPH_ATTR.

    Attributes:
      index: position in the order of annotation.
      strategy: the `Replicate` or `Split` that annotated them.
      outer: of a split in a scope of `replicate`, the `Replicate`, with which it is in one stage; else None.
    """

    index: int  # type: ignore[assignment]  # hides a method of tuple
    strategy: "ParallelStrategy"
    outer: Optional["ParallelStrategy"]
