"""Variables of which each device holds a shard: how they are made, initialized, read, saved and restored."""
