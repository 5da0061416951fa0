"""What an op costs: FLOPs, bytes and memory, from the shapes of its inputs and outputs."""
