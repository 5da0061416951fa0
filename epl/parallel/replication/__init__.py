"""Data parallelism: how replicas share data, and what each of them weighs."""
