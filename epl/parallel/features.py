"""The features of training, in the order in which they are asked. A new feature is a folder, and a line here."""

import functools
from typing import Any, List, Tuple

from epl.ir.graph import Graph
from epl.parallel.accumulation.feature import AccumulationFeature
from epl.parallel.amp.feature import AmpFeature
from epl.parallel.auto_partition.feature import AutoPartitionFeature
from epl.parallel.batch_norm.feature import BatchNormFeature
from epl.parallel.feature import Feature, Run, RunRequest
from epl.parallel.grouped_apply.feature import GroupedApplyFeature
from epl.parallel.io_slicing.feature import IoSlicingFeature
from epl.parallel.offload.feature import OffloadFeature
from epl.parallel.recompute.feature import RecomputeFeature
from epl.parallel.sharded_variables.feature import ShardedSlotsFeature
from epl.parallel.split.feature import SplitFeature
from epl.parallel.strategy.feature import StrategyFeature
from epl.parallel.whole_batch.feature import WholeBatchFeature
from epl.parallel.zero.feature import ZeroFeature

FEATURES: Tuple[Feature, ...] = (
    StrategyFeature(),
    IoSlicingFeature(),
    AutoPartitionFeature(),
    WholeBatchFeature(),
    SplitFeature(),
    ZeroFeature(),
    ShardedSlotsFeature(),
    AmpFeature(),
    AccumulationFeature(),
    RecomputeFeature(),
    OffloadFeature(),
    GroupedApplyFeature(),
    BatchNormFeature(),
)


def run(graph: Graph, request: RunRequest, execute: Run) -> List[Any]:
    """Runs what was asked for: what the last feature made is undone first."""
    for feature in reversed(FEATURES):
        request = feature.rewrite_run(graph, request)
    for feature in reversed(FEATURES):
        execute = functools.partial(feature.around_run, graph, run=execute)
    return execute(request)
