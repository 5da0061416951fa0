"""Offload: weights live in host memory and come to the device for their use."""
