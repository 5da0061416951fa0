"""Pipelines: micro batches, their schedule, and the ops that it orders."""
