"""ZeRO: each replica holds and updates its part of optimizer state, gradients and weights."""
