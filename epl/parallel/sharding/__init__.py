"""Sharded tensors: placements, resharding between them, and how each op computes on shards."""
