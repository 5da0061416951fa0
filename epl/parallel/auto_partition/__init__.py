"""Automatic pipeline stages: a model without stages of its own is cut into stages of equal cost."""
