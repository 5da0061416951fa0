"""The strategy of a model: used from a file or the planner, and recorded for a file."""
