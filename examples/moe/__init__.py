"""Translation by a Transformer with mixtures of experts. The scripts run from this folder."""
