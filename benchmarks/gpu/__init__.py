"""What a GPU reaches of the numbers of its preset, measured with PyTorch, whose kernels know GPUs of today."""
