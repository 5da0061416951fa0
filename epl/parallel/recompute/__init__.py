"""Recomputation (gradient checkpoint): activations are computed a second time for the backward pass."""
