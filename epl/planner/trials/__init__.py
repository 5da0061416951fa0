"""Trials: plans of a search train a few real steps on the devices of this machine."""
