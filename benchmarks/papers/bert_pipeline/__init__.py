"""BERT-Large in a pipeline, against GPipe and on 8 GPUs (Whale)."""
