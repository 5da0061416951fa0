"""Decisions: what a plan should be, by what the simulator says of it."""
