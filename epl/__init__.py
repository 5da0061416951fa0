"""EPL: parallel training of TensorFlow 1.x models by annotation.

    import epl
    epl.init()
    with epl.replicate(1):
        model()

The public names, nothing else.
"""

from epl.utils import graph_mode as _graph_mode  # noqa: F401  before the next line

# isort: split
from tensorflow.compat.v1 import executing_eagerly

from epl.api import (
    add_to_collection,
    explain,
    get_all_collections,
    get_collection,
    init,
    keep_whole,
    local_rows,
    set_default_strategy,
)
from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.ir.graph import Graph, GraphKeys
from epl.launcher.run import run
from epl.ops import native as _native
from epl.profiler.step_stats_callback import StepStatsCallback
from epl.profiler.step_stats_hook import StepStatsHook
from epl.runtime.metric_sums import SumMetricsHook, sum_metrics
from epl.strategies import replicate, split
from epl.utils.version import VERSION

__all__ = [
    "Cluster", "Config", "Env", "Graph", "GraphKeys", "StepStatsCallback", "StepStatsHook", "SumMetricsHook", "VERSION",
    "add_to_collection", "executing_eagerly", "explain", "get_all_collections", "get_collection", "init", "keep_whole",
    "local_rows", "replicate", "run", "set_default_strategy", "split", "sum_metrics",
]  # fmt: skip

__version__ = VERSION

_native.warn_if_left_out()
