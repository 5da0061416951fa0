"""ResNet-50 with very many classes, data parallel and with the head split (Whale)."""
