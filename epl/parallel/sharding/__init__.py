"""Tensors in shards: placements, resharding between them, and how each op computes on shards."""
