"""BERT for SQuAD. The scripts run from this folder; `model` and `optimizer` can also be imported from elsewhere."""
