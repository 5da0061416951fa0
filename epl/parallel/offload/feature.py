"""Weights in host memory (`offload.level`) as a feature."""

from epl.parallel.feature import Feature
from epl.parallel.offload import move_weights


class OffloadFeature(Feature):
    """Weights and what the optimizer keeps lie in host memory, and are on the device while they are used."""

    name = "offload.level"
    passes = (move_weights.PASS,)
