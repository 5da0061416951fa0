"""The features of training, in the order in which they are asked. A new feature is a folder, and a line here."""

from typing import Optional, Tuple

from epl.ir.graph import Graph
from epl.parallel.accumulation.feature import Accumulation
from epl.parallel.amp.feature import Amp
from epl.parallel.auto_partition.feature import AutoPartition
from epl.parallel.feature import Feature, RunRequest
from epl.parallel.grouped_apply.feature import GroupedApply
from epl.parallel.io_slicing.feature import IoSlicing
from epl.parallel.offload.feature import Offload
from epl.parallel.recompute.feature import Recompute
from epl.parallel.sharded_variables.feature import ShardedSlots
from epl.parallel.split.feature import Split
from epl.parallel.zero.feature import Zero

FEATURES: Tuple[Feature, ...] = (
    IoSlicing(),
    AutoPartition(),
    Split(),
    Zero(),
    ShardedSlots(),
    Amp(),
    Accumulation(),
    Recompute(),
    Offload(),
    GroupedApply(),
)


def rewrite_run(graph: Optional[Graph], request: RunRequest) -> RunRequest:
    """What runs in place of what was asked for: what the last feature made is undone first."""
    if graph is not None:
        for feature in reversed(FEATURES):
            request = feature.rewrite_run(graph, request)
    return request
