"""Sharded variables: how the shard on each device is made, initialized, read, saved and restored."""
