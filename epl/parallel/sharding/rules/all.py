"""Importing this fills the registry of rules."""

from epl.parallel.sharding.rules import (  # noqa: F401
    convolution,
    elementwise,
    lookup,
    losses,
    matmul,
    random,
    reductions,
    reshape,
    shapes,
)
