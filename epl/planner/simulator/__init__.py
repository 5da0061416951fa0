"""Simulates a step: when each op runs, what each device and link does, what memory holds. It needs no TensorFlow."""
