"""Grouped apply: variables are updated in groups, one group after the other."""
