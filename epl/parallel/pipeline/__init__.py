"""Pipelines: micro batches, their schedule, and what is ordered by it."""
