"""ZeRO: each replica holds and updates its shard of optimizer state, gradients and weights."""
