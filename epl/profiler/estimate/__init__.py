"""How much memory a training step takes on each device, estimated from the rewritten graph before it runs."""
