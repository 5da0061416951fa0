"""Recomputation (gradient checkpoint): activations are computed again for the backward pass."""
