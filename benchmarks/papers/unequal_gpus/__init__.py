"""V100 and P100 together (Whale)."""
