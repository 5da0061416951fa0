"""The annotations: `replicate` and `split`. The stack of those in effect is epl.strategies.context."""

from epl.strategies.parallel_strategy import ParallelStrategy
from epl.strategies.replicate import Replicate, replicate
from epl.strategies.split import Split, split

__all__ = ["ParallelStrategy", "Replicate", "Split", "replicate", "split"]
