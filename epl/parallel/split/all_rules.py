"""Importing this fills the registry of rules."""

from epl.parallel.split import (  # noqa: F401
    rules_convolution,
    rules_elementwise,
    rules_lookup,
    rules_losses,
    rules_matmul,
    rules_random,
    rules_reductions,
    rules_reshape,
    rules_shapes,
)
