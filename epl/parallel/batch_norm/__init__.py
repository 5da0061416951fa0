"""Batch norm in data parallelism: statistics of the rows of all replicas (`batch_norm.sync`)."""
