"""Samples that all scripts train on: enough rows for every step, the same on every run."""

from typing import NamedTuple

import numpy as np

from tests.parity.context import GLOBAL_BATCH, STEPS

CLASSES = 5
FEATURES = 12
TOKENS = 4
VOCABULARY = 11


class Samples(NamedTuple):
    x: np.ndarray
    ids: np.ndarray
    y: np.ndarray


def samples(steps: int = STEPS, seed: int = 7) -> Samples:
    """Returns the rows of all steps: real features, token ids and class labels."""
    random = np.random.RandomState(seed)
    rows = steps * GLOBAL_BATCH
    x = random.normal(size=(rows, FEATURES)).astype(np.float32)
    ids = random.randint(0, VOCABULARY, (rows, TOKENS)).astype(np.int32)
    y = random.randint(0, CLASSES, rows).astype(np.int32)
    return Samples(x, ids, y)
