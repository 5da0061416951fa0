"""M6-10B in 8 stages on 8 to 256 GPUs (Whale)."""
