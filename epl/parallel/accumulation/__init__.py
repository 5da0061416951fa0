"""Gradient accumulation: gradients of several runs are summed up before variables are updated."""
