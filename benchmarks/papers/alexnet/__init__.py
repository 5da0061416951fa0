"""AlexNet on two GPUs (FlexFlow)."""
