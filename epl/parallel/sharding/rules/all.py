"""Importing this fills the registry of rules."""

