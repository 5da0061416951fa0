"""Data parallelism: clones of the model, how they share data, and how their gradients become one."""
