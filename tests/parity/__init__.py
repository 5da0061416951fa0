"""Numerics of plans against plain TensorFlow: the oracle, the worker processes that it drives, and its user scripts."""
