"""M6-MoE-10T on 512 GPUs (Whale)."""
