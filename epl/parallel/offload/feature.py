"""Weights in host memory (`offload.level`) as a feature."""

from typing import Optional

from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Feature
from epl.parallel.offload import move_weights
from epl.parallel.plan.sections import OffloadSection
from epl.parallel.rewriting.context import RewriteContext


class OffloadFeature(Feature):
    """Weights and what the optimizer keeps lie in host memory, and are on the device while they are used."""

    origin = OpOrigin("offload.level", "offload")

    passes = (move_weights.PASS,)

    def plan(self, rewrite: RewriteContext) -> Optional[OffloadSection]:
        """What each stage keeps in host memory."""
        return move_weights.find(rewrite)
