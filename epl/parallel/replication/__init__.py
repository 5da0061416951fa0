"""Data parallelism: replicas of the model, how they share data, and how their gradients are aggregated."""
